"""What a node acknowledges, tells and counts while other threads use the channel."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from support.raw_frames import HUGE, beat, message
from support.raw_node import RawNode

from placer.channel import link
from placer.channel.cause import Cause
from placer.channel.frames import Beat, Probe
from placer.channel.interface import Aborted, Key
from placer.channel.mailbox import Carrier, Mailbox
from placer.channel.resolver import Resolver
from placer.channel.types import Limits


@pytest.mark.parametrize("transport", ["tcp"])
def test_a_message_whose_pieces_are_to_come_is_not_acknowledged(alone, monkeypatch):
    """Another thread beats while the reader makes place for the message."""
    a, connect = alone
    made = link.PiecedMessage
    beats = []

    def slow(*arguments, **settings):
        a.links["b:0"].send_beat()
        return made(*arguments, **settings)

    monkeypatch.setattr(link, "PiecedMessage", slow)
    with connect() as node:
        node.join()
        a.join()
        node.send(message(1, HUGE))
        while len(beats) < 3:
            frame = node.read()
            if isinstance(frame, Beat):
                beats.append(frame.received)
        node.leave()
    assert set(beats) == {0}


@pytest.mark.parametrize(
    "limits", [{"bound": 1000, "deadline": 5, "beat": 100.0, "lost_after": 300.0}]
)
def test_credit_is_asked_for_again_when_another_message_takes_room(alone, spawn):
    a, connect = alone
    with connect() as node:
        node.join(window=1000)
        a.join()
        a.send("b:0", Key(1, 1), [np.zeros(500, np.uint8)])
        large = spawn(a.send, "b:0", Key(1, 2), [np.zeros(900, np.uint8)])
        wanted = read_wanted(node)
        assert wanted == 564 + 964 - 1000
        a.send("b:0", Key(1, 3), [np.zeros(100, np.uint8)])
        assert read_wanted(node, besides=wanted) == 564 + 164 + 964 - 1000
        node.send(beat(credit=564 + 164))
        large.result(10)
        node.send(beat(received=3))
        node.leave()


def read_wanted(node: RawNode, besides: int = 0) -> int:
    """Return the credit that the channel asks for next; heartbeats may repeat the last
    one, `besides`."""
    while (wanted := node.read_until(Beat).wanted) in (0, besides):
        pass
    return wanted


def test_a_failure_that_names_a_file_that_is_not_text_is_told(between):
    channels = between("a:0", "b:0")
    name = os.fsdecode(b"/data/\xff.csv")
    channels["b:0"].abort(Cause("b:0", "", f"cannot read {name}"))
    channels["b:0"].close()
    with pytest.raises(Aborted, match="cannot read /data/"):
        channels["a:0"].receive("b:0", Key(1, 1))


@pytest.mark.parametrize("how", ["receive", "pieces"])
def test_shared_arrays_between_others_without_a_pool(between, how):
    """A window of less than a piece has no chunks: pieces go over the socket."""
    channels = between("a:0", "b:0", bound=500_000)
    shared = channels["b:0"].share(100_000)
    shared[:] = 7
    sent = [
        np.arange(50_000, dtype=np.uint8),
        shared,
        np.arange(60_000, dtype=np.uint8),
    ]
    for step in (1, 2):
        channels["b:0"].send("a:0", Key(1, step), sent)
    for step in (1, 2):
        if how == "receive":
            got = channels["a:0"].receive("b:0", Key(1, step))
        else:
            got = [np.zeros_like(array) for array in sent]
            for index, first, view in channels["a:0"].pieces("b:0", Key(1, step)):
                got[index][first : first + view.size] = view
        assert all(np.array_equal(g, s) for g, s in zip(got, sent, strict=True))


def test_a_probe_passes_a_node_once():
    """Otherwise probes would multiply where circles of waits share nodes."""
    passed = []

    class Recorded(Carrier):
        def tell(self, peer, frame):
            passed.append((peer, frame))

    limits = Limits(deadline=5.0)
    mailbox = Mailbox("b:0", ["a:0", "c:0", "d:0"], limits, Recorded())

    def wait() -> None:
        with suppress(Aborted):
            mailbox.claim("b:0", [("c:0", Key(1, 1)), ("d:0", Key(1, 1))])

    waiting = threading.Thread(target=wait)
    waiting.start()
    while mailbox.waiting("b:0") != ("c:0", "d:0"):
        time.sleep(0.001)
    for source in ("a:0", "c:0", "d:0"):
        mailbox.on_probe(source, Probe("a:0", 1))
    assert sorted(peer for peer, _ in passed) == ["c:0", "d:0"]
    mailbox.on_probe("a:0", Probe("a:0", 2))
    assert len(passed) == 4
    mailbox.abort(Cause("b:0", "", "the end of the test"))
    waiting.join()


def test_a_name_that_no_host_can_have_does_not_stop_the_resolver():
    resolver = Resolver()
    try:
        for host in ("host..example", "localhost"):
            until = time.monotonic() + 10
            while "looked up" in str(found := resolver.addresses(host, 1)):
                assert time.monotonic() < until
                time.sleep(0.01)
            assert isinstance(found, str) == (host != "localhost")
    finally:
        resolver.close()


def test_a_sender_without_a_limit_sends_probes_after_its_deadline():
    """A circle of waits may only begin then."""
    probed = threading.Event()

    class Counted(Carrier):
        count = 0

        def tell(self, peer, frame):
            self.count += 1
            if self.count == 12:
                probed.set()

    limits = Limits(deadline=0.02, bound=100)
    mailbox = Mailbox("a:0", ["b:0"], limits, Counted())
    mailbox.has_deadline = False

    def send() -> None:
        with suppress(Aborted):
            for step in (1, 2):
                mailbox.reserve("a:0", "b:0", Key(1, step), 90, 90)

    waiting = threading.Thread(target=send)
    waiting.start()
    assert probed.wait(10)
    mailbox.abort(Cause("a:0", "", "the end of the test"))
    waiting.join()
