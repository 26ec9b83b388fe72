"""One pass of a kernel over a table's elements, in chunks as gradients come in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.errors import RunError
from placer.tables.block import Block

Array = npt.NDArray[Any]
Kernel = Callable[..., None]

FUSED = 8
"""So many gradients a kernel sums by itself; more are summed before, tile by tile."""
TILE = 1 << 16
"""Elements that are worked on at once where arrays are copied first: they stay in the
L2 cache."""


@dataclass(slots=True)
class Pass:
    """A pass in progress: each block's elements are gone over once, from its first on.

    `arrays` are what the kernel changes, flat; `before` holds the values that the first
    one takes over at first, if any; `offsets` and `numbers` are by block. `kernel` gives
    that for so many gradients. `real` is the dtype that is computed in: gradients of
    another are widened to it before they are summed, and what is changed is rounded
    once.
    """

    table: str
    blocks: Sequence[Block]
    offsets: Sequence[int]
    arrays: Sequence[Array]
    before: Array | None
    numbers: Sequence[tuple[Any, ...]]
    kernel: Callable[[int], Kernel]
    real: np.dtype[Any]
    done: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.done = [0] * len(self.blocks)

    def apply(self, block: int, start: int, gradients: Sequence[Any]) -> None:
        """Go over the next elements of a block, from `start` of the block on.

        `gradients` are flat arrays of one length and the table's dtype, one from each
        worker; they are summed in this order, and read where they lie. RunError where
        they do not fit.
        """
        chunk = self._fitting(self.blocks[block], start, gradients)
        if start != self.done[block]:
            raise RunError(
                f"table {self.table}: gradient of {self.blocks[block].name} came from"
                f" element {start} on, {self.done[block]} is next"
            )
        size, at = chunk[0].size, self.offsets[block] + start
        whole = self.before is None and self._reads(chunk)
        step = size if whole else TILE
        for low in range(0, size, max(1, step)):
            high = min(size, low + step)
            taken = chunk if whole else [array[low:high] for array in chunk]
            self._run(at + low, at + high, taken, self.numbers[block])
        self.done[block] += size

    def check_complete(self) -> None:
        """Raise RunError unless every element of every block was gone over."""
        for done, block in zip(self.done, self.blocks, strict=True):
            if done != block.size:
                raise RunError(
                    f"table {self.table}: gradient of {block.name} ended at element"
                    f" {done} of {block.size}"
                )

    def close(self) -> None:
        """Let the arrays go: who holds the pass holds nothing."""
        self.arrays, self.before = (), None

    def _run(
        self, low: int, high: int, chunk: Sequence[Array], numbers: tuple[Any, ...]
    ) -> None:
        arrays = [array[low:high] for array in self.arrays]
        if self.before is not None:
            arrays[0][...] = self.before[low:high]
        if self._reads(chunk):
            self.kernel(len(chunk))(*arrays, tuple(chunk), numbers)
            return
        # Where floats overflow the kernels say nothing either: the loss shows it.
        with np.errstate(all="ignore"):
            total = chunk[0].astype(self.real)
            for gradient in chunk[1:]:
                np.add(total, gradient, out=total)
            wide = [array.astype(self.real, copy=False) for array in arrays]
            self.kernel(1)(*wide, (total,), numbers)
            for array, computed in zip(arrays, wide, strict=True):
                if array is not computed:
                    array[...] = computed

    def _reads(self, chunk: Sequence[Array]) -> bool:
        """Whether the kernel takes these gradients as they are."""
        return fused(len(chunk), chunk[0].dtype, self.real)

    def _fitting(
        self, block: Block, start: int, gradients: Sequence[Any]
    ) -> Sequence[Array]:
        dtype = self.arrays[0].dtype
        chunk = [np.asarray(gradient) for gradient in gradients]
        assert chunk, block.name
        room = min(chunk[0].size, block.size - start)
        for array in chunk:
            if array.shape != (room,) or array.dtype != dtype:
                raise RunError(
                    f"table {self.table}: gradient of {block.name} from element"
                    f" {start} on is {array.dtype}{list(array.shape)}, {dtype}[{room}]"
                    " is expected"
                )
        return [
            array
            if array.flags.c_contiguous and array.flags.aligned
            else np.require(array, None, ["C", "A"])
            for array in chunk
        ]


def fused(sources: int, dtype: np.dtype[Any], real: np.dtype[Any]) -> bool:
    """Whether a kernel that computes in `real` takes so many gradients as they are; else
    it is given their sum."""
    return sources <= FUSED and dtype == real
