"""TCP connections that break: what was lost is sent again, to the same process only."""

from __future__ import annotations

import numpy as np
import pytest
from support.free_addresses import (
    BreakingProxy,
    eventually,
    exchange_messages,
    port,
)
from support.raw_frames import HUGE, LARGE, beat, content, message, piece, receive_sizes

from placer.channel.frames import Farewell, Goodbye, Message, Piece, encode
from placer.channel.interface import Aborted, Key

pytestmark = pytest.mark.usefixtures("threads_watched")


@pytest.mark.parametrize("lose_after", [1000, 13_000_000])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("transport", ["tcp", "tls"])
def test_what_was_lost_with_a_connection_is_sent_again(
    between, addresses, lose_after, whole
):
    with BreakingProxy(port(addresses["a:0"]), lose_after) as proxy:
        seen_by_b = {**addresses, "a:0": f"127.0.0.1:{proxy.port}"}
        channels = between(
            "a:0",
            "b:0",
            addresses={"a:0": addresses, "b:0": seen_by_b},
            beat=0.1,
            deadline=20.0,
        )
        sent = [np.arange(n, dtype=np.uint32) for n in (10, 200_000, 3_000_000, 7)]
        for step in (1, 2, 3):
            channels["b:0"].send("a:0", Key(1, step), sent)
            channels["b:0"].send("a:0", Key(2, step), sent[:1])
        for step in (1, 2, 3):
            if whole:
                got = channels["a:0"].receive("b:0", Key(1, step))
            else:
                got = [np.zeros_like(array) for array in sent]
                for index, first, view in channels["a:0"].pieces("b:0", Key(1, step)):
                    got[index][first : first + view.size] = view
            assert all(np.array_equal(g, s) for g, s in zip(got, sent, strict=True))
            (small,) = channels["a:0"].receive("b:0", Key(2, step))
            assert np.array_equal(small, sent[0])
        assert proxy.connections >= 2
        exchange_messages(channels, 5)
        channels["b:0"].close()


# Connections of the node that is played.


@pytest.fixture
def transport() -> str:
    """Connections of one machine do not break."""
    return "tcp"


def test_what_a_peer_lacks_after_a_break_is_sent_again(alone):
    channel, connect = alone
    with connect() as node:
        assert node.join().expected == 1
        channel.join()
        for nbytes in (5, HUGE, LARGE, 7):
            channel.send("b:0", Key(1, 1), [content(nbytes)])
        node.send(message(1, LARGE), piece(1, 0), message(2, 7))
        eventually(lambda: channel.mailbox.bytes_received == LARGE + 7)
    with connect() as node:
        answer = node.join(expected=4, incomplete=[(2, 4), (3, 1)])
        assert (answer.expected, answer.incomplete) == (3, [(1, 1)])
        seen = [node.read_until(Message, Piece) for _ in range(2)]
        assert [each.number for each in seen if isinstance(each, Message)] == [4]
        pieces = [each for each in seen if isinstance(each, Piece)]
        assert [(each.message, each.index) for each in pieces] == [(3, 1)]
        node.send(piece(1, 1))
        receive_sizes(channel, LARGE, 7)
        node.leave()


@pytest.mark.parametrize(
    ("expected", "incomplete"),
    [(1, []), (5, []), (4, [(3, 2)])],
    ids=["acknowledged", "ahead", "complete"],
)
def test_position_that_no_peer_can_have_ends_the_run(alone, expected, incomplete):
    """Three messages were sent, the last of two pieces; one was acknowledged."""
    channel, connect = alone
    with connect() as node:
        node.join()
        channel.join()
        for nbytes in (5, 5, LARGE):
            channel.send("b:0", Key(1, 1), [content(nbytes)])
        node.send(beat(received=1), message(1, 5))
        receive_sizes(channel, 5)
    with connect() as node:
        node.join(expected=expected, incomplete=incomplete)
        with pytest.raises(
            Aborted, match=r"b:0: .* sent an invalid frame: an impossible position"
        ):
            channel.receive("b:0", Key(2, 2))


def test_node_that_was_restarted_ends_the_run(alone, monkeypatch):
    monkeypatch.setattr("placer.channel.session.LATE_JOIN_WAIT", 0.01)
    channel, connect = alone
    with connect() as node:
        node.join()
        channel.join()
    with connect() as node:
        node.send(node.hello(node.welcome(), incarnation=8))
        assert node.refusal() == "the process was restarted"
    with pytest.raises(Aborted, match=r"b:0: seen from a:0: was restarted"):
        channel.receive("b:0", Key(1, 1))
    channel.close()


def test_a_restart_is_known_before_the_last_frames_are_read(alone, monkeypatch):
    """Another thread may be about to read them."""
    channel, connect = alone
    channel.continues = True
    monkeypatch.setattr(channel.mailbox, "read", lambda: False)
    with connect() as node:
        node.join()
        channel.join()
    with connect() as node:
        node.send(node.hello(node.welcome(), incarnation=8))
        assert node.refusal() == "the process was restarted"


def test_a_restart_of_a_silent_node_ends_the_run(alone, monkeypatch):
    """Its machine may have ended, so that its connection has not."""
    monkeypatch.setattr("placer.channel.session.LATE_JOIN_WAIT", 0.01)
    channel, connect = alone
    with connect() as first:
        first.join()
        channel.join()
        with connect() as second:
            second.send(second.hello(second.welcome(), incarnation=8))
            assert "the node already runs at 127.0.0.1:" in second.refusal()
        assert channel.aborted is None
        monkeypatch.setattr("placer.channel.peers.Peers.is_alive", lambda *_: False)
        with connect() as second:
            second.send(second.hello(second.welcome(), incarnation=8))
            assert second.refusal() == "the process was restarted"
        with pytest.raises(Aborted, match=r"b:0: seen from a:0: was restarted"):
            channel.receive("b:0", Key(1, 1))


def test_goodbye_is_said_again_over_a_new_connection(alone, spawn):
    channel, connect = alone
    with connect() as node:
        node.join()
        channel.join()
        channel.send("b:0", Key(1, 1), [content(5)])  # unconfirmed: a:0 waits for b:0
        closing = spawn(channel.close)
        node.read_until(Goodbye)
    with connect() as node:
        node.join()
        node.read_until(Goodbye)
        node.send(encode(Farewell()))
        node.end()
        closing.result(10)


def test_a_peer_that_ended_without_goodbye_does_not_hold_up_the_end(alone, spawn):
    """It has all that was sent to it, and does not listen any more."""
    channel, connect = alone
    with connect() as node:
        node.join()
        channel.join()
        channel.send("b:0", Key(1, 1), [content(5)])
        node.read_until(Message)
        node.send(beat(received=1))
        eventually(lambda: channel.links["b:0"].is_delivered)
    spawn(channel.close).result(10)
    assert channel.aborted is None
