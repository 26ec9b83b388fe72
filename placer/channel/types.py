"""Types that channels and their callers share: arrays, addresses, pieces, limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
ArrayType = tuple[np.dtype[np.generic], tuple[int, ...]]
"""The dtype and the shape of an array."""
Piece = tuple[int, int, Array]
"""Part of a message: the index of an array, the index of the first element, and a 1-D view of the
elements."""
MAX_TEXT: Final = 8192
"""The largest number of characters in a text that a node accepts from another node."""
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]


class Key(NamedTuple):
    """The address of a message between two nodes.

    Each number is a signed 64-bit integer.

    Attributes:
        edge: the number of the edge in the plan; negative numbers are control messages of the
            runtime.
        step: the step.
        microbatch: the microbatch, or the batch of an evaluation.
    """

    edge: int
    step: int
    microbatch: int = 0

    def __str__(self) -> str:
        if self.edge < 0:
            return "a control message"
        text = f"edge {self.edge}, step {self.step}"
        return f"{text}, microbatch {self.microbatch}" if self.microbatch else text


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a channel.

    Attributes:
        bound: the largest number of bytes on the way from one peer.
        total: the largest number of bytes on the way from all peers together; each peer
            gets an equal part.
        max_message: the largest message in bytes, not counting memory of `share` that is
            passed on between processes without a copy.
        deadline: the longest time that a `send` or `receive` waits, in seconds.
        beat: seconds between two heartbeats.
    """

    bound: int = 64 << 20
    total: int = 512 << 20
    max_message: int = 1 << 40
    deadline: float = 600.0
    beat: float = 1.0

    def window(self, peers: int) -> int:
        """Return the number of bytes that may be on the way from each of `peers` peers."""
        return min(self.bound, self.total // max(1, peers))
