"""Waiting until all nodes of a run are connected, for transports between processes."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Final

from placer.channel.mailbox import Mailbox
from placer.errors import RunError

LATE_JOIN_WAIT: Final = 5.0
"""Seconds that a failed node stays for peers that have not connected yet: enough for
nodes that were started together to come up."""


def wait_for_all(
    mailbox: Mailbox,
    connected: Callable[[], Container[str]],
    addresses: Mapping[str, str],
    timeout: float,
    transport: str,
) -> None:
    """Wait until every peer is connected.

    `connected` returns the connected peers; it is called with the mailbox locked.
    `addresses` and `transport` are for the message.

    Raises RunError that names each peer that did not connect within `timeout` seconds,
    with its address, or that left meanwhile; `Aborted` when a node failed.
    """
    departed = mailbox.departed

    def missing() -> list[str]:
        known = connected()
        return [peer for peer in mailbox.peers if peer not in known]

    mailbox.wait_until(lambda: not missing() or bool(departed), timeout)
    absent = missing()
    if not absent:
        return
    if departed:
        raise RunError(f"{', '.join(sorted(departed))} left before all had joined")
    raise RunError(
        "; ".join(
            f"{peer} did not join within {timeout:g} s ({addresses[peer]})"
            for peer in absent
        ),
        hint=f"start the node; {mailbox.node} is at {addresses[mailbox.node]} over "
        f"{transport}, and all nodes of a run must use the same transport",
    )


def wait_for_late(mailbox: Mailbox, informed: Callable[[], Container[str]]) -> None:
    """After a failure, wait up to `LATE_JOIN_WAIT` seconds for peers to be informed.

    `informed` returns the peers that know of the failure. A peer that starts after the
    failed node has gone would wait in vain until its own `join_timeout`.
    """

    def all_informed() -> bool:
        known = informed()
        return all(p in known or p in mailbox.departed for p in mailbox.peers)

    mailbox.wait_until(all_informed, LATE_JOIN_WAIT, failed=True)
