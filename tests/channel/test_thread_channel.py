"""Channels of nodes of which some are threads of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from support.free_addresses import eventually, receive_any

from placer.channel.cause import Aborted, Cause
from placer.channel.interface import Channel, Key
from placer.channel.thread_channel import thread_channels
from placer.errors import RunError

NODES = ["worker:0.0", "worker:0.1", "worker:1.0", "worker:1.1", "ps:0"]


@pytest.fixture
def nodes(
    between: Callable[..., Mapping[str, Channel]],
) -> Iterator[dict[str, Channel]]:
    """The channels of two processes of two threads each, and of a single node."""
    sessions = between("worker:0", "worker:1", "ps:0", nodes=NODES, beat=0.1)
    found: dict[str, Channel] = {}
    for session in sessions.values():
        found |= thread_channels(session)
    return found


def numbers(*values: float) -> list[np.ndarray]:
    return [np.array(values)]


def test_a_message_comes_from_the_thread_that_has_sent_it(nodes, spawn):
    for name in ("worker:0.1", "worker:0.0"):
        nodes[name].send("worker:1.1", Key(1, 1), numbers(float(name[-1])))
    nodes["worker:0.1"].send("worker:1.0", Key(1, 1), numbers(7.0))
    receive = nodes["worker:1.1"].receive
    assert receive("worker:0.0", Key(1, 1))[0] == 0.0
    assert receive("worker:0.1", Key(1, 1))[0] == 1.0
    assert nodes["worker:1.0"].receive("worker:0.1", Key(1, 1))[0] == 7.0


def test_threads_of_one_process_pass_arrays_by_reference(nodes):
    array = np.arange(100_000.0)
    nodes["worker:0.1"].send("worker:0.0", Key(1, 1), [array])
    (received,) = nodes["worker:0.0"].receive("worker:0.1", Key(1, 1))
    assert np.shares_memory(received, array)
    assert not received.flags.writeable
    assert nodes["worker:0.1"].bytes_sent == 0


def test_bytes_are_counted_for_the_node_that_has_sent_them(nodes):
    nodes["worker:0.1"].send("ps:0", Key(1, 1), numbers(1.0, 2.0))
    nodes["ps:0"].receive("worker:0.1", Key(1, 1))
    assert nodes["worker:0.1"].bytes_sent == 16
    assert nodes["worker:0.0"].bytes_sent == 0


def test_a_thread_that_reads_the_connections_wakes_for_a_message_of_its_process(
    nodes, spawn
):
    waiting = spawn(nodes["worker:0.0"].receive, "worker:0.1", Key(1, 1))
    while not nodes["worker:0.0"].waiting():  # then it reads the connections
        pass
    nodes["worker:0.1"].send("worker:0.0", Key(1, 1), numbers(3.0))
    assert waiting.result(5)[0] == 3.0


def test_the_first_message_may_be_of_the_same_process_or_of_another(nodes):
    sources = ["worker:0.1", "worker:1.0", "worker:1.1"]
    nodes["worker:1.1"].send("worker:0.0", Key(1, 1), numbers(11.0))
    source, arrays = receive_any(nodes["worker:0.0"], sources, Key(1, 1))
    assert (source, *arrays[0]) == ("worker:1.1", 11.0)
    nodes["worker:0.1"].send("worker:0.0", Key(1, 1), numbers(1.0))
    addresses = [(source, Key(1, 1)) for source in sources]
    source, key, pieces = nodes["worker:0.0"].pieces_of_first(addresses)
    assert (source, key) == ("worker:0.1", Key(1, 1))
    assert [list(elements) for _, _, elements in pieces] == [[1.0]]


def test_each_thread_listens_for_itself(nodes):
    heard: list[tuple[str, str]] = []
    for name in ("worker:0.0", "worker:0.1"):
        nodes[name].listen(5, lambda source, name=name: heard.append((name, source)))
    nodes["worker:0.1"].send("worker:0.0", Key(5, 1), [])
    nodes["worker:0.0"].send("worker:0.1", Key(5, 1), [])
    assert heard == [("worker:0.0", "worker:0.1"), ("worker:0.1", "worker:0.0")]


def test_a_failure_of_a_thread_is_that_of_all_nodes(nodes, spawn):
    waits = [
        spawn(nodes[name].receive, "ps:0", Key(1, 1))
        for name in ("worker:0.0", "worker:0.1", "worker:1.1")
    ]
    nodes["worker:0.1"].abort(Cause("worker:0.1", "step 3", "it is out of paper"))
    for wait in waits:
        with pytest.raises(Aborted, match=r"worker:0\.1.*out of paper"):
            wait.result(5)


def test_each_thread_watches_its_own_waits(nodes):
    waited: list[tuple[str, tuple[str, ...], bool]] = []

    def watch_for(name: str) -> Callable[..., object]:
        def watch(peers, key, sending):
            waited.append((name, peers, sending))
            return nullcontext()

        return watch

    for name in ("worker:0.0", "worker:0.1"):
        nodes[name].watch_waits(watch_for(name))
        nodes["ps:0"].send(name, Key(1, 1), [])
    nodes["worker:0.1"].receive("ps:0", Key(1, 1))
    nodes["worker:0.0"].receive("ps:0", Key(1, 1))
    assert waited == [(name, ("ps:0",), False) for name in ("worker:0.1", "worker:0.0")]


def test_a_thread_waits_for_itself(nodes, spawn):
    waits = [
        spawn(nodes["worker:0.0"].receive, "worker:0.1", Key(1, 1)),
        spawn(nodes["worker:0.1"].receive, "worker:1.1", Key(1, 1)),
    ]
    eventually(lambda: nodes["worker:0.0"].waiting() == ("worker:0.1",))
    eventually(lambda: nodes["worker:0.1"].waiting() == ("worker:1.1",))
    assert nodes["worker:1.1"].waiting() == ()
    nodes["worker:1.1"].send("worker:0.1", Key(1, 1), [])
    nodes["worker:0.1"].send("worker:0.0", Key(1, 1), [])
    assert [wait.result(5) for wait in waits] == [[], []]


def test_bytes_go_to_each_thread_as_to_its_process(nodes, transport):
    stream = {"shared": "shared memory", "tcp": "tcp"}[transport]
    assert nodes["worker:0.1"].streams() == {
        "worker:0.0": "thread",
        "worker:1.0": stream,
        "worker:1.1": stream,
        "ps:0": stream,
    }
    assert set(nodes["ps:0"].streams()) == set(NODES) - {"ps:0"}


def test_a_node_that_the_run_does_not_have_is_refused(nodes):
    with pytest.raises(RunError, match=r"worker:0\.1 has no peer 'worker:1\.2'"):
        nodes["worker:0.1"].send("worker:1.2", Key(1, 1), [])
    with pytest.raises(RunError, match="no peer 'worker:1'"):
        nodes["ps:0"].receive("worker:1", Key(1, 1))


def test_the_thread_that_all_wait_for_is_to_blame(
    between: Callable[..., Mapping[str, Channel]], spawn
):
    """Another thread of its process waits for it, and one computes."""
    options = {"beat": 0.02, "lost_after": 60.0, "deadline": 60.0}
    sessions = between("worker:0", "worker:1", "ps:0", nodes=NODES, **options)
    nodes = {}
    for session in sessions.values():
        nodes |= thread_channels(session)
    for name, node in nodes.items():
        node.describe = lambda name=name: f"the work of {name}"
    waits = [
        spawn(nodes[node].receive, source, Key(1, 1))
        for node, source in [
            ("worker:0.0", "worker:0.1"),
            ("worker:0.1", "ps:0"),
            ("ps:0", "worker:1.0"),
            ("worker:1.0", "worker:1.1"),
        ]
    ]
    mailbox = sessions["worker:0"].mailbox
    eventually(lambda: len(mailbox.statuses.get("worker:0.0", ())) == 5)
    # Waits that begin now have a short deadline; what it reports is known already.
    mailbox._limits = replace(mailbox._limits, deadline=0.05)
    with pytest.raises(
        RunError, match=r"^worker:0\.0 waited 0\.05 s .* from worker:0\.1"
    ) as e:
        nodes["worker:0.0"].receive("worker:0.1", Key(1, 2))
    assert e.value.cause.node == "worker:1.1"
    assert e.value.cause.where == "the work of worker:1.1"
    assert "which waits for worker:1.1" in e.value.cause.what
    nodes["worker:1.1"].abort(Cause("worker:1.1", "", "the end of the test"))
    for wait in waits:
        with pytest.raises(Aborted, match="the end of the test"):
            wait.result(10)
