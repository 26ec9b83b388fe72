"""Who is alive: when each peer was last heard of, and when silence means loss."""

from __future__ import annotations

from placer.errors import RunError


class Liveness:
    """Times, in monotonic seconds, at which peers were heard of.

    A peer is lost when nothing came from it for `lost_after` seconds *while this node
    was listening*: when the checks themselves were interrupted (the process was
    stopped, the machine suspended) nobody is to blame, and every peer gets a fresh
    interval. `lost_after` must be more than two beats, else RunError.
    """

    def __init__(self, lost_after: float, beat: float) -> None:
        if not 0 < 2 * beat < lost_after:
            raise RunError(
                f"lost_after ({lost_after:g} s) must be more than two beats of {beat:g} s"
            )
        self._lost_after = lost_after
        self._heard: dict[str, float] = {}
        self._checked: float | None = None

    def hear(self, peer: str, now: float) -> None:
        """Something came from `peer`; from its first sign on it is watched."""
        self._heard[peer] = now

    def forget(self, peer: str) -> None:
        """`peer` took its leave: its silence is no longer a loss."""
        self._heard.pop(peer, None)

    def lost(self, now: float) -> list[str]:
        """The peers that are lost; asked several times in each `lost_after` seconds."""
        interrupted = (
            self._checked is not None and now - self._checked > self._lost_after / 2
        )
        self._checked = now
        if interrupted:
            self._heard = dict.fromkeys(self._heard, now)
        return [p for p, at in self._heard.items() if now - at > self._lost_after]
