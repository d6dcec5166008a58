"""libmha from another language: Python's ctypes and nothing else.

Makes a layer, runs it, asks for a workspace size and reads an error message.
Usage: layer.py LIBRARY
"""

import ctypes
import sys
from ctypes import POINTER, Structure, byref, c_char_p, c_float, c_int32, c_int64, c_void_p

FLOAT32 = 1
ERROR_SHAPE = 2


class Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("type", c_int32),
        ("rank", c_int32),
        ("shape", c_int64 * 6),
        ("strides", c_int64 * 6),
        ("flags", c_int64),
    ]


def tensors(*names):
    return [("size", c_int64)] + [(name, POINTER(Tensor)) for name in names]


class Inputs(Structure):
    _fields_ = tensors("query", "key", "value", "residual", "query_lengths", "key_lengths",
                       "bias_k", "bias_v")


class Outputs(Structure):
    _fields_ = tensors("out", "lse", "weights", "weights_mean")


class Weights(Structure):
    _fields_ = tensors("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o", "bias_k", "bias_v")


class LayerShape(Structure):
    _fields_ = [(name, c_int64) for name in
                ("size", "E", "E_key", "E_value", "E_out", "H", "G", "D", "Dv")]
    _fields_ += [("zero_attention", c_int32), ("reserved", c_int32)]


class Options(Structure):
    _fields_ = [
        ("size", c_int64),
        ("scale_mode", c_int32),
        ("scale", c_float),
        ("softcap_mode", c_int32),
        ("softcap", c_float),
        ("mask_kind", c_int32),
        ("causal", c_int32),
        ("mask", POINTER(Tensor)),
        ("align", c_int32),
        ("window", c_int32),
        ("offsets", POINTER(Tensor)),
        ("window_left", c_int64),
        ("window_right", c_int64),
        ("zero_attention", c_int32),
        ("reserved", c_int32),
    ]


def load(path):
    mha = ctypes.CDLL(path)
    mha.mha_context_create.argtypes = [c_void_p, POINTER(c_void_p)]
    mha.mha_context_free.argtypes = [c_void_p]
    mha.mha_context_message.argtypes = [c_void_p]
    mha.mha_context_message.restype = c_char_p
    mha.mha_version.restype = c_char_p
    mha.mha_layer_create.argtypes = [c_void_p, POINTER(LayerShape), POINTER(Weights), c_int32,
                                     POINTER(c_void_p)]
    mha.mha_layer_free.argtypes = [c_void_p]
    run = [c_void_p, c_void_p, POINTER(Inputs), POINTER(Options), POINTER(Outputs)]
    mha.mha_forward.argtypes = run
    mha.mha_forward_workspace.argtypes = run + [POINTER(c_int64)]
    for maker in (mha.mha_tensor_2d, mha.mha_tensor_3d):
        maker.restype = Tensor
    mha.mha_tensor_2d.argtypes = [c_void_p, c_int32] + [c_int64] * 2
    mha.mha_tensor_3d.argtypes = [c_void_p, c_int32] + [c_int64] * 3
    return mha


def expect(what, got, wanted):
    if got != wanted:
        sys.exit(f"{what} is {got!r}, wanted {wanted!r}")


def main(path):
    mha = load(path)
    ctx, layer = c_void_p(), c_void_p()
    expect("mha_context_create", mha.mha_context_create(None, byref(ctx)), 0)

    def check(what, status):
        if status != 0:
            sys.exit(f"{what}: status {status}: {mha.mha_context_message(ctx).decode()}")

    zero, one, two = ((c_float * 4)(n, 0, 0, n) for n in (0, 1, 2))
    x, y = (c_float * 4)(1, 2, 3, 4), (c_float * 4)()
    square = [mha.mha_tensor_2d(ctypes.addressof(w), FLOAT32, 2, 2) for w in (zero, one, two)]
    w0, w1, w2 = (ctypes.pointer(w) for w in square)
    shape = LayerShape(E=2, H=1)
    weights = Weights(w_q=w0, w_k=w0, w_v=w1, w_o=w2)
    check("mha_layer_create", mha.mha_layer_create(ctx, shape, weights, 0, byref(layer)))

    tx = mha.mha_tensor_3d(ctypes.addressof(x), FLOAT32, 1, 2, 2)
    ty = mha.mha_tensor_3d(ctypes.addressof(y), FLOAT32, 1, 2, 2)
    inputs = Inputs(query=ctypes.pointer(tx), residual=ctypes.pointer(tx))
    outputs = Outputs(out=ctypes.pointer(ty))

    # Equal scores: each row is x plus twice the mean of the rows it sees.
    check("mha_forward", mha.mha_forward(ctx, layer, inputs, None, outputs))
    expect("y", list(y), [5, 8, 7, 10])
    check("mha_forward", mha.mha_forward(ctx, layer, inputs, Options(causal=1), outputs))
    expect("y, causal", list(y), [3, 6, 7, 10])

    need = c_int64(-1)
    check("mha_forward_workspace",
          mha.mha_forward_workspace(ctx, layer, inputs, None, outputs, byref(need)))
    if need.value <= 0:
        sys.exit(f"the workspace is {need.value} bytes")

    narrow = mha.mha_tensor_3d(ctypes.addressof(x), FLOAT32, 1, 4, 1)
    inputs.residual = ctypes.pointer(narrow)
    expect("status of a residual that does not fit",
           mha.mha_forward(ctx, layer, inputs, None, outputs), ERROR_SHAPE)
    message = mha.mha_context_message(ctx).decode()
    for part in ("mha_forward", "residual", "[1, 4, 1]", "[1, 2, 2]"):
        if part not in message:
            sys.exit(f"the message {message!r} lacks {part!r}")
    expect("y after the failure", list(y), [3, 6, 7, 10])

    mha.mha_layer_free(layer)
    mha.mha_context_free(ctx)
    print(f"libmha {mha.mha_version().decode()}: workspace {need.value} bytes; {message}")


if __name__ == "__main__":
    main(sys.argv[1])
