"""Heartbeat timeouts: when each peer was last heard, and which peers are lost."""

from __future__ import annotations

from math import inf

from placer.errors import RunError


class Liveness:
    """Times, in monotonic seconds, at which each peer was last heard.

    A peer is lost when nothing came from it for `lost_after` seconds *while this node
    was checking*. When the checks themselves were interrupted (the process was stopped,
    the machine suspended), the silence proves nothing, and every peer gets a fresh
    interval. Not thread-safe: one thread uses it.

    Raises RunError unless `lost_after` is more than two intervals of `beat` seconds.
    """

    def __init__(self, lost_after: float, beat: float) -> None:
        if not 0 < 2 * beat < lost_after:
            raise RunError(
                f"lost_after ({lost_after:g} s) must be more than two beats of {beat:g} s"
            )
        self._lost_after = lost_after
        self._last_heard: dict[str, float] = {}
        self._last_check = inf  # none yet: nothing was interrupted

    def hear(self, peer: str, now: float) -> None:
        """Record a sign of life of `peer`; the first one starts its supervision."""
        self._last_heard[peer] = now

    def forget(self, peer: str) -> None:
        """Stop the supervision of `peer`: it said goodbye, or it was reported lost."""
        self._last_heard.pop(peer, None)

    def lost_peers(self, now: float) -> list[str]:
        """Return the peers that are lost; call it several times per `lost_after`."""
        interrupted = now - self._last_check > self._lost_after / 2
        self._last_check = now
        if interrupted:
            self._last_heard = dict.fromkeys(self._last_heard, now)
        return [p for p, at in self._last_heard.items() if now - at > self._lost_after]
