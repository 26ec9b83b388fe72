"""Stages the terms of sums in shared memory, from which the target reads them in place.

This copies once, and avoids handing chunks of a pool back and forth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from placer.channel.interface import Array, Channel
from placer.system.memory import aligned

SMALL: Final = 64 << 10
"""Largest message in bytes that is sent without staging, because staging would not pay off."""


@dataclass(slots=True)
class Staging:
    """The staging memory of one node: two alternating buffers for each edge and target.

    A buffer is reused two steps later. By then the target has read it: in the step between,
    this node received a message that the target sent after it had used the data.
    """

    channel: Channel
    _buffers: dict[tuple[int, str], tuple[list[Array], list[Array]]] = field(
        default_factory=dict
    )
    _shares: dict[str, bool] = field(default_factory=dict)

    def stage(self, edge: int, target: str, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return copies of flat arrays in shared memory. Small arrays are returned
        unchanged, as are arrays for a target that is not connected by shared memory."""
        nbytes = [array.nbytes for array in arrays]
        if sum(nbytes) <= SMALL or not self._is_shared(target):
            return arrays
        key = edge, target
        if key not in self._buffers:
            self._buffers[key] = self._new(arrays, nbytes), self._new(arrays, nbytes)
        now, other = self._buffers[key]
        self._buffers[key] = other, now
        for copy, array in zip(now, arrays, strict=True):
            np.copyto(copy, array)
        return now

    def _is_shared(self, target: str) -> bool:
        if target not in self._shares:
            stream = self.channel.streams().get(target)
            self._shares[target] = stream == "shared memory"
        return self._shares[target]

    def _new(self, arrays: Sequence[Array], nbytes: Sequence[int]) -> list[Array]:
        offsets, total = aligned.aligned_offsets(nbytes)
        memory = self.channel.share(total)
        return [
            memory[offset : offset + array.nbytes].view(array.dtype)
            for offset, array in zip(offsets, arrays, strict=True)
        ]
