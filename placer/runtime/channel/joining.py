"""Waiting until all nodes of a run are there, between processes."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from placer.errors import RunError
from placer.runtime.channel.mailbox import Mailbox


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
