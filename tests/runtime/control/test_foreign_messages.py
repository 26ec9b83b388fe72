"""Messages that no node of this build and version sends end a run with an error, even
with `python -O`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import placer
from placer.channel.in_process import memory_channels
from placer.channel.interface import Channel, Key
from placer.errors import RunError
from placer.plan.plan import Edge, EdgeValue, Plan
from placer.readers import Digests
from placer.readers.rows import LoadedRows
from placer.runtime.batches.opened_sources import TRAINING
from placer.runtime.batches.same_rows import compare_rows
from placer.runtime.control.barrier import GO, HANDSHAKE, READY, ROWS, barrier
from placer.runtime.control.handshake import agree
from placer.runtime.control.options import Options
from placer.runtime.exchange.exchange import Exchange
from placer.system.resources import find_file

NODES = ("worker:0", "worker:1", "ps:0")
KEY = Key(1, 1)


@pytest.fixture
def channels() -> Mapping[str, Channel]:
    return memory_channels(NODES, deadline=10)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """The plan of worker:0, the control node, and worker:1."""
    folder = tmp_path_factory.mktemp("two") / "build"
    return placer.compile(find_file("specs/two_workers.yaml"), folder)


def bytes_of(value: Any) -> list[np.ndarray]:
    return [np.frombuffer(json.dumps(value).encode(), np.uint8)]


NOT_JSON = [np.frombuffer(b"\xff{", np.uint8)]
DEEP = [np.frombuffer(b"[" * 100_000, np.uint8)]


@pytest.mark.parametrize("sent", [NOT_JSON, DEEP, [], bytes_of([1]), bytes_of(None)])
def test_an_invalid_message_of_a_node_is_reported(
    sent: list[np.ndarray], plan: Plan, channels: Mapping[str, Channel]
) -> None:
    channels["worker:1"].send("worker:0", Key(READY, 0), sent)
    with pytest.raises(
        RunError, match=r"^worker:1 sent a message that this version of placer"
    ):
        barrier(plan, channels["worker:0"], {}, READY)


@pytest.mark.parametrize("sent", [NOT_JSON, bytes_of({}), bytes_of([{}]), bytes_of(1)])
def test_an_invalid_message_of_the_control_node_is_reported(
    sent: list[np.ndarray], plan: Plan, channels: Mapping[str, Channel]
) -> None:
    channels["worker:0"].send("worker:1", Key(GO, READY), sent)
    with pytest.raises(
        RunError, match=r"^worker:0 sent a message that this version of placer"
    ):
        barrier(plan, channels["worker:1"], {}, READY)


@pytest.mark.parametrize(
    "report",
    [
        {},
        {"rows": [0], "columns": {"x": ["a"]}},
        {"rows": 1, "columns": {}},
        {"rows": [0], "columns": {"x": 1}, "whole": {}},
    ],
)
def test_invalid_digests_of_a_node_are_reported(
    report: Any, plan: Plan, channels: Mapping[str, Channel]
) -> None:
    channels["worker:1"].send("worker:0", Key(ROWS, 0), bytes_of(report))
    rows = LoadedRows({"x": np.zeros(1, np.float32)}, 1, Digests((0,), {"x": (1,)}))
    with pytest.raises(
        RunError, match=r"^worker:1 sent a message that this version of placer"
    ):
        compare_rows(plan, channels["worker:0"], TRAINING, rows)


def test_a_node_of_another_version_is_reported(
    plan: Plan, channels: Mapping[str, Channel]
) -> None:
    report = bytes_of({"training rows": 3, "something new": 1})
    channels["worker:1"].send("worker:0", Key(HANDSHAKE, 0), report)
    with pytest.raises(RunError, match=r"^worker:1 runs another version of placer"):
        agree(
            SimpleNamespace(  # type: ignore[arg-type]
                plan=plan, channel=channels["worker:0"], options=Options()
            ),
            {"training rows": 3},
        )


def server_exchange(channels: Mapping[str, Channel], count: int) -> Exchange:
    """Return the exchange of the server of an edge with so many gradients of 6
    elements."""
    layouts = ("P", "R")
    moved = tuple(
        EdgeValue(f"g{i}", f"s{i}", "float32", (6,), layouts) for i in range(count)
    )
    edge = Edge(1, NODES[:2], NODES[2:], moved, nbytes=0)
    return Exchange("ps:0", channels["ps:0"], {1: edge}, 2)


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
def test_gradients_that_do_not_fit_the_build_raise(
    first: list[np.ndarray],
    second: list[np.ndarray],
    blamed: str,
    channels: Mapping[str, Channel],
) -> None:
    server = server_exchange(channels, 1)
    for node, sent in zip(NODES[:2], (first, second), strict=True):
        channels[node].send("ps:0", KEY, sent)
    message = f"^the message from {blamed} on edge 1, step 1 does not fit the build"
    with pytest.raises(RunError, match=message):
        list(server.receive_chunks(KEY))


def test_a_message_with_a_missing_value_raises(channels: Mapping[str, Channel]) -> None:
    server = server_exchange(channels, 2)
    for node in NODES[:2]:
        channels[node].send("ps:0", KEY, [GRADIENT])
    with pytest.raises(RunError):
        server.receive(KEY, 6)
