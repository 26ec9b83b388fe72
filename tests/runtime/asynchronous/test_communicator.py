"""What a worker sends of the steps that it merges into one push."""

import numpy as np

from placer.channel.in_process import memory_channels
from placer.channel.interface import Key
from placer.plan.plan import Edge
from placer.plan.settings.training.update_modes import Async
from placer.runtime.asynchronous.pulled_versions import PulledVersions
from placer.runtime.asynchronous.recorded_order import Order
from placer.runtime.exchange.worker_messages import MessageKind, header

WORKER, SERVER = "worker:0", "ps:0"


def test_merged_gradients_have_the_version_of_the_oldest():
    pull = Edge(1, (SERVER,), (WORKER,), (), 0, exchange="pull")
    push = Edge(2, (WORKER,), (SERVER,), (), 0, exchange="push")
    channels = memory_channels([WORKER, SERVER], deadline=30)
    mode = Async(max_merge=3, queue=3)
    worker = PulledVersions(channels[WORKER], pull, push, mode, Order())
    gradients = [np.ones(2, np.float32)]
    worker.push(1, (4, 8), gradients)
    channels[SERVER].receive(WORKER, Key(2, 1))
    for step, version in ((2, 5), (3, 6), (4, 7)):  # they wait for the first answer
        worker._used = (version,)
        worker.push(step, (4, 8), gradients)
    channels[SERVER].send(WORKER, Key(1, 1), [header(8, 1, 1), *gradients])
    head, total = channels[SERVER].receive(WORKER, Key(2, 2))
    channels[SERVER].send(WORKER, Key(1, 2), [header(9, 1, 1), *gradients])
    worker.close()
    assert head[:6].tolist() == [MessageKind.PUSH, 4, 3, 5, 4, 8]
    assert total.tolist() == [3.0, 3.0]
