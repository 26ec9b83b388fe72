"""Warns about silent nodes, and ends the attempt if a node is lost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from placer.channel.peers import PeerEvent, PeerState
from placer.channel.session import Session
from placer.runtime.control.events import NodeWarning
from placer.runtime.control.execution import Execution


def watch_peers(executions: Sequence[Execution], channel: Session) -> None:
    """Warn about silent processes, and end the run if a process is lost.

    Only one process warns: the process of the control node, which is connected to all
    others. If that process is silent, the second process warns.

    Args:
        executions: the runs of the nodes of this process.
        channel: the session of this process.
    """
    execution = executions[0]
    plan, lost_after = execution.plan, execution.options.lost_after

    def on_peer(event: PeerEvent) -> None:
        first, *others = plan.processes
        names_it = channel.node == (first if event.peer != first else others[0])
        if event.state is PeerState.SILENT and names_it:
            doing = channel.doing(event.peer)
            at = f", last at {doing}" if doing else ""
            then = "all nodes go back" if execution.options.restarts else "the run ends"
            execution.report(
                NodeWarning(
                    f"{event.peer} has been silent for {event.seconds:.0f} s{at}; {then}"
                    f" if it is silent for {lost_after:g} s (--lost-after)"
                )
            )
        elif event.state is PeerState.RETURNED and names_it:
            execution.report(
                NodeWarning(
                    f"{event.peer} is back after a silence of {event.seconds:.0f} s"
                )
            )
        channel.end_if_lost(event)

    channel.on_peer = on_peer
    if execution.options.insecure_network and execution.is_control:
        text = "connections between machines are not encrypted (--insecure-network)"
        execution.report(NodeWarning(text))
    for each in executions:
        each.channel.describe = partial(getattr, each, "position")
