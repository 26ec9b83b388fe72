"""Signals are counted by the processes that receive them."""

from __future__ import annotations

import os
import signal
from multiprocessing import get_context

import pytest

from placer.runtime.signals import signals
from placer.runtime.signals.signals import Signals, signals_blocked, signals_piped

TIMEOUT = 60.0


def test_a_signal_to_the_launcher_and_to_all_nodes_is_one():
    received = Signals(-1)
    received.add(signal.SIGTERM, "ps:0")
    received.record(signal.SIGTERM)
    received.add(signal.SIGTERM, "worker:0")
    assert received.received == [signal.SIGTERM]


def test_the_second_signal_to_the_same_process_is_another_one():
    received = Signals(-1)
    received.add(signal.SIGTERM, "ps:0")
    received.add(signal.SIGINT, "ps:0")
    assert received.received == [signal.SIGTERM, signal.SIGINT]


@pytest.fixture
def hangups():
    """Signals of hangup have their default action, also under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups")
def test_two_signals_to_a_node_at_once_are_one(monkeypatch):
    monkeypatch.setattr(signals, "DUPLICATE_WINDOW", 0.05)
    with signals_piped(launched=False) as pipe:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
        assert pipe.next(TIMEOUT) == signal.SIGTERM
        assert pipe.next(0.0) is None
        os.kill(os.getpid(), signal.SIGHUP)
        assert pipe.next(TIMEOUT) == signal.SIGHUP


def test_the_pipe_ends_with_the_context():
    before = signal.getsignal(signal.SIGTERM)
    with signals_piped(launched=False) as pipe:
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
    assert pipe.next() is None
    assert pipe.has_ended


def test_a_blocked_signal_arrives_when_a_launched_node_catches_signals():
    ignored = {each: signal.getsignal(each) for each in signals.END_SIGNALS}
    try:
        with signals_blocked():
            signal.raise_signal(
                signal.SIGTERM
            )  # to this thread: others do not block it
            with signals_piped(launched=True) as pipe:
                assert pipe.next(TIMEOUT) == signal.SIGTERM
            signal.raise_signal(signal.SIGTERM)  # has no effect any more
    finally:
        for each, handler in ignored.items():
            signal.signal(each, handler)


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_process_ends_by_its_own_signals():
    with signals_piped(launched=False) as pipe:
        child = get_context("fork").Process(target=signal.pause)
        child.start()
        child.terminate()
        child.join(TIMEOUT)
        assert child.exitcode == -signal.SIGTERM
        assert pipe.next(0.0) is None
