"""What a server without lockstep waits for."""

from placer.channel.in_process import memory_channels
from placer.plan.plan import Edge, EdgeValue
from placer.plan.settings.training.update_modes import Async, Geo
from placer.runtime.asynchronous.recorded_order import Order
from placer.runtime.asynchronous.service import Service

WORKER, SERVER = ("worker:0",), ("ps:0",)


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
