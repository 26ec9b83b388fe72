"""What an asynchronous server waits for, and the staleness that it counts."""

import numpy as np
import pytest

from placer.channel.in_process import memory_channels
from placer.channel.interface import Key
from placer.plan.plan import Edge, EdgeValue
from placer.plan.settings.training.update_modes import Async, Geo
from placer.runtime.asynchronous.recorded_order import Order
from placer.runtime.asynchronous.service import Service
from placer.runtime.exchange.worker_messages import MessageKind, header

WORKER, SERVER = ("worker:0",), ("ps:0",)
WORKERS = ("worker:0", "worker:1")


def edge(number, sources, targets, exchange):
    value = EdgeValue("w", "w", "float32", (2,), ("R", "R"))
    return Edge(number, sources, targets, (value,), 0, exchange=exchange)


def test_a_step_waits_for_no_table_of_differences():
    geo = (edge(1, SERVER, WORKER, "pull"), edge(2, WORKER, SERVER, "push_delta"))
    free = (edge(3, SERVER, WORKER, "pull"), edge(4, WORKER, SERVER, "push"))
    channel = memory_channels([*WORKER, *SERVER])[SERVER[0]]
    only_geo = Service(channel, [(*geo, Geo(every=2))], Order())
    assert only_geo.wait_for_step(1)
    # Its workers have drained: the step is not applied to the other table.
    both = Service(channel, [(*geo, Geo(every=2)), (*free, Async())], Order())
    assert not both.wait_for_step(1)


@pytest.mark.parametrize("workers", [[WORKERS], [("worker:0",), ("worker:1",)]])
def test_a_step_waits_for_the_slowest_worker_of_every_table(workers):
    tables = [
        (
            edge(2 * i, SERVER, own, "pull"),
            edge(2 * i + 1, own, SERVER, "push"),
            Async(),
        )
        for i, own in enumerate(workers, 1)
    ]
    service = Service(memory_channels([*WORKERS, *SERVER])[SERVER[0]], tables, Order())
    service.resume({"worker:0": 2, "worker:1": 1})
    assert service.wait_for_step(1)
    assert not service.wait_for_step(2)


def test_the_staleness_of_a_push_counts_the_steps_of_other_workers():
    table = edge(1, SERVER, WORKERS, "pull"), edge(2, WORKERS, SERVER, "push"), Async()
    channels = memory_channels([*WORKERS, *SERVER], deadline=30)
    service = Service(channels[SERVER[0]], [table], Order())
    kind, values = MessageKind, [np.zeros(2, np.float32)]

    def send(worker, number, numbers, arrays=()):
        key = Key(2, number)
        channels[worker].send(SERVER[0], key, [header(*numbers), *arrays])

    for worker in WORKERS:
        send(worker, 1, (kind.REQUEST, 0))
    # worker:0 has merged three steps. Both pushes are of version 0.
    send("worker:0", 2, (kind.PUSH, 3, 3, 0, 1, 1), values)
    send("worker:1", 2, (kind.PUSH, 1, 1, 0, 1, 1), values)
    for worker, step in (("worker:0", 3), ("worker:1", 1)):
        send(worker, 3, (kind.DRAIN, step))
    for message in service.messages():
        if message.edge == 2:
            assert len([*message.parts[0]]) == 1
        else:
            service.answer(message, values)
    assert service.staleness == {0: 1, 3: 1}
