"""Samples of a node's compute thread: how often it waits, and for which nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event, Thread

import numpy as np
import pytest

from placer.channel.in_process import memory_channels
from placer.channel.interface import Channel, Key
from placer.runtime.control.barrier import STEP
from placer.runtime.control.wait_counts import WaitCounts
from placer.runtime.control.wait_samples import WaitSamples
from placer.system.owned_threads import OwnedThreads

NODES = ("worker:0", "worker:1", "ps:0")


@pytest.fixture
def channels() -> Iterator[dict[str, Channel]]:
    opened = memory_channels(NODES)
    yield dict(opened)
    for channel in opened.values():
        channel.close()


def begin(samples: WaitSamples, run: Callable[[], object]) -> Thread:
    """Begin a compute thread that calls `run`."""
    ready = Event()

    def compute() -> None:
        samples.begin()
        ready.set()
        run()

    thread = Thread(target=compute)
    thread.start()
    assert ready.wait(10)
    return thread


def take_until(samples: WaitSamples, waiting: int) -> WaitCounts:
    """Take samples until this many of them have found the node waiting."""
    while samples.counts.waiting < waiting:
        samples.take()
    return samples.counts


def test_a_thread_that_receives_waits_for_the_sender(
    channels: dict[str, Channel],
) -> None:
    worker = channels["worker:0"]
    samples = WaitSamples(worker)
    samples.take()  # The node does not train yet.
    assert samples.counts == WaitCounts()
    thread = begin(samples, lambda: worker.receive("ps:0", Key(1, 1)))
    counts = take_until(samples, 3)
    assert counts.mostly_for == ("ps:0",)
    assert 0 < (counts.share or 0) <= 1
    channels["ps:0"].send("worker:0", Key(1, 1), [np.zeros(1)])
    thread.join()


def test_a_thread_that_computes_does_not_wait_while_reports_arrive(
    channels: dict[str, Channel],
) -> None:
    worker, ended = channels["worker:0"], Event()
    samples = WaitSamples(worker)
    computing = begin(samples, ended.wait)
    background = Thread(target=worker.receive, args=("worker:1", Key(STEP, 1)))
    background.start()
    while worker.waiting() != ("worker:1",):
        pass
    for _ in range(5):
        samples.take()
    assert samples.counts == WaitCounts(5)
    ended.set()
    computing.join()
    channels["worker:1"].send("worker:0", Key(STEP, 1), [np.zeros(1)])
    background.join()


def test_a_thread_that_waits_for_an_exchange_waits_for_its_peer(
    channels: dict[str, Channel],
) -> None:
    worker, threads, got = channels["worker:0"], OwnedThreads(), list[object]()
    reports = Thread(target=worker.receive, args=("worker:1", Key(STEP, 1)))
    reports.start()
    threads.begin(lambda: got.append(worker.receive("ps:0", Key(1, 1))), "exchange")
    samples = WaitSamples(worker)
    thread = begin(samples, lambda: threads.wait_for(lambda: got))
    assert take_until(samples, 3).mostly_for == ("ps:0",)
    channels["ps:0"].send("worker:0", Key(1, 1), [np.zeros(1)])
    channels["worker:1"].send("worker:0", Key(STEP, 1), [np.zeros(1)])
    for each in (thread, reports):
        each.join()
    assert threads.join(10)
