"""Barriers between the nodes, and the runtime's own messages.

These messages have edges below 0; edges of the plan are positive.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import numpy as np

from placer.channel.interface import Channel, Key
from placer.errors import RunError
from placer.plan.plan import Plan

T = TypeVar("T")

HANDSHAKE, READY, GO, STEP, EVALUATION, DONE, SAVE = -1, -2, -3, -4, -5, -6, -7
"""The edges of barriers (the handshake, before the first step, the release, at the
end), of metrics, and of saving."""
ASK, DECISION, REQUEST = -8, -9, -11
"""The edges of the common step: the control node's question and the answers, what it
decides, and the requests of other nodes."""
ROWS = -10
"""The edge of the digests of rows."""
VISIBLE, STORED, FILE_PART = -12, -13, -14
"""The edges of checkpoints: whether nodes see the folder, what a node has written, and
the files of nodes that do not see the folder."""
VERDICT = -15
"""The edge of what follows from an evaluation."""
MACHINES, RESUME, RANGES, RANGE_PART = -16, -17, -18, -19
"""The edges of resuming: what the bits of results depend on, the chosen checkpoint,
which bytes of its files a node needs, and these bytes."""
OUTPUT_ROWS = -20
"""The edge of the outputs of a prediction."""
STOPPED = -21
"""The edge of the barrier after the step after which all nodes stop."""
EVENTS = -22
"""The edge of events that go to the launcher by the control node."""
DRAINED, AHEAD = -23, -24
"""The edges of barriers without lockstep: after a drain, and of the metrics of steps that
not all workers have done."""
COMPUTED, NEWEST, FIRST = -28, -29, -30
"""The edges of backup workers: what a worker tells a server, the answers, and which
workers a step takes."""
CLOCKS, CLOCK, TIMELINE = -25, -26, -27
"""The edges of timelines: which nodes share a clock, the times of nodes, and their
slices."""

REPLICAS = -31
"""The edge of the parameters that all workers take from the first one at a drain."""
PACE = -32
"""The edge by which the control node tells others to wait for callbacks, or to go on."""


def barrier(
    plan: Plan,
    channel: Channel,
    report: dict[str, Any],
    at: int,
    check: Callable[[list[Any]], None] | None = None,
) -> list[Any]:
    """Wait until every node has reached the barrier, and exchange a report of each
    node.

    Args:
        plan: the plan.
        channel: the node's channel.
        report: this node's report, any JSON object.
        at: the edge of the barrier.
        check: called on the control node with all reports before the other nodes are
            released, so that an error is raised on one node only.

    Returns:
        The reports of all nodes, in the order of the plan's nodes.

    Raises:
        RunError: for a message that no node of this version sends.
    """
    names = [node.name for node in plan.nodes]
    if channel.node == plan.control:
        reports = [
            report if name == channel.node
            else receive_json(channel, name, Key(at, 0), dict)
            for name in names
        ]  # fmt: skip
        if check is not None:
            check(reports)
        for name in names:
            if name != channel.node:
                send_json(channel, name, Key(GO, at), reports)
        return reports
    send_json(channel, plan.control, Key(at, 0), report)
    all_reports: list[Any] = receive_json(channel, plan.control, Key(GO, at), list)
    if len(all_reports) != len(names):
        raise version_error(plan.control)
    return all_reports


def receive_json(channel: Channel, source: str, key: Key, kind: type[T]) -> T:
    """Receive a JSON value of type `kind` from a node; RunError for anything else."""
    arrays = channel.receive(source, key)
    try:
        return msgspec.convert(json.loads(arrays[0].tobytes()), kind)
    # msgspec's errors are ValueErrors too.
    except (IndexError, ValueError, RecursionError) as error:
        raise version_error(source) from error


def version_error(source: str) -> RunError:
    """Return the error about a message of a node that no node of this version sends."""
    return RunError(
        f"{source} sent a message that this version of placer does not send",
        hint="run the same version of placer on every node",
    )


def send_json(channel: Channel, to: str, key: Key, value: Any) -> None:
    """Send a JSON value to a node, as an array of bytes."""
    channel.send(to, key, [np.frombuffer(json.dumps(value).encode(), np.uint8)])
