"""How a parameter is cut into blocks, and which server takes which block.

Source: seed 000; PaddlePaddle's `slice_variable` for `rounding="floor"`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import pairwise
from math import ceil, prod
from typing import Literal

Rounding = Literal["ceil", "floor"]
MIN_BLOCK = 8192


def slice_sizes(
    shape: Sequence[int],
    servers: int,
    min_block: int = MIN_BLOCK,
    rounding: Rounding = "ceil",
) -> tuple[int, ...]:
    """The sizes, in elements, of the blocks of a parameter over some servers.

    At most one block for each `min_block` elements, rounded up (`ceil`, seed 000) or
    down (`floor`, PaddlePaddle's code), and at most one a server; a block holds whole
    rows, and the last may be short.

    >>> slice_sizes([10, 1000], servers=3)
    (5000, 5000)
    >>> slice_sizes([10, 1000], servers=3, rounding="floor")
    (10000,)
    """
    if servers < 1:
        raise ValueError("there must be at least one server")
    if min_block < 1:
        raise ValueError("min_block must be at least 1")
    if rounding not in ("ceil", "floor"):
        raise ValueError(f"rounding must be 'ceil' or 'floor', not '{rounding}'")
    numel = prod(shape)
    if numel == 0:
        return (0,)
    most = ceil(numel / min_block) if rounding == "ceil" else numel // min_block
    count = min(servers, max(1, most))
    size = ceil(numel / count)
    if len(shape) > 1:
        row = prod(shape[1:])
        size = ceil(size / row) * row
    full, last = divmod(numel, size)
    return (size,) * full + ((last,) if last else ())


@dataclass(frozen=True, slots=True)
class Block:
    """Elements [start, stop) of a parameter, flattened in C order."""

    parameter: str
    name: str
    start: int
    stop: int

    @property
    def numel(self) -> int:
        return self.stop - self.start


def blocks(
    parameter: str,
    shape: Sequence[int],
    servers: int,
    min_block: int = MIN_BLOCK,
    rounding: Rounding = "ceil",
) -> tuple[Block, ...]:
    """The blocks of a parameter: `w.block0`, `w.block1`, …; uncut it keeps its name."""
    return _named(parameter, slice_sizes(shape, servers, min_block, rounding))


def _named(parameter: str, sizes: Sequence[int]) -> tuple[Block, ...]:
    found, start = [], 0
    for i, size in enumerate(sizes):
        name = parameter if len(sizes) == 1 else f"{parameter}.block{i}"
        found.append(Block(parameter, name, start, start + size))
        start += size
    return tuple(found)


Dispatch = Callable[[Sequence[Block], int], tuple[int, ...]]


def round_robin(found: Sequence[Block], servers: int) -> tuple[int, ...]:
    """Block after block to server after server, on from parameter to parameter."""
    return tuple(i % servers for i in range(len(found)))


def hashed(found: Sequence[Block], servers: int) -> tuple[int, ...]:
    """By a hash of the block's name that is the same in every process."""
    return tuple(
        int.from_bytes(hashlib.sha256(block.name.encode()).digest()[:8], "big")
        % servers
        for block in found
    )


def balanced(loads: Sequence[int], held: Sequence[int]) -> tuple[int, ...]:
    """A server for each block: the largest first, each onto the server that has the
    least; the first wins a tie. `loads` are the bytes of the blocks, with what optimizers
    keep of them, `held` what each server has already."""
    servers = [(load, server) for server, load in enumerate(held)]
    heapify(servers)
    chosen = [0] * len(loads)
    for i in sorted(range(len(loads)), key=lambda i: (-loads[i], i)):
        load, chosen[i] = servers[0]
        heapreplace(servers, (load + loads[i], chosen[i]))
    return tuple(chosen)


DISPATCH: dict[str, Dispatch] = {"round_robin": round_robin, "hash": hashed}
"""Those that look at the blocks alone."""


def merged(
    parameters: Sequence[tuple[str, int]], servers: int
) -> tuple[tuple[Block, int], ...]:
    """All parameters as one, `total // servers + 1` values a server, the last the rest.

    `parameters` are (name, number of elements). Gives each block with its server.
    Source: PaddlePaddle's merged dense table (seed 001).
    """
    share = sum(numel for _, numel in parameters) // servers + 1
    found: list[tuple[Block, int]] = []
    begin = 0
    for name, numel in parameters:
        cuts = [c for c in range(share, begin + numel, share) if begin < c]
        edges = [begin, *cuts, begin + numel]
        sizes = [b - a for a, b in pairwise(edges)]
        found += [
            (block, min((begin + block.start) // share, servers - 1))
            for block in _named(name, sizes)
        ]
        begin += numel
    return tuple(found)
