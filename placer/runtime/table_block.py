"""What a table holds of a parameter: all of it, or a run of its elements."""

from __future__ import annotations

from dataclasses import dataclass


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
