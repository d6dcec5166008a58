"""libmha by ctypes, as far as the benchmark needs it: the structs of mha.h, a context, a call."""

import ctypes
from ctypes import (POINTER, Structure, byref, c_char_p, c_double, c_float, c_int32, c_int64,
                    c_void_p)

FLOAT32, INT32 = 1, 10
MASK_ADDITIVE = 3
WINDOW_LEFT = 1
BORROW = 1


class Tensor(Structure):
    _fields_ = [("data", c_void_p), ("type", c_int32), ("rank", c_int32),
                ("shape", c_int64 * 6), ("strides", c_int64 * 6), ("flags", c_int64)]


def tensors(*names):
    return [("size", c_int64)] + [(name, POINTER(Tensor)) for name in names]


class ContextOptions(Structure):
    _fields_ = [("size", c_int64), ("allocator", c_void_p), ("isa", c_char_p),
                ("message", c_char_p), ("message_bytes", c_int64),
                ("executor", c_void_p), ("threads", c_int64)]


class Inputs(Structure):
    _fields_ = tensors("query", "key", "value", "residual", "query_lengths", "key_lengths",
                       "bias_k", "bias_v")


class Options(Structure):
    _fields_ = [("size", c_int64), ("scale_mode", c_int32), ("scale", c_float),
                ("softcap_mode", c_int32), ("softcap", c_float), ("mask_kind", c_int32),
                ("causal", c_int32), ("mask", POINTER(Tensor)), ("align", c_int32),
                ("window", c_int32), ("offsets", POINTER(Tensor)), ("window_left", c_int64),
                ("window_right", c_int64), ("zero_attention", c_int32), ("reserved", c_int32)]


class Outputs(Structure):
    _fields_ = tensors("out", "lse", "weights", "weights_mean")


class Weights(Structure):
    _fields_ = tensors("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o", "bias_k", "bias_v")


class LayerShape(Structure):
    _fields_ = [(name, c_int64) for name in
                ("size", "E", "E_key", "E_value", "E_out", "H", "G", "D", "Dv")]
    _fields_ += [("zero_attention", c_int32), ("reserved", c_int32)]


def view(array):
    """A pointer to the tensor of a numpy array of float32 or int32, with the array's strides."""
    types = {"float32": FLOAT32, "int32": INT32}
    tensor = Tensor(data=array.ctypes.data, type=types[array.dtype.name], rank=array.ndim)
    for axis in range(array.ndim):
        tensor.shape[axis] = array.shape[axis]
        tensor.strides[axis] = array.strides[axis] // array.itemsize
    return ctypes.pointer(tensor)


class Library:
    """The shared library, the module of bench/ beside it, and the BLAS that it is linked with."""

    def __init__(self, build):
        mha = ctypes.CDLL(f"{build}/libmha.so")
        mha.mha_context_create.argtypes = [POINTER(ContextOptions), POINTER(c_void_p)]
        mha.mha_context_free.argtypes = [c_void_p]
        for name in ("message", "isa", "cpu"):
            function = getattr(mha, f"mha_context_{name}")
            function.argtypes, function.restype = [c_void_p], c_char_p
        mha.mha_version.restype = mha.mha_blas_text.restype = c_char_p
        mha.mha_layer_create.argtypes = [c_void_p, POINTER(LayerShape), POINTER(Weights), c_int32,
                                         POINTER(c_void_p)]
        mha.mha_layer_pack.argtypes = [c_void_p, c_void_p, c_int32]
        mha.mha_layer_free.argtypes = [c_void_p]
        operands = [POINTER(Inputs), POINTER(Options), POINTER(Outputs)]
        mha.mha_attention.argtypes = [c_void_p, *operands]
        mha.mha_forward.argtypes = [c_void_p, c_void_p, *operands]

        bench = ctypes.CDLL(f"{build}/bench/libmha_bench.so")
        bench.bench_roof_fma.argtypes = [c_char_p, c_int64]
        bench.bench_roof_read.argtypes = [c_char_p, c_int64, c_int64]
        bench.bench_roof_fma.restype = bench.bench_roof_read.restype = c_double
        bench.bench_projection_create.argtypes = [c_char_p, c_int64, c_int64, c_int64, c_int64,
                                                  c_void_p]
        bench.bench_projection_create.restype = c_void_p
        bench.bench_projection_run.argtypes = [c_void_p, c_void_p, c_void_p]
        bench.bench_projection_free.argtypes = [c_void_p]
        self.mha, self.bench = mha, bench

        # The handle of a library also finds what the library itself is linked with.
        self.sgemm = mha.cblas_sgemm
        self.sgemm.argtypes = [c_int32] * 6 + [c_float, c_void_p, c_int32, c_void_p, c_int32,
                                               c_float, c_void_p, c_int32]
        self.sgemm.restype = None

    def set_blas_threads(self, threads):
        if hasattr(self.mha, "openblas_set_num_threads"):
            self.mha.openblas_set_num_threads(c_int32(threads))

    @property
    def version(self):
        return self.mha.mha_version().decode()

    @property
    def blas(self):
        return self.mha.mha_blas_text().decode()


class Context:
    def __init__(self, library, isa, threads):
        self.library, self.mha, self.threads = library, library.mha, threads
        message = ctypes.create_string_buffer(512)
        options = ContextOptions(isa=isa.encode() if isa else None,
                                 message=ctypes.cast(message, c_char_p), message_bytes=512,
                                 threads=threads)
        self.pointer = c_void_p()
        if self.mha.mha_context_create(byref(options), byref(self.pointer)):
            raise SystemExit(f"compare.py: {message.value.decode()}")

    @property
    def isa(self):
        return self.mha.mha_context_isa(self.pointer).decode()

    @property
    def cpu(self):
        return self.mha.mha_context_cpu(self.pointer).decode()

    def layer(self, E, H, weights, biases, packed):
        """A layer that borrows [E, E] weights and [E] biases, in the order Q, K, V, O."""
        names = ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o")
        given = Weights(**dict(zip(names, map(view, (*weights, *biases)))))
        layer = c_void_p()
        self.check(self.mha.mha_layer_create(self.pointer, LayerShape(E=E, H=H), given, BORROW,
                                             byref(layer)))
        if packed:
            self.check(self.mha.mha_layer_pack(self.pointer, layer, 0))
        return layer

    def caller(self, inputs, options, outputs, layer=None):
        """A function without arguments that does the call. It keeps the structs, not the arrays."""
        operands = (inputs, options, outputs)
        function = self.mha.mha_forward if layer else self.mha.mha_attention
        arguments = (self.pointer, *((layer,) if layer else ()), *map(byref, operands))

        def run():
            status = function(*arguments)
            if status:
                self.check(status)

        run.keep = operands
        return run

    def check(self, status):
        if status:
            message = self.mha.mha_context_message(self.pointer).decode()
            raise RuntimeError(f"libmha: status {status}: {message}")
