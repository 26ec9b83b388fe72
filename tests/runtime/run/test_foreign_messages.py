"""Messages that no node of this build and version sends end a run with an error, with
`python -O` too."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import placer
from placer.build.plan import Edge, Moved, Plan
from placer.channel.memory import MemoryHub
from placer.channel.protocol import Key
from placer.errors import RunError
from placer.readers import Digests
from placer.readers.rows import LoadedRows
from placer.resources import find
from placer.runtime.program.exchange import Exchange
from placer.runtime.run.barrier import AGREE, GO, READY, ROWS, barrier
from placer.runtime.run.handshake import Told, agree
from placer.runtime.run.same_rows import TRAINING, compare_rows

NODES = ("worker:0", "worker:1", "ps:0")
KEY = Key(1, 1)


@pytest.fixture
def hub() -> MemoryHub:
    return MemoryHub(NODES, deadline=10)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A build for worker:0, the control node, and worker:1."""
    folder = tmp_path_factory.mktemp("two") / "build"
    return placer.compile(find("specs/two_workers.yaml"), folder)


def bytes_of(value: Any) -> list[np.ndarray]:
    return [np.frombuffer(json.dumps(value).encode(), np.uint8)]


NO_JSON = [np.frombuffer(b"\xff{", np.uint8)]
DEEP = [np.frombuffer(b"[" * 100_000, np.uint8)]


@pytest.mark.parametrize("sent", [NO_JSON, DEEP, [], bytes_of([1]), bytes_of(None)])
def test_a_node_that_tells_something_else_is_named(
    sent: list[np.ndarray], plan: Plan, hub: MemoryHub
) -> None:
    hub.channel("worker:1").send("worker:0", Key(READY, 0), sent)
    with pytest.raises(RunError, match=r"^worker:1 does not speak as this node does"):
        barrier(plan, hub.channel("worker:0"), {}, READY)


@pytest.mark.parametrize("sent", [NO_JSON, bytes_of({}), bytes_of([{}]), bytes_of(1)])
def test_a_control_node_that_tells_something_else_is_named(
    sent: list[np.ndarray], plan: Plan, hub: MemoryHub
) -> None:
    hub.channel("worker:0").send("worker:1", Key(GO, READY), sent)
    with pytest.raises(RunError, match=r"^worker:0 does not speak as this node does"):
        barrier(plan, hub.channel("worker:1"), {}, READY)


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"rows": [0], "columns": {"x": ["a"]}},
        {"rows": 1, "columns": {}},
        {"rows": [0], "columns": {"x": 1}, "whole": {}},
    ],
)
def test_a_node_whose_digests_are_none_is_named(
    told: Any, plan: Plan, hub: MemoryHub
) -> None:
    hub.channel("worker:1").send("worker:0", Key(ROWS, 0), bytes_of(told))
    rows = LoadedRows({"x": np.zeros(1, np.float32)}, 1, Digests((0,), {"x": (1,)}))
    with pytest.raises(RunError, match=r"^worker:1 does not speak as this node does"):
        compare_rows(plan, hub.channel("worker:0"), TRAINING, rows)


def test_a_node_of_another_version_is_named(plan: Plan, hub: MemoryHub) -> None:
    told = bytes_of({"training rows": 3, "something new": 1})
    hub.channel("worker:1").send("worker:0", Key(AGREE, 0), told)
    mine = Told(3, None, None, save_params=False, init_params=None)
    with pytest.raises(RunError, match=r"^worker:1 is of another version of placer"):
        agree(plan, hub.channel("worker:0"), mine)


def ends(hub: MemoryHub, names: int) -> Exchange:
    """The server of an edge that brings so many gradients of 6 elements each."""
    layouts = ("P", "R")
    moved = tuple(
        Moved(f"g{i}", f"s{i}", "float32", (6,), layouts) for i in range(names)
    )
    edge = Edge(1, NODES[:2], NODES[2:], moved, nbytes=0)
    return Exchange("ps:0", hub.channel("ps:0"), {1: edge}, 2)


GRADIENT = np.ones(6, np.float32)


@pytest.mark.parametrize(
    ("first", "second", "blamed"),
    [
        ([GRADIENT], [], "worker:1"),
        ([], [GRADIENT], "worker:0"),
        ([GRADIENT], [GRADIENT, GRADIENT], "worker:0"),
        ([GRADIENT, GRADIENT], [GRADIENT, GRADIENT], "worker:0"),
    ],
)
def test_gradients_that_are_not_of_the_build_are_refused(
    first: list[np.ndarray],
    second: list[np.ndarray],
    blamed: str,
    hub: MemoryHub,
) -> None:
    server = ends(hub, 1)
    for node, sent in zip(NODES[:2], (first, second), strict=True):
        hub.channel(node).send("ps:0", KEY, sent)
    message = f"^what {blamed} sent on edge 1, step 1 is not what the build says"
    with pytest.raises(RunError, match=message):
        list(server.chunks(KEY))


def test_a_message_with_a_value_too_few_is_refused(hub: MemoryHub) -> None:
    server = ends(hub, 2)
    for node in NODES[:2]:
        hub.channel(node).send("ps:0", KEY, [GRADIENT])
    with pytest.raises(RunError):
        server.receive(KEY, 6)
