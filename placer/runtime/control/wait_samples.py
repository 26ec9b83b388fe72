"""Measures the share of its time in which a node waits for other nodes."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from types import CodeType
from typing import Final

from placer.channel.interface import Channel
from placer.channel.mailbox import WAIT_CODE
from placer.runtime.control.barrier import AHEAD, EVALUATION, EVENTS, STEP
from placer.runtime.control.wait_counts import WaitCounts
from placer.system.owned_threads import OwnedThreads

SAMPLE_INTERVAL: Final = 0.05
"""Seconds between two samples of a node."""
_MOSTLY: Final = 0.5
"""A node is named if it was waited for at least this often, relative to the node that was
waited for most often."""
_REPORTS: Final = frozenset({STEP, EVALUATION, AHEAD, EVENTS})
"""Edges on which the control node receives reports in the background."""
_WAITS: Final[frozenset[CodeType]] = frozenset({WAIT_CODE, OwnedThreads.wait.__code__})
"""The functions in which a compute thread waits: for a message, or for a thread that
exchanges messages."""


class WaitSamples:
    """Samples whether the compute thread of a node waits, and for which nodes.

    A sample reads the stack of the thread, so the steps need no code for it.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._thread: int | None = None
        self._samples = self._waiting = 0
        self._peers: Counter[str] = Counter()

    def begin(self) -> None:
        """Use the calling thread as the compute thread."""
        self._thread = threading.get_ident()

    def take(self) -> None:
        """Take a sample, in another thread than the compute thread."""
        if self._thread is None:
            return
        self._samples += 1
        if _waits(self._thread):
            peers = self._channel.waiting(_REPORTS)
            self._waiting += bool(peers)
            self._peers.update(peers)

    @property
    def counts(self) -> WaitCounts:
        """The counts of all samples. Any thread may read them."""
        peers = self._peers.copy()
        least = _MOSTLY * max(peers.values(), default=0)
        mostly = sorted(peer for peer, number in peers.items() if number >= least)
        return WaitCounts(self._samples, self._waiting, tuple(mostly))


def _waits(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code in _WAITS:
            return True
        frame = frame.f_back
    return False
