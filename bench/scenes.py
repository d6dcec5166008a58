"""The scenes, their operands, and what is expected of them in double precision."""

import mmap
import subprocess
from dataclasses import dataclass

import numpy

SHORT = ("minilm", "bert512", "gpt2", "swin", "minilm-layer", "bert-layer")


@dataclass(frozen=True)
class Scene:
    """Sizes by the letters of mha.h. `what` is attention, plain or packed (layers), or projection,
    whose L rows go from K = E columns to N = D."""

    name: str
    what: str
    B: int
    H: int
    G: int
    L: int
    S: int
    D: int
    E: int
    causal: bool = False
    bias: bool = False
    window: int = 0
    lengths: tuple = ()

    @property
    def is_layer(self):
        return self.what in ("plain", "packed")

    def sees(self, b):
        """The keys that each query of a sample sees: a boolean array [L, S]."""
        query, key = numpy.arange(self.L)[:, None], numpy.arange(self.S)[None, :]
        length = self.lengths[b] if self.lengths else max(self.L, self.S)
        seen = (query < length) & (key < length)
        if self.causal:
            seen &= key <= query
        if self.window:
            seen &= key > query - self.window
        return seen

    def pairs(self):
        if not (self.causal or self.lengths):
            return self.B * self.L * self.S
        return sum(int(self.sees(b).sum()) for b in range(self.B))

    def flops(self):
        """Useful operations: pairs of a query and a key that nobody sees are not counted."""
        if self.what == "projection":
            return 2 * self.L * self.E * self.D
        return 4 * self.pairs() * self.H * self.D + 8 * self.B * self.L * self.E * self.E

    def bytes(self):
        """What has to be read or written once."""
        if self.what == "projection":
            return 4 * (self.L * (self.E + self.D) + self.E * self.D)
        if self.is_layer:
            return 4 * (2 * self.B * self.L * self.E + 4 * self.E * self.E + 4 * self.E)
        queries, keys = self.B * self.H * self.L * self.D, self.B * self.G * self.S * self.D
        return 4 * (2 * queries + 2 * keys + (self.H * self.L * self.S if self.bias else 0))


def load(build):
    """All scenes: those that the command mha knows, in its order, and projections by themselves."""
    lines = subprocess.run([f"{build}/mha", "bench", "--list"], check=True, text=True,
                           capture_output=True).stdout.splitlines()
    scenes = []
    for line in lines[1:]:
        name, what, *words = line.split()
        B, H, G, L, S, D, E = map(int, words[:7])
        options = dict((word.split("=") + [""])[:2] for word in words[7:])
        lengths = tuple(map(int, options.get("lengths", "").split(","))) \
            if "lengths" in options else ()
        scenes.append(Scene(name, what, B, H, G, L, S, D, E, "causal" in options,
                            "bias" in options, int(options.get("window", 0)), lengths))
    if any(scene.what == "packed" for scene in scenes):
        scenes += [Scene(f"proj-{rows}-{N}", "projection", 1, 1, 1, rows, rows, N, 768)
                   for rows in (1, 8, 128, 1024) for N in (768, 2304)]
    return scenes


# ---- operands ------------------------------------------------------------------------------------

LARGE_PAGE = 2 << 20


def empty(*shape, dtype=numpy.float32):
    """An array on large pages where the system has them, for all contenders alike."""
    count = int(numpy.prod(shape)) * numpy.dtype(dtype).itemsize
    block = mmap.mmap(-1, count + 2 * LARGE_PAGE)
    block.madvise(mmap.MADV_HUGEPAGE)
    bytes_ = numpy.frombuffer(block, dtype=numpy.uint8)
    start = -bytes_.ctypes.data % LARGE_PAGE
    return bytes_[start:start + count].view(dtype).reshape(shape)


def placed(array):
    """A contiguous copy of an array on such pages."""
    copy = empty(*array.shape, dtype=array.dtype)
    copy[...] = array
    return copy


class Operands:
    """Random operands of a scene. Attention: query, key, value [B, heads, rows, D], perhaps bias
    [1, H, L, S]. Layer: x [B, L, E], weights and biases of Q, K, V, O. Projection: x, a weight."""

    def __init__(self, scene):
        random = numpy.random.default_rng(1)

        def normal(*shape, deviation=1.0):
            array = empty(*shape)
            random.standard_normal(dtype=numpy.float32, out=array)
            array *= numpy.float32(deviation)
            return array

        s = scene
        self.bias = None
        if s.what == "projection":
            self.x = normal(s.L, s.E)
            self.weights = [normal(s.D, s.E, deviation=s.E**-0.5)]
        elif s.is_layer:
            self.x = normal(s.B, s.L, s.E)
            self.weights = [normal(s.E, s.E, deviation=s.E**-0.5) for _ in range(4)]
            self.biases = [normal(s.E, deviation=0.1) for _ in range(4)]
        else:
            self.query = normal(s.B, s.H, s.L, s.D)
            self.key = normal(s.B, s.G, s.S, s.D)
            self.value = normal(s.B, s.G, s.S, s.D)
            if s.bias:
                self.bias = normal(1, s.H, s.L, s.S)

    def mask(self, scene):
        """What a peer without lengths and windows needs: who sees whom, [B or 1, 1, L, S]. Rows
        beyond a sample's length see its keys like the others; nobody looks at them."""
        s = scene
        if s.lengths:
            keys = numpy.arange(s.S) < numpy.array(s.lengths)[:, None]
            return keys[:, None, None, :].repeat(s.L, axis=2)
        return s.sees(0)[None, None]


def additive(mask):
    return placed(numpy.where(mask, numpy.float32(0), numpy.float32(-numpy.inf)))


# ---- what is expected ----------------------------------------------------------------------------

SAMPLED_ROWS = 12


def softmax(scores):
    weights = numpy.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def attend(query, key, value, seen, bias=None):
    """One row [H, D] over keys [H, S, D], in double; a row that sees nothing is 0."""
    if not seen.any():
        return numpy.zeros(query.shape)
    scores = numpy.einsum("hd,hsd->hs", query, key[:, seen]) / numpy.sqrt(query.shape[-1])
    if bias is not None:
        scores += bias[:, seen]
    return numpy.einsum("hs,hsd->hd", softmax(scores), value[:, seen])


def expected_rows(scene, operands):
    """Pairs of an index into the result and the float64 row that is expected there."""
    s, o = scene, operands
    wide = numpy.float64
    if s.what == "projection":
        for row in spread(s.L):
            yield (row,), o.weights[0].astype(wide) @ o.x[row].astype(wide)
        return
    sample, made = None, None
    for row in spread(s.B * s.L):
        b, i = divmod(row, s.L)
        if b != sample:
            sample, made = b, (s.sees(b), *heads_of(s, o, b))
        seen, query, key, value = made
        bias = o.bias[0, :, i].astype(wide) if s.bias else None
        heads = attend(query[:, i], key, value, seen[i], bias)
        if s.is_layer:
            yield (b, i), o.weights[3].astype(wide) @ heads.reshape(-1) + o.biases[3]
        else:
            yield (b, slice(None), i), heads


def heads_of(scene, operands, b):
    """Query, key, value of a sample in double, [H, rows, D] each."""
    s, o = scene, operands
    if s.is_layer:
        x = o.x[b].astype(numpy.float64)
        return [(x @ o.weights[i].T + o.biases[i]).reshape(s.L, s.H, s.D).transpose(1, 0, 2)
                for i in range(3)]
    return [o.query[b].astype(numpy.float64)] + [
        array[b].astype(numpy.float64).repeat(s.H // s.G, axis=0) for array in (o.key, o.value)]


def spread(n):
    """Some of n rows, the first and the last among them."""
    return sorted({int(row) for row in numpy.linspace(0, n - 1, SAMPLED_ROWS)})
