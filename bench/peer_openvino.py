"""OpenVINO: ScaledDotProductAttention in float32, between constant MatMuls in a layer."""

import numpy
import openvino
from openvino import opset13 as graph

import scenes
from contender import Contender

NAME = "openvino"
settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": "1",
            "ENABLE_CPU_PINNING": False}
core = openvino.Core()


def start(threads):
    settings["INFERENCE_NUM_THREADS"] = threads
    return openvino.__version__.split("-")[0]


def contender(way, parameters, arrays, node, out):
    compiled = core.compile_model(openvino.Model([node], parameters), "CPU", settings)
    request = compiled.create_infer_request()
    for index, array in enumerate(arrays):
        request.set_input_tensor(index, openvino.Tensor(array, shared_memory=True))
    request.set_output_tensor(0, openvino.Tensor(out, shared_memory=True))

    def run():
        request.infer(share_outputs=True)

    return Contender(NAME, way, run, lambda: out, keep=arrays)


def parameter(array):
    types = {"float32": openvino.Type.f32, "bool": openvino.Type.boolean}
    return graph.parameter(list(array.shape), types[array.dtype.name])


def ways(scene, operands):
    """Pairs of the name of a way and a function that makes it ready."""
    if scene.is_layer:
        yield "MatMul, ScaledDotProductAttention, MatMul", lambda: layer(scene, operands)
    elif scene.bias:
        yield "ScaledDotProductAttention", lambda: attention(scene, operands, operands.bias)
    elif scene.lengths or scene.window:
        mask = operands.mask(scene)
        yield "ScaledDotProductAttention, additive mask", lambda: attention(
            scene, operands, scenes.additive(mask))
        if scene.lengths:
            yield "ScaledDotProductAttention, mask of keys", lambda: attention(
                scene, operands, scenes.additive(mask[:, :, :1]), "mask of keys")
    else:
        yield "ScaledDotProductAttention", lambda: attention(scene, operands)


def attention(scene, operands, mask=None, note="additive mask"):
    arrays = [operands.query, operands.key, operands.value]
    if scene.G < scene.H: # the operator has no groups: their keys and values repeated, beforehand
        arrays[1:] = [scenes.placed(array.repeat(scene.H // scene.G, axis=1))
                      for array in arrays[1:]]
    if mask is not None:
        arrays.append(mask)
    way = "ScaledDotProductAttention"
    if mask is not None and not scene.bias:
        way = f"{way}, {note}"
    parameters = [parameter(array) for array in arrays]
    causal = scene.causal and mask is None
    node = graph.scaled_dot_product_attention(*parameters, causal=causal)
    return contender(way, parameters, arrays, node, scenes.empty(*operands.query.shape))


def layer(scene, operands):
    x = parameter(operands.x)

    def linear(node, i):
        return graph.add(graph.matmul(node, operands.weights[i], False, True), operands.biases[i])

    def heads(node):
        split = graph.reshape(node, numpy.array([0, 0, scene.H, scene.D]), True)
        return graph.transpose(split, numpy.array([0, 2, 1, 3]))

    mixed = graph.scaled_dot_product_attention(*(heads(linear(x, i)) for i in range(3)),
                                               causal=scene.causal)
    joined = graph.reshape(graph.transpose(mixed, numpy.array([0, 2, 1, 3])),
                           numpy.array([0, 0, scene.E]), True)
    return contender("MatMul, ScaledDotProductAttention, MatMul", [x], [operands.x],
                     linear(joined, 3), scenes.empty(*operands.x.shape))
