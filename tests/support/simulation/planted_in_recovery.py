"""Bugs that are planted in the rules for attempts, to see that simulations find them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from placer.channel.connecting import Joining
from placer.channel.frames import Hello
from placer.channel.incarnations import Incarnations
from placer.channel.session import Session
from support.simulation.planted import Bug, replacing

RECOVERY_BUGS: list[Bug] = []


@replacing(Incarnations, "of", bugs=RECOVERY_BUGS)
def older_processes_are_not_refused(
    method: Any, incarnations: Incarnations, node: str
) -> int:
    return 0


@replacing(Joining, "_admit", bugs=RECOVERY_BUGS)
def a_restart_does_not_end_the_attempt(
    method: Any, joining: Joining, hello: Hello, pending: Any
) -> None:
    link = joining.session.links[hello.identity.node]
    if link.incarnation is not None:
        link.incarnation = hello.incarnation
    method(joining, hello, pending)


@replacing(Joining, "_admit", bugs=RECOVERY_BUGS)
def attempts_are_not_compared(
    method: Any, joining: Joining, hello: Hello, pending: Any
) -> None:
    identity = replace(hello.identity, attempt=joining.session.attempt)
    method(joining, replace(hello, identity=identity), pending)


@replacing(Joining, "_sign", bugs=RECOVERY_BUGS)
def the_attempt_is_not_authenticated(
    method: Any, joining: Joining, hello: Hello, nonces: Any
) -> Hello:
    identity = replace(hello.identity, attempt=1)
    signed: Hello = method(joining, replace(hello, identity=identity), nonces)
    return replace(hello, mac=signed.mac)


@replacing(Joining, "_admit", bugs=RECOVERY_BUGS)
def a_clock_that_is_behind_stays_behind(
    method: Any, joining: Joining, hello: Hello, pending: Any
) -> None:
    incarnations = joining.session.incarnations
    own = incarnations.own
    try:
        method(joining, hello, pending)
    finally:
        incarnations.own = own


@replacing(Session, "join", bugs=RECOVERY_BUGS)
def messages_outlive_an_attempt(method: Any, session: Session) -> None:
    kept = vars(session.incarnations).setdefault("kept", _Kept())
    kept.update(session.mailbox._queues)
    session.mailbox._queues = kept
    method(session)


class _Kept(dict[Any, Any]):
    """A dict that `clear` leaves as it is."""

    def clear(self) -> None:
        pass
