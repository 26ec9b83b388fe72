"""Waits of a node's threads for each other: slices, and arrows from the thread that ends them."""

from __future__ import annotations

import threading

import pytest
from support.trace_file import read_trace

import placer
from placer.runtime.batches.read_ahead import ReadAhead
from placer.runtime.control.timeline_window import Window
from placer.runtime.timeline import watched_threads
from placer.runtime.timeline.chrome import write_timeline
from placer.runtime.timeline.part import part_of
from placer.runtime.timeline.recorder import COMPUTE, READ, WAIT, Recorder
from placer.runtime.timeline.timeline import Timeline
from placer.runtime.timeline.watched_threads import WatchedThreads
from placer.system.owned_threads import OwnedThreads
from placer.system.resources import find_file


@pytest.fixture
def recorder(monkeypatch):
    monkeypatch.setattr(watched_threads, "SHORTEST_WAIT", 0)
    recorder = Recorder(limit=99)
    recorder.active = True
    return recorder


def written(recorder, folder):
    part = part_of("worker:0", recorder)
    path = folder / "trace.json"
    write_timeline(path, Timeline(["worker:0"], [part], Window(1, 1)))
    return read_trace(path)


def test_an_arrow_goes_from_the_work_of_a_thread_to_the_wait_for_it(recorder, tmp_path):
    threads, found = OwnedThreads(), []
    WatchedThreads(threads.changed, recorder, "worker:0")

    def read():
        with recorder.slice(READ, "read batch 0"):
            pass
        with threads.changed:
            found.append(0)
            threads.changed.notify_all()

    with threads.changed:
        threads.begin(read, "placer reader")  # it needs the lock that the wait releases
        while not found:
            threads.wait()
    threads.join()
    recorder.active = False
    trace = written(recorder, tmp_path)
    assert trace.woken("worker:0") == {("read batch 0", "wait for reader"): 1}
    (start, _), *_ = trace.wakes.values()
    work = start["slice"]
    assert start["ts"] < work["ts"] + work["dur"]


def test_a_thread_that_wakes_too_early_has_one_wait(recorder):
    for start in (10, 20):
        recorder.add_thread_wait("a", "worker:0", start, start + 10, (0, start + 9))
    recorder.add_thread_wait("b", "worker:0", 30, 40, None)
    recorder.add(COMPUTE, "f", 40, 50)
    recorder.add_thread_wait("b", "worker:0", 50, 60, None)
    part = part_of("worker:0", recorder)
    assert part.slices[:, 2:4].tolist() == [[10, 30], [30, 40], [40, 50], [50, 60]]
    names = [part.names[number] for number in part.slices[:, 1]]
    assert names[0] == (WAIT, "wait for program")
    assert names[1] == (WAIT, "wait for another thread")
    assert part.slices[0, 7] == 29


@pytest.mark.parametrize("limit", [0, 1])
def test_waits_beyond_the_limit_are_counted_and_change_nothing(limit):
    recorder = Recorder(limit)
    recorder.active = True
    recorder.add(COMPUTE, "f", 0, 10)
    for start in (10, 20):
        recorder.add_thread_wait("a", "worker:0", start, start + 10, None)
    part = part_of("worker:0", recorder)
    assert part.slices[:, 2:4].tolist() == [[0, 10]][:limit]
    assert part.left_out == 3 - limit
    assert part.names == ((COMPUTE, "f"),)[:limit]


def test_merged_waits_count_once_toward_the_limit():
    recorder = Recorder(2)
    recorder.active = True
    for start in (0, 10, 20):
        recorder.add_thread_wait("a", "worker:0", start, start + 10, None)
    recorder.add(COMPUTE, "f", 30, 40)
    assert part_of("worker:0", recorder).left_out == 0


def test_a_wait_that_nobody_has_ended_has_no_arrow(recorder, tmp_path):
    threads = OwnedThreads()
    WatchedThreads(threads.changed, recorder, "worker:0")
    with threads.changed:
        threads.changed.notify_all()  # before the wait
        threads.changed.wait(0.001)
    trace = written(recorder, tmp_path)
    assert trace.names("worker:0") == {"wait for another thread": 1}
    assert not trace.wakes


class NotedWaits(WatchedThreads):
    """Says when the program waits for its second batch."""

    is_second = False

    def wait(self, timeout=None):
        if self.is_second and self._recorder.is_program:
            self.begun.set()
        return super().wait(timeout)


class Watch:
    """Records the threads that read ahead."""

    def __init__(self, recorder):
        self.recorder, self.begun = recorder, threading.Event()

    def watch_threads(self, threads):
        self.waits = NotedWaits(threads.changed, self.recorder, "worker:0")
        self.waits.begun = self.begun

    def reading(self, position):
        return self.recorder.slice(READ, f"read batch {position[1]}")


def test_a_step_that_waits_for_its_rows_waits_for_the_thread_that_reads(
    recorder, tmp_path
):
    watch = Watch(recorder)

    def read(position):
        if position == (1, 1):
            assert watch.begun.wait(60)
        return position

    ahead = ReadAhead(read, lambda at: (1, 1) if at == (1, 0) else None, watch)
    ahead.begin((1, 0))
    assert ahead.take((1, 0)) == (1, 0)
    watch.waits.is_second = True
    assert ahead.take((1, 1)) == (1, 1)
    ahead.close()
    recorder.active = False
    trace = written(recorder, tmp_path)
    assert trace.woken("worker:0")["read batch 1", "wait for read ahead"] == 1


def test_asynchronous_a_worker_and_its_exchange_wait_for_each_other(tmp_path):
    placer.compile(find_file("specs/digits_async.yaml"), tmp_path / "build")
    path = tmp_path / "trace.json"
    placer.launch(tmp_path / "build", in_process=True, steps=6, trace=path)
    trace = read_trace(path)
    # The first step waits for the first parameters, and the thread for the first gradients.
    worker = trace.woken("worker:0")
    assert worker["h1.w from ps:0", "wait for exchange with ps:0"]
    exchange = trace.woken("worker:0", "exchange with ps:0")
    assert any(wait == "wait for program" for _, wait in exchange)
    # A server waits in each step until its service has applied the gradients.
    server = trace.woken("ps:0")
    assert any(wait == "wait for service of ps:0" for _, wait in server)
