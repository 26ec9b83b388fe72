"""States of peers, and who waits for whom, with times that the tests choose."""

from __future__ import annotations

import pytest

from placer.channel.peers import Doing, Peers, own_status
from placer.errors import RunError


def watch(peers: Peers, start: float, end: float) -> list[tuple[str, str]]:
    """Check every quarter of a second; return the changes."""
    changes = []
    for i in range(int((end - start) * 4) + 1):
        changes += [(each.peer, each.state) for each in peers.check(start + i / 4)]
    return changes


def hear(peers: Peers, peer: str, now: float) -> list[tuple[str, float]]:
    return [(each.state, each.seconds) for each in peers.hear(peer, now)]


def test_a_silent_peer_is_named_within_ten_seconds_and_lost_after_the_limit():
    peers = Peers(lost_after=60, beat=1)
    assert hear(peers, "a", 0) == hear(peers, "b", 0) == [("alive", 0)]
    assert watch(peers, 0, 4) == []
    assert hear(peers, "b", 4) == []
    assert watch(peers, 4, 8) == []
    assert watch(peers, 8, 8.5) == [("a", "silent")]
    assert watch(peers, 8.5, 60) == [("b", "silent")]
    assert watch(peers, 60, 60.5) == [("a", "lost")]
    assert watch(peers, 60.5, 64.25) == [("b", "lost")]
    assert watch(peers, 64.25, 200) == []


def test_a_silent_peer_that_is_heard_again_has_returned():
    peers = Peers(lost_after=60, beat=1)
    hear(peers, "a", 0)
    assert watch(peers, 0, 59) == [("a", "silent")]
    assert hear(peers, "a", 59) == [("returned", 59)]
    assert hear(peers, "a", 60) == []
    assert watch(peers, 60, 120.25) == [("a", "silent"), ("a", "lost")]


def test_a_peer_is_watched_from_its_first_heartbeat_until_goodbye():
    peers = Peers(lost_after=8, beat=1)
    assert watch(peers, 0, 100) == []
    hear(peers, "a", 100)
    assert watch(peers, 100, 103) == []
    peers.forget("a")
    assert watch(peers, 103, 200) == []


def test_no_peer_is_lost_after_this_node_was_stopped():
    peers = Peers(lost_after=8, beat=1)
    hear(peers, "a", 0)
    assert watch(peers, 0, 3) == []
    assert watch(peers, 1000, 1004) == []
    assert watch(peers, 1004, 1008.5) == [("a", "silent"), ("a", "lost")]


def test_lost_after_must_exceed_two_beats():
    with pytest.raises(RunError, match="more than two beats"):
        Peers(lost_after=2, beat=1)


def test_the_status_ends_with_the_node_that_all_others_wait_for():
    slow = Doing("worker:1", "step 5, reading rows", 30.0)
    known = {"ps:0": (Doing("ps:0", "step 6", 29.0), slow)}
    status = own_status("worker:0", "step 6", ["ps:0"], known, 1.0)
    assert status == (Doing("worker:0", "step 6", 0.0), *known["ps:0"])
    known["worker:0"] = status
    later = own_status("worker:0", "step 6", ["ps:1"], known, 7.0)
    assert later == (Doing("worker:0", "step 6", 7.0),)
    known["worker:0"] = later
    next_one = own_status("worker:0", "step 7", ["ps:1"], known, 1.0)
    assert next_one == (Doing("worker:0", "step 7", 0.0),)


def test_nodes_that_wait_for_each_other_have_a_status_that_ends():
    circle = {"ps:0": (Doing("ps:0", "step 6", 2.0), Doing("worker:0", "step 6", 1.0))}
    status = own_status("worker:0", "step 6", ["ps:0"], circle, 1.0)
    assert status == (Doing("worker:0", "step 6", 0.0),)
