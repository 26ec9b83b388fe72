"""Start and end of a run between processes, over each transport."""

from __future__ import annotations

import errno
import os
import resource
import socket
import threading

import numpy as np
import pytest
from support.free_addresses import eventually, exchange_messages, free_addresses, port
from support.own_resources import count_files, count_mappings

from placer.channel.interface import Aborted, Cause, Key
from placer.channel.resolver import Resolver
from placer.errors import RunError


def test_join_names_all_missing_nodes(make):
    addresses = free_addresses(["worker:0", "worker:1", "ps:0"])
    channel = make("worker:0", addresses, "job", join_timeout=0.3)
    ps, worker = addresses["ps:0"], addresses["worker:1"]
    with pytest.raises(RunError) as raised:
        channel.join()
    reason = raised.value.message
    assert reason.startswith(f"ps:0 did not join within 0.3 s ({ps}): ")
    assert reason.endswith(f"; worker:1 did not join within 0.3 s ({worker})")
    assert "does not listen" in reason
    assert raised.value.hint is not None
    assert "with the same build and key" in raised.value.hint
    with pytest.raises(RunError, match="has not joined"):
        channel.send("ps:0", Key(1, 1), [])
    channel.close()


def test_join_names_only_the_missing_node(make, spawn):
    addresses = free_addresses(["a:0", "b:0", "c:0"])
    nodes = [make(n, addresses, "j", join_timeout=0.7) for n in ("a:0", "b:0")]
    for joining in [spawn(node.join) for node in nodes]:
        with pytest.raises(RunError) as raised:
            joining.result(10)
        where = f"c:0 did not join within 0.7 s ({addresses['c:0']})"
        assert raised.value.message.startswith(where)
        assert "b:0" not in raised.value.message
    for closing in [spawn(node.close) for node in nodes]:
        closing.result(10)


def test_failure_during_join_ends_the_wait(make, spawn, monkeypatch):
    monkeypatch.setattr("placer.channel.session.LATE_JOIN_WAIT", 0.01)
    addresses = free_addresses(["a:0", "b:0", "c:0"])
    first = make("a:0", addresses, "j")
    second = make("b:0", addresses, "j")
    joining = spawn(first.join)
    eventually(lambda: first.links["b:0"].is_joined and second.links["a:0"].is_joined)
    cause = Cause("b:0", "start", "no such file")
    second.abort(cause)
    with pytest.raises(Aborted) as raised:
        joining.result(10)
    assert raised.value.cause == cause
    for closing in [spawn(node.close) for node in (first, second)]:
        closing.result(10)


@pytest.mark.parametrize("failed", ["a:0", "b:0"])
def test_node_that_joins_after_a_failure_learns_the_cause(make, spawn, failed):
    addresses = free_addresses(["a:0", "b:0"])
    cause = Cause(failed, "start", "no such file")
    (late,) = addresses.keys() - {failed}
    first = make(failed, addresses, "j")
    first.abort(cause)
    closing = spawn(first.close)
    second = make(late, addresses, "j", join_timeout=10.0, deadline=10.0)

    def join_and_receive() -> None:
        second.join()  # may return before the cause arrives
        second.receive(failed, Key(1, 1))

    with pytest.raises(Aborted) as raised:
        join_and_receive()
    assert raised.value.cause == cause
    second.close()
    closing.result(10)


def test_failed_node_closes_soon_without_peers(make, monkeypatch):
    monkeypatch.setattr("placer.channel.session.LATE_JOIN_WAIT", 0.01)
    channel = make("a:0", free_addresses(["a:0", "b:0"]), "j", join_timeout=1e9)
    channel.abort(Cause("a:0", "start", "no such file"))
    channel.close()


def test_join_names_a_node_that_left(make, spawn):
    addresses = free_addresses(["a:0", "b:0", "c:0"])
    first = make("a:0", addresses, "j")
    second = make("b:0", addresses, "j")
    joining = spawn(first.join)
    eventually(lambda: first.links["b:0"].is_joined and second.links["a:0"].is_joined)
    second.close()
    with pytest.raises(RunError, match=r"^b:0 left before all had joined"):
        joining.result(10)
    first.close()


def test_sockets_are_closed_before_the_end_of_a_lookup(make, monkeypatch):
    """It may take seconds, in which a peer would wait for an answer."""
    channel, closed = make("a:0", free_addresses(["a:0", "b:0"]), "job"), []
    listeners = [*channel.joining._listeners.values()]
    monkeypatch.setattr(
        Resolver, "close", lambda _: closed.extend(each.fileno() for each in listeners)
    )
    channel.close()
    assert closed == [-1] * len(listeners)


def test_node_cannot_be_started_twice(make):
    addresses = free_addresses(["a:0", "b:0"])
    first = make("a:0", addresses, "job")
    with pytest.raises(RunError) as raised:
        make("a:0", addresses, "job")
    assert raised.value.message == (
        f"a:0 cannot listen at {addresses['a:0']}: the port is in use"
    )
    assert raised.value.hint.startswith("a:0 may already run, or another run uses")
    first.close()
    make("a:0", addresses, "job").close()


def test_node_without_an_address_is_an_error(make):
    with pytest.raises(RunError, match="no address for node 'worker:2'"):
        make("worker:2", {"worker:0": "127.0.0.1:1"}, "job")


@pytest.mark.parametrize("transport", ["tcp"])
def test_node_without_a_descriptor_for_a_peer_ends_the_run(make, monkeypatch):
    monkeypatch.setattr("placer.channel.session.LATE_JOIN_WAIT", 0.01)
    addresses = free_addresses(["a:0", "b:0"])
    channel = make("a:0", addresses, "job")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as peer:
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
        try:
            peer.connect(("127.0.0.1", port(addresses["a:0"])))
            eventually(lambda: channel.aborted is not None)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert channel.aborted is not None
    assert channel.aborted.node == "a:0"
    assert "a peer cannot connect: too many open files" in channel.aborted.what
    channel.close()


def test_node_without_a_descriptor_leaves_its_address_free(make, monkeypatch):
    addresses = free_addresses(["a:0"])

    def no_descriptor(*_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "eventfd", no_descriptor)
        with pytest.raises(OSError, match="Too many open files"):
            make("a:0", addresses, "job")
    make("a:0", addresses, "job").close()


@pytest.mark.parametrize("transport", ["shared", "tcp", "tls"])
def test_single_node_joins_at_once(make):
    channel = make("a:0", free_addresses(["a:0"]), "job")
    channel.join()
    with pytest.raises(RunError, match="no peer 'b:0'"):
        channel.send("b:0", Key(1, 1), [])
    channel.close()


def count_resources() -> tuple[int, list[threading.Thread], int]:
    """Return the file descriptors, threads and shared mappings of this process."""
    return count_files(), threading.enumerate(), count_mappings()


def run_once(make, spawn, *, fails: bool) -> None:
    addresses = free_addresses(["a:0", "b:0"])
    a, b = channels = [make(node, addresses, "job") for node in addresses]
    for joining in [spawn(channel.join) for channel in channels]:
        joining.result(10)
    memory = a.share(1 << 20)
    a.send("b:0", Key(1, 1), [np.zeros(1 << 20), memory])
    a.send("b:0", Key(1, 2), [np.zeros(3 << 20), memory])
    a.send("b:0", Key(1, 3), [np.zeros(3 << 20)])
    b.receive("a:0", Key(1, 1))
    next(b.pieces("a:0", Key(1, 2)))
    if fails:
        b.abort(Cause("b:0", "step 2", "failed"))
    for closing in [spawn(channel.close) for channel in channels]:
        closing.result(10)
    for channel in channels:
        channel.close()
    for address in addresses.values():
        socket.create_server(("127.0.0.1", port(address))).close()


@pytest.mark.parametrize("fails", [False, True])
def test_close_leaves_no_thread_no_descriptor_no_mapping_and_no_port(
    make, spawn, fails
):
    for _ in range(8):  # so that the pool has started all its threads
        run_once(make, spawn, fails=fails)
    before = count_resources()
    run_once(make, spawn, fails=fails)
    assert count_resources() == before


def test_views_of_shared_memory_outlive_the_channels(make, spawn):
    addresses = free_addresses(["a:0", "b:0"])
    a, b = channels = [make(node, addresses, "job") for node in addresses]
    for joining in [spawn(channel.join) for channel in channels]:
        joining.result(10)
    memory = a.share(1 << 20)
    memory[...] = 5
    a.send("b:0", Key(1, 1), [memory])
    (view,) = b.receive("a:0", Key(1, 1))
    for closing in [spawn(channel.close) for channel in channels]:
        closing.result(10)
    assert (view == 5).all()
    assert (memory == 5).all()
    with pytest.raises(RunError, match="channel is closed"):
        a.share(1)


@pytest.mark.parametrize("sizes", [[4 << 20], [5, 4 << 20, 0, 1000, 3 << 20, 7]])
def test_close_delivers_what_was_sent(between, sizes):
    """Also what found no room before, to a node that receives only afterwards."""
    channels = between("a:0", "b:0")
    sent = [np.arange(size, dtype=np.int64) for size in sizes]
    for step, array in enumerate(sent):
        channels["a:0"].send("b:0", Key(1, step), [array])
    channels["a:0"].close()
    for step, array in enumerate(sent):
        (got,) = channels["b:0"].receive("a:0", Key(1, step))
        assert np.array_equal(got, array)


def test_close_ends_waiting_calls(connect, spawn):
    channels = connect("a:0", "b:0")
    waiting = spawn(channels["b:0"].receive, "a:0", Key(1, 1))
    eventually(lambda: channels["b:0"].waiting() == ("a:0",))
    channels["b:0"].close()
    with pytest.raises(RunError, match="b:0: the channel is closed"):
        waiting.result(10)


def test_idle_nodes_are_not_lost(between):
    channels = between("a:0", "b:0", beat=0.05, lost_after=0.4, deadline=1.5)
    with pytest.raises(RunError, match=r"waited 1\.5 s"):
        channels["a:0"].receive("b:0", Key(1, 1))
    exchange_messages(channels, 1)


def test_long_causes_are_truncated_and_sent(between):
    channels = between("a:0", "b:0")
    channels["a:0"].abort(Cause("a:0", "step 1", "é€" * 100_000))
    with pytest.raises(Aborted, match="a:0: step 1: é€é€"):
        channels["b:0"].receive("a:0", Key(1, 1))


def test_exception_in_the_channels_thread_ends_the_run(between, monkeypatch):
    channels = between("a:0", "b:0")
    seen: list[BaseException | None] = []
    monkeypatch.setattr(
        threading, "excepthook", lambda args: seen.append(args.exc_value)
    )

    def failing_hook(cause: Cause) -> None:
        raise ValueError("the hook failed")

    channels["b:0"].on_abort = failing_hook
    channels["a:0"].abort(Cause("a:0", "step 1", "failed"))
    with pytest.raises(Aborted, match="a:0: step 1: failed"):
        channels["b:0"].receive("a:0", Key(1, 1))
    eventually(lambda: bool(seen))
    assert str(seen[0]) == "the hook failed"
