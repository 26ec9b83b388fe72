"""What a run does when a node falls silent, returns, or is lost."""

from __future__ import annotations

from placer.channel.peers import PeerEvent, PeerState
from placer.channel.session import Session
from placer.runtime.run.events import NodeWarning
from placer.runtime.run.state import Execution


def watch_peers(execution: Execution, channel: Session) -> None:
    """Name nodes that fall silent, and end the run if one is lost.

    The control node, which is connected to all others, names them; the next node names
    the control node.
    """
    plan, me = execution.plan, execution.me.name
    lost_after = execution.options.lost_after

    def on_peer(event: PeerEvent) -> None:
        first, *others = (node.name for node in plan.nodes)
        names_it = me == (first if event.peer != first else others[0])
        if event.state is PeerState.SILENT and names_it:
            status = channel.status_of(event.peer)
            at = f", last at {status[0].what}" if status and status[0].what else ""
            execution.report(
                NodeWarning(
                    f"{event.peer} has been silent for {event.seconds:.0f} s{at}; the run "
                    f"ends if it is silent for {lost_after:g} s (--lost-after)"
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
    channel.describe = lambda: execution.position
