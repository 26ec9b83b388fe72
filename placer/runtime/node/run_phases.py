"""The start and the end of a run on each node, for training and prediction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from placer.runtime.control.barrier import DONE, READY, WRITTEN, barrier
from placer.runtime.control.events import COMPILING, CONNECTING, INITIALIZING, PREPARED
from placer.runtime.control.execution import Execution
from placer.runtime.exchange.devices import Devices, in_precision, open_devices
from placer.runtime.node.position import Position
from placer.system.memory.collection import begin_collection


@contextmanager
def joined(execution: Execution) -> Iterator[Devices]:
    """Open the devices of a node and join the other nodes. Inside the context, JAX uses
    the precision of the plan. At its end the devices are closed."""
    plan, me = execution.plan, execution.me
    with open_devices(me, execution.emulates) as devices, in_precision(plan, me):
        execution.report_state(CONNECTING)
        execution.channel.join()
        execution.on_joined()
        execution.report_state(INITIALIZING)
        yield devices


@contextmanager
def compiling(execution: Execution, position: Position) -> Iterator[None]:
    """Compile the node's program inside the context, then wait until all nodes are ready."""
    execution.report_state(COMPILING)
    position.where = "compiling"
    yield
    position.where = ""
    execution.report_state(PREPARED)
    barrier(execution.plan, execution.channel, {}, READY)
    begin_collection()


def finish(execution: Execution, own: Mapping[str, object]) -> list[dict[str, Any]]:
    """Wait until all nodes have finished their part.

    Args:
        execution: the node's run.
        own: the report of this node; the number of sent bytes is added to it.

    Returns:
        The reports of all nodes, in the order of the plan.
    """
    channel = execution.channel
    execution.on_last_barrier()
    report = {"bytes_sent": channel.bytes_sent, **own}
    reports = barrier(execution.plan, channel, report, DONE)
    if not execution.options.restarts:
        # From here on no node needs another node, so a lost node no longer fails the run.
        execution.on_settled()
    return reports


def settle(execution: Execution) -> None:
    """With `--restarts`, wait until the control node has written all files. If it fails
    before, all nodes go back and do their part again."""
    if execution.options.restarts:
        barrier(execution.plan, execution.channel, {}, WRITTEN)
        execution.on_settled()
