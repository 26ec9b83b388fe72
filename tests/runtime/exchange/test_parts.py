"""Sends of parts of arrays: the elements that the edge declares, and no others."""

import numpy as np
import pytest

from placer.channel.in_process import memory_channels
from placer.channel.interface import Key
from placer.errors import RunError
from placer.plan.plan import Edge, EdgeValue
from placer.runtime.exchange.exchange import Exchange
from placer.runtime.exchange.parts import Part

NODES = ["worker:0", "ps:0"]
KEY = Key(1, 1)
GRADIENT = np.arange(12, dtype=np.float32).reshape(3, 4)


def exchanges() -> list[Exchange]:
    """Return a worker and a server: the worker sends elements 4 to 10 of one gradient, and
    a whole one."""
    values = (
        EdgeValue("w", "w", "float32", (6,), ("R", "R"), start=4, stop=10),
        EdgeValue("b", "b", "float32", (3, 4), ("R", "R")),
    )
    edge = Edge(1, ("worker:0",), ("ps:0",), values, nbytes=72)
    channels = memory_channels(NODES, deadline=10)
    return [Exchange(node, channels[node], {1: edge}, 1) for node in NODES]


def test_a_part_is_received_as_a_flat_array_of_its_elements() -> None:
    worker, server = exchanges()
    worker.send(KEY, [Part(GRADIENT, 4, 10), GRADIENT], 1)
    part, whole = server.receive(KEY, 1)
    np.testing.assert_array_equal(part, np.arange(4, 10))
    np.testing.assert_array_equal(whole, GRADIENT)


def test_the_values_of_a_part_are_a_view() -> None:
    assert np.shares_memory(Part(GRADIENT, 4, 10).values, GRADIENT)


@pytest.mark.parametrize(
    ("values", "sent"),
    [
        ([Part(GRADIENT, 0, 6), GRADIENT], "elements 0:6 of 'w'"),
        ([Part(GRADIENT, 4, 8), GRADIENT], "elements 4:8 of 'w'"),
        ([GRADIENT, GRADIENT], "the whole value of 'w'"),
        ([Part(GRADIENT, 4, 10), Part(GRADIENT, 0, 12)], "elements 0:12"),
    ],
)
def test_other_elements_than_the_build_declares_are_an_error(values, sent) -> None:
    worker, _ = exchanges()
    with pytest.raises(RunError, match=sent):
        worker.send(KEY, values, 1)
