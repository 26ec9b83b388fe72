"""Parts of parameters that tables store: a whole parameter, or one of its blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.errors import RunError
from placer.tables.initial import initial_values


@dataclass(frozen=True, slots=True)
class ParameterBlock:
    """Elements [start, stop) of a parameter flattened in C order.

    Attributes:
        parameter: the name of the parameter.
        name: the parameter's name if the block is all of it, else `h1.w.block0`.
        shape: the block's shape in node programs: flat if the parameter is sliced.
        start, stop: the range of elements.
        parameter_shape: the shape of the whole parameter.
        gradient: the name of the value that updates the block, if any.
        decays: whether weight decay applies to the block.
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

    def initial_values(
        self,
        initializers: Mapping[str, initial_values.Initializer],
        seed: int,
        dtype: str,
    ) -> npt.NDArray[Any]:
        """Return the initial values of the block, an array of `shape` and `dtype`.

        `initializers` maps names of whole parameters to their initializers.
        """
        return initial_values.compute_values(
            initializers[self.parameter],
            seed=seed,
            name=self.parameter,
            shape=self.parameter_shape,
            start=self.start,
            stop=self.stop,
            dtype=dtype,
        ).reshape(self.shape)


def check_fits(
    table: str,
    blocks: Sequence[ParameterBlock],
    dtype: np.dtype[Any],
    arrays: Sequence[Any],
    noun: str,
) -> list[Any]:
    """Return `arrays` as a list after checking that they fit the blocks of a table.

    `noun` is what the message calls an array, such as `gradient`. Raises RunError
    unless there is one array per block, of the block's shape and of `dtype`.
    """
    if len(arrays) != len(blocks):
        raise RunError(f"table {table}: {len(arrays)} {noun}s for {len(blocks)} blocks")
    for block, array in zip(blocks, arrays, strict=True):
        if array.shape != block.shape or array.dtype != dtype:
            raise RunError(
                f"table {table}: {noun} of {block.name} is"
                f" {array.dtype}{list(array.shape)},"
                f" the block is {dtype}{list(block.shape)}"
            )
    return list(arrays)


def check_slots(
    table: str, kept: Mapping[str, object], slots: Mapping[str, object]
) -> None:
    """Raise RunError unless `slots` are those that the table keeps."""
    if slots.keys() != kept.keys():
        raise RunError(
            f"table {table} has {_list_slots(kept)},"
            f" but the argument has {_list_slots(slots)}"
        )


def _list_slots(slots: Mapping[str, object]) -> str:
    return " and ".join(slots) if slots else "no slots"
