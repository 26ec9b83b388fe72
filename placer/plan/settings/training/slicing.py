"""Slicing parameters into blocks, and dispatching the blocks to servers.

With `rounding="floor"` the blocks are those of PaddlePaddle's `slice_variable`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace
from itertools import accumulate, pairwise
from math import ceil, prod
from typing import Literal

from msgspec import Struct

from placer.plan.settings.fields import Size, ValueName

Rounding = Literal["ceil", "floor"]
MIN_BLOCK = 8192


def slice_sizes(
    shape: Sequence[int],
    servers: int,
    min_block: int = MIN_BLOCK,
    rounding: Rounding = "ceil",
) -> tuple[int, ...]:
    """Return the sizes, in elements, of the blocks of a parameter.

    There is at most one block for each `min_block` elements, rounded up (`ceil`) or
    down (`floor`), and at most one for each server. A block has whole rows, and the
    last one may be shorter. Raises ValueError for an argument that is out of range.

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


class Block(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The elements [start, stop) of a parameter, flattened in C order.

    Attributes:
        parameter: the name of the parameter.
        name: the parameter's name if the block is all of it, else `h1.w.block0`.
        start, stop: the range of elements.
        shape: the block's shape in node programs: flat if the parameter is sliced.
        gradient: the name of the value that updates the block, if any.
        decays: whether the optimizer's weight decay applies to the block.
    """

    parameter: str
    name: ValueName
    start: Size
    stop: Size
    shape: tuple[Size, ...]
    gradient: ValueName | None = None
    decays: bool = True

    @property
    def numel(self) -> int:
        return self.stop - self.start


def make_blocks(
    parameter: str, shape: Sequence[int], sizes: Sequence[int]
) -> tuple[Block, ...]:
    """Slice a parameter into blocks of these sizes, such as those of `slice_sizes`.

    Blocks are called `w.block0`, `w.block1` and so on; a single block has the name of
    the parameter.
    """
    if len(sizes) == 1:
        return (Block(parameter, parameter, 0, sizes[0], tuple(shape)),)
    edges = pairwise(accumulate(sizes, initial=0))
    return tuple(
        Block(parameter, f"{parameter}.block{i}", start, stop, (stop - start,))
        for i, (start, stop) in enumerate(edges)
    )


Dispatch = Callable[[Sequence[Block], int], tuple[int, ...]]


def round_robin(blocks: Sequence[Block], servers: int) -> tuple[int, ...]:
    """Assign blocks to servers in turn, continuing from one parameter to the next."""
    return tuple(i % servers for i in range(len(blocks)))


def by_hash(blocks: Sequence[Block], servers: int) -> tuple[int, ...]:
    """Assign each block by a hash of its name, which is the same in every process."""
    return tuple(
        int.from_bytes(hashlib.sha256(block.name.encode()).digest()[:8], "big")
        % servers
        for block in blocks
    )


def balance_by_size(loads: Sequence[int], stored: Sequence[int]) -> tuple[int, ...]:
    """Assign blocks, the largest first, each to the server that stores the least.

    Of equal servers the first is chosen. `loads` are the bytes of the blocks with their
    slots, `stored` the bytes that each server stores already. Returns the server of
    each block.
    """
    servers = [(load, server) for server, load in enumerate(stored)]
    heapify(servers)
    chosen = [0] * len(loads)
    for i in sorted(range(len(loads)), key=lambda i: (-loads[i], i)):
        load, chosen[i] = servers[0]
        heapreplace(servers, (load + loads[i], chosen[i]))
    return tuple(chosen)


DISPATCH: dict[str, Dispatch] = {"round_robin": round_robin, "hash": by_hash}
"""The dispatch functions that depend on the blocks only, by their name in a spec."""


def slice_merged(
    parameters: Sequence[tuple[str, Sequence[int]]], servers: int
) -> tuple[tuple[Block, int], ...]:
    """Slice all parameters as one: `total // servers + 1` elements for each server.

    The last server has the rest. `parameters` are (name, shape). Returns each block
    with its server. Source: PaddlePaddle's merged dense table.
    """
    share = sum(prod(shape) for _, shape in parameters) // servers + 1
    blocks: list[tuple[Block, int]] = []
    position = 0
    for name, shape in parameters:
        numel = prod(shape)
        cuts = [c for c in range(share, position + numel, share) if position < c]
        edges = [position, *cuts, position + numel]
        sizes = [b - a for a, b in pairwise(edges)]
        blocks += [
            (block, min((position + block.start) // share, servers - 1))
            for block in make_blocks(name, shape, sizes)
        ]
        position += numel
    return tuple(blocks)
