"""An evaluation ends on a node when everything that it recorded is computed."""

from types import SimpleNamespace

import numpy as np

from placer.readers import Order
from placer.runtime.batches.batches import Batches
from placer.runtime.exchange.devices import Devices
from placer.runtime.node.driver import NodeDriver
from placer.runtime.node.node import Node


class Late:
    """A value that is computed when it is read."""

    computed = False

    def __array__(self, dtype=None, copy=None):
        self.computed = True
        return np.zeros(1, np.float32)


def test_all_recorded_values_are_computed_at_the_end():
    """A batch may record several times."""
    order = Order(5, 2, False, 0, "keep")
    exchange = SimpleNamespace(new_step=lambda: None)
    batches = Batches(order, None)
    node = Node(
        "worker:0",
        exchange,
        {},
        {},
        batches,
        batches,
        (None, None),
        lambda *_: None,
        Devices({}),
    )
    values = []
    NodeDriver(node).enter_evaluation(1)
    for batch in node.batches():
        assert all(late.computed for late in values[: 2 * (batch - 1)])
        values += [Late(), Late()]
        node.record(seen=values[-2])
        node.record(loss=values[-1])
    assert len(values) == 6
    assert all(late.computed for late in values)
