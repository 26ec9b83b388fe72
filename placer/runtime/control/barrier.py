"""Barriers between nodes, and the edge numbers of the runtime's internal messages.

Internal messages use negative edge numbers; edges of the plan are positive.
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
"""Edges of the handshake, the barrier before the first step, the release of a barrier,
metrics of a step, metrics of an evaluation, the last barrier, and saving."""
ASK, DECISION, REQUEST = -8, -9, -11
"""Edges of the common step: the control node's question with the answers, its decision,
and requests from other nodes."""
ROWS = -10
"""Edge of row digests."""
VISIBLE, STORED, FILE_PART = -12, -13, -14
"""Edges of checkpoints: access to the control node's folder, reports of written files, and
the files of nodes without access to the folder."""
VERDICT = -15
"""Edge of the decision after an evaluation: continue, or stop early."""
MACHINES, RESUME, RANGES, RANGE_PART = -16, -17, -18, -19
"""Edges of resuming: facts that affect the bits of results, the chosen checkpoint, the
list of byte ranges that a node needs, and the bytes."""
OUTPUT_ROWS = -20
"""Edge of prediction outputs."""
STOPPED = -21
"""Edge of the barrier after the step at which all nodes stop."""
EVENTS = -22
"""Edge of events that the control node forwards to the launcher."""
DRAINED, AHEAD = -23, -24
"""Edges of asynchronous runs: the barrier after a drain, and the metrics of steps that
some workers have not finished."""
COMPUTED, NEWEST, FIRST = -28, -29, -30
"""Edges of backup workers: reports of workers to a server, the answers, and the workers
whose gradients a step uses."""
CLOCKS, CLOCK, TIMELINE = -25, -26, -27
"""Edges of timelines: the groups of nodes that share a clock, the times of nodes, and
their slices."""

REPLICAS = -31
"""Edge of the parameters that all workers copy from the first worker at a drain."""
PACE = -32
"""Edge on which the control node tells other nodes to wait for callbacks or to go on."""
FILES = -35
"""Edge of the files of a source that is a set."""
PASS, OPENED = -36, -37
"""Edges of a stream: the control node's announcements of passes, and the barrier after all nodes
have opened the files of a pass."""
LANES, LANE_POSITIONS, LANE_DIGESTS = -38, -39, -40
"""Edges of a stream of a Python function: the rows that have arrived, and the positions and digests
of its lanes."""
PUBLISH, PUBLISHED, PUBLISHED_VALUES, PUBLISHED_FILE = -41, -42, -43, -44
"""Edges of publications: the barrier at which nodes begin one, reports of written files, dense
blocks, and the files of nodes without access to the folder."""
BEGIN, WRITTEN = -33, -34
"""Edges of runs with `--restarts`: the checkpoint that an attempt begins from, and the
barrier after the control node has written all files."""


def barrier(
    plan: Plan,
    channel: Channel,
    report: dict[str, Any],
    at: int,
    check: Callable[[list[Any]], None] | None = None,
) -> list[Any]:
    """Wait until every node has reached the barrier, and exchange one report per node.

    Args:
        report: this node's report, any JSON object.
        at: the edge of the barrier.
        check: called with all reports, only on the control node and before the other nodes
            continue. An error is therefore raised on one node only.

    Returns:
        The reports of all nodes, in the order of the plan's nodes.

    Raises:
        RunError: if a node sends an invalid message, because it runs another version.
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
    """Receive a JSON value of type `kind` from a node; raise RunError if it is invalid."""
    arrays = channel.receive(source, key)
    try:
        return msgspec.convert(json.loads(arrays[0].tobytes()), kind)
    # ValueError also covers the errors of msgspec.
    except (IndexError, ValueError, RecursionError) as error:
        raise version_error(source) from error


def version_error(source: str) -> RunError:
    """Return the error for an invalid message from a node of another version of placer."""
    return RunError(
        f"{source} sent a message that this version of placer does not know",
        hint="run the same version of placer on every node",
    )


def send_json(channel: Channel, to: str, key: Key, value: Any) -> None:
    """Send a value to a node as JSON, in an array of bytes."""
    channel.send(to, key, [np.frombuffer(json.dumps(value).encode(), np.uint8)])
