"""What a table holds of a parameter: all of it, or a run of its elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.errors import RunError
from placer.tables.initial import initial_values


@dataclass(frozen=True, slots=True)
class Block:
    """Elements [start, stop) of a parameter flattened in C order.

    `name` is the parameter's name where it is whole, else `h1.w.block0`; `shape` is
    the block as programs see it: flat where the parameter is cut. `gradient` names the
    value that an update takes; `decays` says whether weight decay is for it.
    """

    parameter: str
    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    parameter_shape: tuple[int, ...]
    gradient: str | None = None
    decays: bool = True

    @property
    def size(self) -> int:
        return self.stop - self.start

    def initial(
        self, inits: Mapping[str, initial_values.Init], seed: int, dtype: str
    ) -> npt.NDArray[Any]:
        """What the block holds at first; `inits` are those of whole parameters."""
        return initial_values.values(
            inits[self.parameter],
            seed=seed,
            name=self.parameter,
            shape=self.parameter_shape,
            start=self.start,
            stop=self.stop,
            dtype=dtype,
        ).reshape(self.shape)


def fitting(
    table: str,
    blocks: Sequence[Block],
    dtype: np.dtype[Any],
    arrays: Sequence[Any],
    what: str,
) -> list[Any]:
    """The arrays, one per block of a table; RunError where they are not."""
    if len(arrays) != len(blocks):
        raise RunError(f"table {table}: {len(arrays)} {what}s for {len(blocks)} blocks")
    for block, array in zip(blocks, arrays, strict=True):
        if array.shape != block.shape or array.dtype != dtype:
            raise RunError(
                f"table {table}: {what} of {block.name} is"
                f" {array.dtype}{list(array.shape)},"
                f" the block is {dtype}{list(block.shape)}"
            )
    return list(arrays)
