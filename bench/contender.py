"""What takes part in a comparison: one way of computing a scene, ready to be called."""

from dataclasses import dataclass
from typing import Callable


def nothing():
    pass


@dataclass
class Contender:
    """`run` computes once and takes no arguments; it reads the operands where they lie. `result`
    gives what the last run left (or runs once more): [B, H, L, D] for attention, [B, L, E] for a
    layer, [rows, N] for a projection. `prepare` is called before a series of runs and not timed. `keep`
    is what lives as long: a runtime that was told where an array lies does not own it."""

    peer: str
    way: str
    run: Callable[[], None]
    result: Callable[[], object]
    prepare: Callable[[], None] = nothing
    keep: object = None
