"""When silence means loss, on a clock that the test turns."""

from __future__ import annotations

import pytest

from placer.channel.liveness import Liveness
from placer.errors import RunError


def listen(live: Liveness, start: float, end: float) -> list[str]:
    """Check every quarter of a second; the peers lost by the end."""
    lost: list[str] = []
    for i in range(int((end - start) * 4) + 1):
        lost = live.lost(start + i / 4)
    return lost


def test_a_peer_that_was_silent_for_too_long_is_lost():
    live = Liveness(lost_after=8, beat=1)
    live.hear("a", 0)
    live.hear("b", 0)
    assert listen(live, 0, 5) == []
    live.hear("b", 5)
    assert listen(live, 5, 8) == []
    assert listen(live, 8, 8.5) == ["a"]
    assert listen(live, 8.5, 13.25) == ["a", "b"]


def test_a_peer_is_watched_from_its_first_sign_until_it_takes_its_leave():
    live = Liveness(lost_after=8, beat=1)
    assert listen(live, 0, 100) == []
    live.hear("a", 100)
    assert listen(live, 100, 105) == []
    live.forget("a")
    assert listen(live, 105, 200) == []


def test_nobody_is_lost_because_this_node_itself_was_stopped():
    live = Liveness(lost_after=8, beat=1)
    live.hear("a", 0)
    assert listen(live, 0, 3) == []
    assert live.lost(1000) == []
    assert listen(live, 1000, 1008) == []
    assert listen(live, 1008, 1008.5) == ["a"]


def test_lost_after_must_leave_room_for_two_beats():
    with pytest.raises(RunError, match="more than two beats"):
        Liveness(lost_after=2, beat=1)
