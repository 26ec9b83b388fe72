"""A worker whose exchange with others has ended is told so, however late it waits."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from placer.channel.cause import Cause
from placer.channel.in_process import memory_channels
from placer.channel.interface import Aborted
from placer.plan.plan import Edge
from placer.plan.settings.training.update_modes import Async
from placer.runtime.asynchronous.peer_gradients import PeerGradients
from placer.runtime.asynchronous.pulled_versions import PulledVersions
from placer.runtime.asynchronous.recorded_order import Order

WORKERS, SERVER = ("worker:0", "worker:1"), ("ps:0",)


def with_a_server(channel):
    pull = Edge(1, SERVER, WORKERS, (), 0, exchange="pull")
    push = Edge(2, WORKERS, SERVER, (), 0, exchange="push")
    return PulledVersions(channel, pull, push, Async(), Order())


def with_workers(channel):
    push = Edge(1, WORKERS, WORKERS, (), 0, exchange="push_all")
    exchange = PeerGradients(channel, push, Async(max_staleness=1), Order())
    exchange.take(1)
    return exchange


@pytest.mark.parametrize("make", [with_a_server, with_workers])
def test_a_drain_after_the_run_has_failed_raises(make):
    channel = memory_channels([*WORKERS, *SERVER])["worker:0"]
    before = set(threading.enumerate())
    exchange = make(channel)
    threads = set(threading.enumerate()) - before
    channel.abort(Cause("ps:0", "step 1", "it failed"))
    exchange.push(1, (4, 4), [np.zeros(2, np.float32)])
    for thread in threads:
        thread.join(10)
    with ThreadPoolExecutor(1) as pool:
        drained = pool.submit(exchange.drain, 1)
        try:
            with pytest.raises(Aborted, match="it failed"):
                drained.result(10)
        finally:
            exchange.close()
