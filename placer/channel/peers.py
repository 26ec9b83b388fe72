"""The state of a node's peers: whether they are alive, and their activity.

Peers send a heartbeat and their status every second. A silent peer may be paused, or may hold the
Python interpreter. `Channel.on_peer` decides how the run reacts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final, NamedTuple

from placer.channel.types import MAX_TEXT, Text
from placer.errors import RunError
from placer.system.printable import make_printable

SILENT_AFTER: Final = 8.0
"""Seconds after which a peer without a heartbeat counts as silent."""
MAX_CHAIN: Final = 16
"""The largest number of nodes in a chain of waits."""


class PeerState(StrEnum):
    """The state of a peer. A silent peer that is heard again has "returned"."""

    ALIVE = "alive"
    SILENT = "silent"
    LOST = "lost"
    RETURNED = "returned"


class Doing(NamedTuple):
    """The activity of a node, and its duration in seconds."""

    node: Text
    what: Text
    seconds: float


Status = tuple[Doing, ...]
"""A chain of waits: each node waits for the next one, and the last one is the cause."""


@dataclass(frozen=True, slots=True)
class PeerEvent:
    """A change of a peer's state; `seconds` is how long it was silent."""

    peer: str
    state: PeerState
    seconds: float = 0.0


class Peers:
    """The time when each peer was last heard, in monotonic seconds.

    A peer is joining until it is heard for the first time. Silence counts only while this
    node was checking. If the checks were interrupted (the process was stopped, the machine
    suspended), silence proves nothing, and every peer gets a new interval. Not thread-safe:
    one thread uses it.

    Raises RunError unless `lost_after` is more than two intervals of `beat` seconds.
    """

    def __init__(self, lost_after: float, beat: float) -> None:
        if not 0 < 2 * beat < lost_after:
            raise RunError(
                f"lost_after ({lost_after:g} s) must be more than two beats of {beat:g} s"
            )
        self._limits = {
            PeerState.ALIVE: min(max(SILENT_AFTER, 2 * beat), lost_after / 2),
            PeerState.SILENT: lost_after,
        }
        self._last_heard: dict[str, float] = {}
        self._states: dict[str, PeerState] = {}
        self._last_check = inf  # no check yet, so none was interrupted

    def hear(self, peer: str, now: float) -> list[PeerEvent]:
        """Record a sign of life of `peer`; return the change of its state, if any."""
        before = self._states.get(peer)
        silence = now - self._last_heard.get(peer, now)
        self._last_heard[peer] = now
        if before is PeerState.ALIVE:
            return []
        self._states[peer] = PeerState.ALIVE
        returned = before is PeerState.SILENT
        state = PeerState.RETURNED if returned else PeerState.ALIVE
        return [PeerEvent(peer, state, silence)]

    def is_alive(self, peer: str) -> bool:
        """Whether a peer was heard and is not silent."""
        return self._states.get(peer) is PeerState.ALIVE

    def forget(self, peer: str) -> None:
        """Stop watching `peer`: it said goodbye, or it was reported lost."""
        self._last_heard.pop(peer, None)
        self._states.pop(peer, None)

    def check(self, now: float) -> list[PeerEvent]:
        """Return the peers that have become silent or lost; call it several times per interval."""
        interrupted = now - self._last_check > self._limits[PeerState.ALIVE] / 2
        self._last_check = now
        if interrupted:
            self._last_heard = dict.fromkeys(self._last_heard, now)
        events = []
        for peer, at in list(self._last_heard.items()):
            state = self._states[peer]
            if now - at > self._limits[state]:
                if state is PeerState.ALIVE:
                    self._states[peer] = PeerState.SILENT
                    events.append(PeerEvent(peer, PeerState.SILENT, now - at))
                else:
                    self.forget(peer)
                    events.append(PeerEvent(peer, PeerState.LOST, now - at))
        return events


def own_status(
    node: str,
    what: str,
    waits_for: Sequence[str],
    statuses: Mapping[str, Status],
    elapsed: float,
) -> Status:
    """Return the status of a node, followed by the status of a node that it waits for.

    `statuses` are the known statuses of all nodes; the node's own is `elapsed` seconds old.
    """
    what = make_printable(what[:MAX_TEXT])
    before = statuses.get(node)
    is_same = before is not None and before[0].what == what
    own = Doing(node, what, before[0].seconds + elapsed if before and is_same else 0.0)
    for peer in waits_for:
        rest = statuses.get(peer)
        if rest and all(each.node != node for each in rest):
            return (own, *rest)[:MAX_CHAIN]
    return (own,)
