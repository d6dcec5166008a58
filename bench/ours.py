"""libmha as a contender, and the BLAS that it is linked with as the peer of projections."""

import numpy

import scenes
from contender import Contender
from libmha import MASK_ADDITIVE, WINDOW_LEFT, Inputs, Options, Outputs, view


def contender(context, scene, operands):
    def prepare():
        context.library.set_blas_threads(context.threads)

    if scene.what == "projection":
        return projection(context, scene, operands)
    out = scenes.empty(*(operands.x if scene.is_layer else operands.query).shape)
    options = Options(causal=scene.causal)
    if scene.window:
        options.window, options.window_left = WINDOW_LEFT, scene.window - 1
    if scene.is_layer:
        layer = context.layer(scene.E, scene.H, operands.weights, operands.biases,
                              scene.what == "packed")
        run = context.caller(Inputs(query=view(operands.x)), options, Outputs(out=view(out)), layer)
        return Contender("mha", scene.what, run, lambda: out, prepare, operands)

    # [B, H, L, D] memory as [B, L, H, D]
    query, key, value, rows = (view(array.transpose(0, 2, 1, 3)) for array in
                               (operands.query, operands.key, operands.value, out))
    inputs = Inputs(query=query, key=key, value=value)
    if scene.bias:
        options.mask_kind, options.mask = MASK_ADDITIVE, view(operands.bias)
    lengths = numpy.array(scene.lengths, numpy.int32)
    if scene.lengths:
        inputs.query_lengths = inputs.key_lengths = view(lengths)
    run = context.caller(inputs, options, Outputs(out=rows))
    return Contender("mha", "attention", run, lambda: out, keep=(operands, lengths))


def projection(context, scene, operands):
    bench = context.library.bench
    x, w, out = operands.x, operands.weights[0], scenes.empty(scene.L, scene.D)
    made = bench.bench_projection_create(context.isa.encode(), context.threads, scene.L, scene.E,
                                         scene.D, w.ctypes.data)
    function = bench.bench_projection_run
    arguments = (made, x.ctypes.data, out.ctypes.data)
    return Contender("mha", "packed", lambda: function(*arguments), lambda: out, keep=operands)


def blas_ways(context, scene, operands):
    """cblas_sgemm on the weights as they are given."""
    if scene.what != "projection":
        return
    row_major, plain, transposed = 101, 111, 112
    rows, K, N = scene.L, scene.E, scene.D
    x, w, out = operands.x, operands.weights[0], scenes.empty(rows, N)
    sgemm = context.library.sgemm
    arguments = (row_major, plain, transposed, rows, N, K, 1.0, x.ctypes.data, K, w.ctypes.data, K,
                 0.0, out.ctypes.data, N)
    yield "sgemm", lambda: Contender("blas", "sgemm", lambda: sgemm(*arguments), lambda: out,
                                     lambda: context.library.set_blas_threads(context.threads))
