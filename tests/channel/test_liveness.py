"""Detection of lost peers, with times that the tests choose."""

from __future__ import annotations

import pytest

from placer.channel.liveness import Liveness
from placer.errors import RunError


def listen(live: Liveness, start: float, end: float) -> list[str]:
    """Check every quarter of a second; return the peers lost at the end."""
    lost: list[str] = []
    for i in range(int((end - start) * 4) + 1):
        lost = live.lost_peers(start + i / 4)
    return lost


def test_peer_that_is_silent_too_long_is_lost():
    live = Liveness(lost_after=8, beat=1)
    live.hear("a", 0)
    live.hear("b", 0)
    assert listen(live, 0, 5) == []
    live.hear("b", 5)
    assert listen(live, 5, 8) == []
    assert listen(live, 8, 8.5) == ["a"]
    assert listen(live, 8.5, 13.25) == ["a", "b"]


def test_peer_is_supervised_from_first_heartbeat_until_goodbye():
    live = Liveness(lost_after=8, beat=1)
    assert listen(live, 0, 100) == []
    live.hear("a", 100)
    assert listen(live, 100, 105) == []
    live.forget("a")
    assert listen(live, 105, 200) == []


def test_no_peer_is_lost_after_this_node_was_stopped():
    live = Liveness(lost_after=8, beat=1)
    live.hear("a", 0)
    assert listen(live, 0, 3) == []
    assert live.lost_peers(1000) == []
    assert listen(live, 1000, 1008) == []
    assert listen(live, 1008, 1008.5) == ["a"]


def test_lost_after_must_exceed_two_beats():
    with pytest.raises(RunError, match="more than two beats"):
        Liveness(lost_after=2, beat=1)
