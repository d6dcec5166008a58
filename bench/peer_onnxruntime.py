"""ONNX Runtime: the operators Attention (onnx), MultiHeadAttention, GroupQueryAttention and
Attention (com.microsoft), in models of their own, inputs and outputs bound to memory once."""

import numpy
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import scenes
from contender import Contender

NAME = "onnxruntime"
MICROSOFT = "com.microsoft"
ELEMENT = {numpy.dtype("float32"): TensorProto.FLOAT, numpy.dtype("int32"): TensorProto.INT32,
           numpy.dtype("bool"): TensorProto.BOOL}
options = onnxruntime.SessionOptions()


def start(threads):
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.__version__


class Model:
    """A graph in the making. Inputs and constants are numpy arrays; methods return names."""

    def __init__(self):
        self.nodes, self.inputs, self.constants = [], {}, []

    def input(self, name, array):
        self.inputs[name] = array
        return name

    def constant(self, name, array):
        self.constants.append(numpy_helper.from_array(numpy.ascontiguousarray(array), name))
        return name

    def node(self, operator, inputs, outputs, domain="", **attributes):
        self.nodes.append(helper.make_node(operator, inputs, outputs, domain=domain, **attributes))
        return outputs[0]

    def linear(self, x, name, weight, bias):
        """x W^T + b with constant weights, which the runtime packs when it loads them."""
        product = self.node("MatMul", [x, self.constant(f"w_{name}", weight.T)], [f"xw_{name}"])
        return self.node("Add", [product, self.constant(f"b_{name}", bias)], [name])

    def contender(self, way, outputs, result):
        """`outputs` are arrays by name, written in place; `result` looks at what is in them."""
        def info(name, array):
            return helper.make_tensor_value_info(name, ELEMENT[array.dtype], array.shape)

        graph = helper.make_graph(self.nodes, "scene",
                                  [info(*item) for item in self.inputs.items()],
                                  [info(*item) for item in outputs.items()], self.constants)
        model = helper.make_model(graph, ir_version=11, opset_imports=[
            helper.make_opsetid("", 23), helper.make_opsetid(MICROSOFT, 1)])
        session = onnxruntime.InferenceSession(model.SerializeToString(), options,
                                               providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        value = onnxruntime.OrtValue.ortvalue_from_numpy
        for name, array in self.inputs.items():
            binding.bind_ortvalue_input(name, value(array))
        for name, array in outputs.items():
            binding.bind_ortvalue_output(name, value(array))
        run = session.run_with_iobinding
        return Contender(NAME, way, lambda: run(binding), result, keep=(self.inputs, outputs))


def ways(scene, operands):
    """Pairs of the name of a way and a function that makes it ready."""
    yield from (layer_ways if scene.is_layer else attention_ways)(scene, operands)


# ---- attention -----------------------------------------------------------------------------------

def rows(array):
    """[B, heads, rows, D] as [B, rows, heads * D], in memory of its own."""
    B, heads, n, D = array.shape
    return scenes.placed(array.transpose(0, 2, 1, 3).reshape(B, n, heads * D))


def heads_of(array, heads):
    """The other way, as a view."""
    B, n, width = array.shape
    return array.reshape(B, n, heads, width // heads).transpose(0, 2, 1, 3)


def attention_ways(scene, operands):
    if scene.bias:
        yield "Attention", lambda: onnx_attention(scene, operands, "Attention", operands.bias)
        yield "MultiHeadAttention", lambda: multi_head(scene, operands, operands.bias)
    elif scene.lengths or scene.window:
        mask = operands.mask(scene)
        yield "Attention, boolean mask", lambda: onnx_attention(
            scene, operands, "Attention, boolean mask", scenes.placed(mask))
        yield "Attention, additive mask", lambda: onnx_attention(
            scene, operands, "Attention, additive mask", scenes.additive(mask))
        yield "MultiHeadAttention", lambda: multi_head(scene, operands, scenes.additive(mask))
        if scene.lengths:
            yield "MultiHeadAttention, lengths", lambda: multi_head(scene, operands, None)
    else:
        yield "Attention", lambda: onnx_attention(scene, operands, "Attention")
        if scene.G == scene.H:
            yield "MultiHeadAttention", lambda: multi_head(scene, operands, None)
    if scene.causal:
        yield "GroupQueryAttention", lambda: group_query(scene, operands)


def onnx_attention(scene, operands, way, mask=None):
    model, out = Model(), scenes.empty(*operands.query.shape)
    names = [model.input("q", operands.query), model.input("k", operands.key),
             model.input("v", operands.value)]
    if mask is not None:
        names.append(model.input("mask", mask))
    causal = scene.causal and not scene.window
    model.node("Attention", names, ["out"], is_causal=int(causal))
    return model.contender(way, {"out": out}, lambda: out)


def multi_head(scene, operands, bias):
    """Queries as rows, keys and values as heads, which is how its fast kernel wants them."""
    model, query = Model(), rows(operands.query)
    out = scenes.empty(*query.shape)
    names = [model.input("q", query), model.input("k", operands.key),
             model.input("v", operands.value), "", "", ""]
    way = "MultiHeadAttention"
    if bias is not None:
        names[5] = model.input("bias", bias)
    elif scene.lengths:
        way = "MultiHeadAttention, lengths"
        names[4] = model.input("lengths", numpy.array(scene.lengths, numpy.int32))
    model.node("MultiHeadAttention", names, ["out"], MICROSOFT, num_heads=scene.H,
               unidirectional=int(scene.causal and not scene.window))
    return model.contender(way, {"out": out}, lambda: heads_of(out, scene.H))


def group_query(scene, operands):
    model, query = Model(), rows(operands.query)
    key, value = rows(operands.key), rows(operands.value)
    out = scenes.empty(*query.shape)
    names = [model.input("q", query), model.input("k", key), model.input("v", value)]
    outputs = {"out": out} | with_cache(model, scene, names)
    # Its window counts the query itself, as ours does.
    model.node("GroupQueryAttention", names, list(outputs), MICROSOFT, num_heads=scene.H,
               kv_num_heads=scene.G, local_window_size=scene.window or -1)
    return model.contender("GroupQueryAttention", outputs, lambda: heads_of(out, scene.H))


def with_cache(model, scene, names):
    """Past and present keys and values are one buffer, as long as the scene; the past is empty."""
    cache = [scenes.empty(*(scene.B, scene.G, scene.S, scene.D)) for _ in range(2)]
    names += [model.input("past_key", cache[0]), model.input("past_value", cache[1]),
              model.input("last", numpy.full(scene.B, scene.S - 1, numpy.int32)),
              model.constant("total", numpy.array(scene.S, numpy.int32))]
    return dict(zip(("present_key", "present_value"), cache))


# ---- layers --------------------------------------------------------------------------------------

def layer_ways(scene, operands):
    yield "Attention, packed weights", lambda: packed_attention(scene, operands)
    yield "MultiHeadAttention", lambda: multi_head_layer(scene, operands)
    if scene.causal:
        yield "GroupQueryAttention", lambda: group_query_layer(scene, operands)
    else:
        yield "Attention", lambda: onnx_attention_layer(scene, operands)


def finish(model, operands, mixed, way, outputs=None):
    out = scenes.empty(*operands.x.shape)
    model.linear(mixed, "out", operands.weights[3], operands.biases[3])
    return model.contender(way, {"out": out} | (outputs or {}), lambda: out)


def packed_attention(scene, operands):
    model = Model()
    weight, bias = (numpy.concatenate(arrays[:3]) for arrays in (operands.weights, operands.biases))
    names = [model.input("x", operands.x), model.constant("w", weight.T), model.constant("b", bias)]
    mixed = model.node("Attention", names, ["mixed"], MICROSOFT, num_heads=scene.H,
                       unidirectional=int(scene.causal))
    return finish(model, operands, mixed, "Attention, packed weights")


def multi_head_layer(scene, operands):
    model = Model()
    x = model.input("x", operands.x)
    names = [model.node("MatMul", [x, model.constant(f"w_{name}", weight.T)], [name])
             for name, weight in zip("qkv", operands.weights)]
    names.append(model.constant("b", numpy.concatenate(operands.biases[:3])))
    mixed = model.node("MultiHeadAttention", names, ["mixed"], MICROSOFT, num_heads=scene.H,
                       unidirectional=int(scene.causal))
    return finish(model, operands, mixed, "MultiHeadAttention")


def onnx_attention_layer(scene, operands):
    model = Model()
    x = model.input("x", operands.x)
    names = [model.linear(x, name, weight, bias) for name, weight, bias in
             zip("qkv", operands.weights, operands.biases)]
    mixed = model.node("Attention", names, ["mixed"], q_num_heads=scene.H, kv_num_heads=scene.G)
    return finish(model, operands, mixed, "Attention")


def group_query_layer(scene, operands):
    model = Model()
    weight, bias = (numpy.concatenate(arrays[:3]) for arrays in (operands.weights, operands.biases))
    names = [model.linear(model.input("x", operands.x), "qkv", weight, bias), "", ""]
    outputs = with_cache(model, scene, names)
    mixed = model.node("GroupQueryAttention", names, ["mixed", *outputs], MICROSOFT,
                       num_heads=scene.H, kv_num_heads=scene.G)
    return finish(model, operands, mixed, "GroupQueryAttention", outputs)
