"""The types that channels and their callers share: addresses, pieces, root causes."""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from placer.errors import RunError

Array = npt.NDArray[Any]
ArrayType = tuple[np.dtype[np.generic], tuple[int, ...]]
"""The dtype and the shape of an array."""
Piece = tuple[int, int, Array]
"""Part of a message: the index of an array, the index of the first element, and a 1-D
view of elements."""


class Key(NamedTuple):
    """The address of a message, besides its source.

    `edge` is the number of the edge in the plan; numbers below 0 are the runtime's own
    control messages. Each field is a signed 64-bit integer.
    """

    edge: int
    step: int
    microbatch: int = 0

    def __str__(self) -> str:
        text = f"edge {self.edge}, step {self.step}"
        return f"{text}, microbatch {self.microbatch}" if self.microbatch else text


MAX_TEXT: Final = 8192
"""Characters of a text that a node accepts from another."""
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]


class Cause(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The root cause of a failed run: which node failed, where, and what happened."""

    node: Text
    where: Text
    what: Text

    def __str__(self) -> str:
        return ": ".join(part for part in (self.node, self.where, self.what) if part)


class Aborted(RunError):  # noqa: N818 - what happened to the run, not to the call
    """The run has failed, here or on another node; `cause` is the root cause."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(str(cause))
        self.cause = cause
