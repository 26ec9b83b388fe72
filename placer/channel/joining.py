"""Waiting until all nodes of a run are there, between processes."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Final

from placer.channel.mailbox import Mailbox
from placer.errors import RunError

LATE: Final = 5.0
"""Seconds that a failed node is still there for peers that had not come yet: what nodes
that were started together need to begin."""


def wait_for_all(
    mailbox: Mailbox,
    met: Callable[[], Container[str]],
    addresses: Mapping[str, str],
    timeout: float,
    carrier: str,
) -> None:
    """Wait until every peer has been met; `met` is asked with the mailbox locked.

    RunError names each that was not within `timeout` seconds, with its address, or that
    left meanwhile; `Aborted` when one failed.
    """
    departed = mailbox.departed

    def missing() -> list[str]:
        known = met()
        return [peer for peer in mailbox.peers if peer not in known]

    mailbox.until(lambda: not missing() or bool(departed), timeout)
    absent = missing()
    if not absent:
        return
    if departed:
        raise RunError(f"{', '.join(sorted(departed))} left before all had come")
    raise RunError(
        "; ".join(
            f"{peer} did not come within {timeout:g} s ({addresses[peer]})"
            for peer in absent
        ),
        hint=f"start the node; {mailbox.node} is at {addresses[mailbox.node]} over "
        f"{carrier}, and all nodes of a run must use the same carrier",
    )


def wait_for_late(mailbox: Mailbox, told: Callable[[], Container[str]]) -> None:
    """After a failure, wait for up to `LATE` seconds until every peer was told of it.

    A node that comes when the failed one has gone can only wait for it in vain.
    """

    def all_told() -> bool:
        known = told()
        return all(p in known or p in mailbox.departed for p in mailbox.peers)

    mailbox.until(all_told, LATE, failed=True)
