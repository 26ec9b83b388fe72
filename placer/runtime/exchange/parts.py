"""Parts of arrays, as programs send them to the nodes that store them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from placer.channel.interface import Array
from placer.errors import RunError
from placer.plan.plan import EdgeValue


@dataclass(frozen=True, slots=True)
class Part:
    """The elements [start, stop) of an array, flattened in C order; copies nothing.

    Attributes:
        array: an array of any shape, in host memory or on a device.
        start: the first element.
        stop: the element after the last.
    """

    array: Any
    start: int
    stop: int

    @property
    def values(self) -> Array:
        """The elements as a flat array, a view if the array is in host memory."""
        return np.asarray(self.array).reshape(-1)[self.start : self.stop]

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        """Refuse the conversion to an array: the edge sends the whole value, not a part."""
        del dtype, copy
        raise RunError(
            f"elements {self.start}:{self.stop} are sent where the build sends the whole"
            " value",
            hint="run the program as `placer compile` wrote it",
        )


def array_to_send(value: Any, planned: EdgeValue) -> Array:
    """Return the array to send for an argument of a program's call.

    Args:
        value: an array, or a part of one if the edge sends elements `start` to `stop`.
        planned: the value of the edge.

    Raises:
        RunError: if the program sends other elements than the edge declares.
    """
    if planned.start is None:
        return np.asarray(value)
    if (
        type(value) is Part
        and value.start == planned.start
        and value.stop == planned.stop
    ):
        return value.values
    raise _other_elements(value, planned)


def _other_elements(value: Any, planned: EdgeValue) -> RunError:
    sent = "the whole value"
    if isinstance(value, Part):
        sent = f"elements {value.start}:{value.stop}"
    return RunError(
        f"the program sends {sent} of '{planned.operand}', but the build sends elements"
        f" {planned.start}:{planned.stop}",
        hint="run the program as `placer compile` wrote it",
    )
