"""Applies gradients to a dense table in host memory, chunk by chunk as they arrive.

`placer.tables.device` updates tables on devices, `placer.tables.sparse.row_updates` rows of
sparse tables. The formulas are in `placer.tables.optimizer_rules`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.errors import RunError
from placer.plan.settings.training.slicing import Block

Array = npt.NDArray[Any]
Loop = Callable[..., None]

MAX_FUSED = 8
"""The largest number of gradients that a kernel sums. More gradients are summed before the
kernel runs, tile by tile."""
TILE = 1 << 16
"""The number of elements to copy and compute at a time. They fit into the L2 cache."""


@dataclass(slots=True)
class UpdatePass:
    """An update in progress. It visits each element of each block once, in order.

    Attributes:
        table: the name of the table, for messages.
        blocks: the blocks of the table.
        offsets: the offset of each block in the flat arrays.
        arrays: the flat arrays that the kernel changes, all of one dtype.
        previous_values: the array to read old values from, if the update is not in place;
            else empty.
        coefficients: the scale of the gradients and the record of numbers for each block.
        kernel_for: returns the kernel for a number of gradients.
        compute_dtype: the dtype of the computation. Gradients of another dtype are
            converted before they are summed, and results are rounded once.
        applied: the number of visited elements of each block, by index.
    """

    table: str
    blocks: Sequence[Block]
    offsets: Sequence[int]
    arrays: Sequence[Array]
    previous_values: tuple[Array, ...]
    coefficients: Sequence[tuple[Any, Array]]
    kernel_for: Callable[[int], Loop]
    compute_dtype: np.dtype[Any]
    applied: Counter[int] = field(default_factory=Counter, init=False)

    def apply(self, block: int, start: int, gradients: Sequence[Any]) -> None:
        """Apply gradients to the next elements of a block.

        Args:
            block: the index of the block.
            start: the index of the first element in the block.
            gradients: one flat array for each worker, of the same length and of the table's
                dtype. They are summed in this order, without a copy if possible.

        Raises:
            RunError: if gradients do not fit, or `start` is not the next element.
        """
        chunk = self._check_chunk(self.blocks[block], start, gradients)
        if start != self.applied[block]:
            raise RunError(
                f"table {self.table}: gradient of {self.blocks[block].name} starts at"
                f" element {start}, but element {self.applied[block]} is next"
            )
        size, offset = chunk[0].size, self.offsets[block] + start
        # Use tiles if `_run` copies, so that the copy is still cached for the kernel.
        fused = is_fused(len(chunk), chunk[0].dtype, self.compute_dtype)
        step = size if fused else TILE
        for low in range(0, size, max(1, step)):
            high = min(size, low + step)
            tile = chunk if fused else [array[low:high] for array in chunk]
            coefficients = self.coefficients[block]
            self._run(offset + low, offset + high, tile, coefficients, fused=fused)
        self.applied[block] += size

    def check_complete(self) -> None:
        """Raise RunError if an element of a block was not visited."""
        for i, block in enumerate(self.blocks):
            if self.applied[i] != block.numel:
                raise RunError(
                    f"table {self.table}: gradient of {block.name} ends at element"
                    f" {self.applied[i]} of {block.numel}"
                )

    def release(self) -> None:
        """Drop the arrays. Otherwise this object could keep a buffer from being reused."""
        self.arrays = self.previous_values = ()

    def _run(
        self,
        low: int,
        high: int,
        chunk: Sequence[Array],
        coefficients: tuple[Any, Array],
        *,
        fused: bool,
    ) -> None:
        read = tuple(array[low:high] for array in self.previous_values)
        written = tuple(array[low:high] for array in self.arrays)
        arrays = read + written
        if fused:
            self.kernel_for(len(chunk))(arrays, (tuple(chunk), *coefficients))
            return
        # Suppress warnings of overflows, because compiled kernels do not warn either. The
        # loss shows overflows.
        with np.errstate(all="ignore"):
            total = chunk[0].astype(self.compute_dtype)
            for gradient in chunk[1:]:
                np.add(total, gradient, out=total)
            converted = tuple(
                array.astype(self.compute_dtype, copy=False) for array in arrays
            )
            self.kernel_for(1)(converted, ((total,), *coefficients))
            for array, computed in zip(written, converted[len(read) :], strict=True):
                if array is not computed:
                    array[...] = computed

    def _check_chunk(
        self, block: Block, start: int, gradients: Sequence[Any]
    ) -> Sequence[Array]:
        dtype = self.arrays[0].dtype
        chunk = [np.asarray(gradient) for gradient in gradients]
        assert chunk, block.name
        size = min(chunk[0].size, block.numel - start)
        for array in chunk:
            if array.shape != (size,) or array.dtype != dtype:
                raise RunError(
                    f"table {self.table}: gradient of {block.name} from element"
                    f" {start} is {array.dtype}{list(array.shape)}, expected"
                    f" {dtype}[{size}]"
                )
        return [
            array
            if array.flags.c_contiguous and array.flags.aligned
            else np.require(array, None, ["C", "A"])
            for array in chunk
        ]


def is_fused(sources: int, dtype: np.dtype[Any], compute_dtype: np.dtype[Any]) -> bool:
    """Return True if a kernel sums the gradients, False if it receives their sum.

    Args:
        sources: the number of gradients.
        dtype: the dtype of the gradients.
        compute_dtype: the dtype in which the kernel computes.
    """
    return sources <= MAX_FUSED and dtype == compute_dtype
