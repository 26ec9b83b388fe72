"""Slices parameters into blocks, and assigns the blocks to servers.

With `rounding="floor"` the blocks match PaddlePaddle's `slice_variable`.
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
    """Return the size of each block of a parameter, in elements.

    A parameter has at most one block per `min_block` elements, rounded up (`ceil`) or
    down (`floor`), and at most one per server. Blocks hold whole rows; the last block may
    be shorter.

    Args:
        shape: the shape of the parameter.
        servers: the number of servers.
        min_block: how many elements a parameter needs for each of its blocks, before
            rounding. A block may be smaller.
        rounding: how to round the number of blocks, `ceil` or `floor`.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> slice_sizes([10, 1000], servers=3)
        (5000, 5000)
        >>> slice_sizes([10, 1000], servers=3, rounding="floor")
        (10000,)
    """
    if servers < 1:
        raise ValueError("servers must be at least 1")
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
        name: the parameter's name if it is a single block, else `h1.w.block0`.
        start: the first element.
        stop: the end of the block.
        shape: the block's shape in node programs; flat if the parameter is sliced.
        gradient: the name of the value that updates the block, if any.
        decays: whether the optimizer's weight decay applies.
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
    """Slice a parameter into blocks of the given sizes (see `slice_sizes`).

    Blocks are named `w.block0`, `w.block1` and so on. A single block has the name of the
    parameter.
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
    """Assign blocks to servers in turn, across all parameters."""
    return tuple(i % servers for i in range(len(blocks)))


def by_hash(blocks: Sequence[Block], servers: int) -> tuple[int, ...]:
    """Assign each block by a hash of its name, equal in all processes."""
    return tuple(
        int.from_bytes(hashlib.sha256(block.name.encode()).digest()[:8], "big")
        % servers
        for block in blocks
    )


def balance_by_size(loads: Sequence[int], stored: Sequence[int]) -> tuple[int, ...]:
    """Assign blocks to the least loaded server, largest block first.

    Ties go to the first server.

    Args:
        loads: the bytes of each block with its slots.
        stored: the bytes that each server already stores.

    Returns:
        The server of each block.
    """
    servers = [(load, server) for server, load in enumerate(stored)]
    heapify(servers)
    chosen = [0] * len(loads)
    for i in sorted(range(len(loads)), key=lambda i: (-loads[i], i)):
        load, chosen[i] = servers[0]
        heapreplace(servers, (load + loads[i], chosen[i]))
    return tuple(chosen)


DISPATCH: dict[str, Dispatch] = {"round_robin": round_robin, "hash": by_hash}
"""The dispatch functions by their name in a spec; these depend only on the blocks."""


def slice_merged(
    parameters: Sequence[tuple[str, Sequence[int]]], servers: int
) -> tuple[tuple[Block, int], ...]:
    """Slice all parameters as one flat array with an equal share for each server.

    A share has `total // servers + 1` elements; the last server stores the rest. This
    follows PaddlePaddle's merged dense table.

    Args:
        parameters: the name and shape of each parameter.
        servers: the number of servers.

    Returns:
        Each block with its server.
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
