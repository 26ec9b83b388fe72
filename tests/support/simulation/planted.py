"""Bugs that are planted in the channel, to see that simulations find them."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

from placer.channel.credits import Credit
from placer.channel.frame_socket import FrameSocket
from placer.channel.link import Link
from placer.channel.mailbox import Mailbox
from placer.channel.message import PiecedMessage
from placer.channel.pool import ChunkPool
from placer.channel.session import Session
from support.marks import slow_but


@dataclass(frozen=True)
class Bug:
    """A bug: `plant` plants it, for as long as its context is open; `streams` are those
    that it shows in."""

    name: str
    streams: str
    plant: Callable[[], AbstractContextManager[Any]]


def is_found(bug: Bug, simulate: Callable[[int], Any], seeds: Iterable[int]) -> bool:
    """Whether a simulation of any of the seeds fails with a bug."""

    def fails(seed: int) -> bool:
        try:
            with bug.plant():
                simulate(seed)
        except Exception:
            return True
        return False

    # The generators of threads that were killed would use locks when they end.
    with patch.object(sys, "unraisablehook", lambda _: None):
        found = any(map(fails, seeds))
        gc.collect()
    return found


def slow_if_rare(bugs: Iterable[Bug], rare: set[str]) -> list[Any]:
    """Return the bugs for `parametrize`; those whose names are in `rare` are slow."""
    every = list(bugs)
    assert rare <= {bug.name for bug in every}
    return slow_but([bug for bug in every if bug.name not in rare], every)


BUGS: list[Bug] = []
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def replacing(
    owner: type, name: str, streams: str = "tcp", bugs: list[Bug] = BUGS
) -> Decorator:
    """Plant the function that follows, named as the bug, for a method; it gets the method
    first."""

    def add(bug: Callable[..., Any]) -> Callable[..., Any]:
        method = getattr(owner, name)

        def wrapped(self: Any, *arguments: Any, **options: Any) -> Any:
            return bug(method, self, *arguments, **options)

        plant = partial(patch.object, owner, name, wrapped)
        bugs.append(Bug(bug.__name__, streams, plant))
        return bug

    return add


def replacing_property(
    owner: type, name: str, streams: str = "tcp", bugs: list[Bug] = BUGS
) -> Decorator:
    """Plant the function that follows, named as the bug, for a property."""

    def add(bug: Callable[..., Any]) -> Callable[..., Any]:
        plant = partial(patch.object, owner, name, property(bug))
        bugs.append(Bug(bug.__name__, streams, plant))
        return bug

    return add


def without_notices(method: Any, owner: Any, *arguments: Any) -> Any:
    """Call a method of a mailbox, or of a link, without waking anybody."""
    mailbox = owner if isinstance(owner, Mailbox) else owner.session.mailbox
    with patch.object(mailbox, "_wake", lambda: None):
        return method(owner, *arguments)


# Once, and in order.


@replacing(Link, "position")
def the_last_message_is_received_again(method: Any, link: Link) -> Any:
    expected, incomplete = method(link)
    if expected > 1 and not incomplete:
        link._last_received -= 1
        expected -= 1
    return expected, incomplete


@replacing(Link, "send")
def forgotten_when_sent(method: Any, link: Link, *arguments: Any) -> None:
    method(link, *arguments)
    link._unacknowledged.clear()


@replacing_property(Link, "_last_complete")
def acknowledged_before_the_last_piece(link: Link) -> int:
    return link._last_received


@replacing(Link, "connect")
def one_message_is_not_sent_again(
    method: Any, link: Link, socket: Any, hello: Any
) -> None:
    skipped = link._unacknowledged.pop(hello.expected, None)
    method(link, socket, hello)
    del skipped


@replacing(Link, "position")
def a_piece_is_counted_before_it_is_whole(method: Any, link: Link) -> Any:
    expected, incomplete = method(link)
    return expected, [(n, count + (n == link._filling)) for n, count in incomplete]


@replacing(Mailbox, "claim")
def the_newest_message_comes_first(
    method: Any, mailbox: Mailbox, node: str, wanted: Any
) -> Any:
    with mailbox._lock:
        for source, key in wanted:
            if (address := (node, source, key)) in mailbox._queues:
                mailbox._queues[address] = deque(reversed(mailbox._queues[address]))
    return method(mailbox, node, wanted)


@replacing(Mailbox, "read")
def two_threads_read(method: Any, mailbox: Mailbox) -> bool:
    mailbox.is_read = False
    return bool(method(mailbox))


@replacing(Link, "send_beat", "unix")
def chunks_are_returned_twice(method: Any, link: Link, **fields: Any) -> None:
    unreported = link._unreported
    method(link, **fields)
    link._unreported |= unreported


@replacing(PiecedMessage, "add", "unix")
def chunks_are_returned_before_they_are_read(
    method: Any, message: PiecedMessage, held: Any = None
) -> None:
    if held is not None:
        chunk, release = held
        release()
        held = chunk, lambda: None
    method(message, held)


# Within the bound.


@replacing(Credit, "has_room")
def the_bound_has_room_for_one_more(method: Any, credit: Credit, cost: int) -> bool:
    return credit.sent - credit.acknowledged <= credit.bound


@replacing(Mailbox, "_acknowledge")
def credit_is_returned_twice(method: Any, mailbox: Mailbox, message: Any) -> None:
    mailbox.credits[message.source].granted += message.copied_nbytes
    method(mailbox, message)


# Wake-ups.


@replacing(Mailbox, "deliver")
def nobody_is_woken_by_a_message(method: Any, mailbox: Mailbox, message: Any) -> None:
    without_notices(method, mailbox, message)


@replacing(Mailbox, "update_credit")
def nobody_is_woken_by_credit(method: Any, mailbox: Mailbox, *arguments: Any) -> None:
    without_notices(method, mailbox, *arguments)


@replacing(Link, "_end_piece")
def nobody_is_woken_by_a_piece(method: Any, link: Link, message: Any) -> None:
    without_notices(method, link, message)


@replacing(Mailbox, "_stop_reading")
def nobody_reads_on(method: Any, mailbox: Mailbox) -> None:
    without_notices(method, mailbox)


@replacing(Session, "need")
def nobody_reads_for_a_sender(method: Any, session: Session, peer: str) -> None:
    pass


@replacing(FrameSocket, "_set_full")
def nobody_waits_for_room_in_a_socket(
    method: Any, socket: FrameSocket, full: bool
) -> None:
    socket.full = full


@replacing(Session, "connection_ended")
def nobody_connects_again(method: Any, session: Session) -> None:
    pass


@replacing(Mailbox, "reserve")
def only_a_message_that_waits_asks_for_credit(
    method: Any, mailbox: Mailbox, node: str, to: str, *more: Any
) -> None:
    waiting, ask = mailbox.credits[to].waiting, mailbox._carrier.ask
    before = len(waiting)

    def ask_if_it_waits(peer: str) -> None:
        if len(waiting) > before:
            ask(peer)

    with patch.object(mailbox._carrier, "ask", ask_if_it_waits):
        method(mailbox, node, to, *more)


@replacing(Link, "connect")
def a_new_connection_says_nothing_of_credit(
    method: Any, link: Link, *arguments: Any
) -> None:
    with patch.object(link, "send_beat", lambda **fields: None):
        method(link, *arguments)


@replacing(Mailbox, "on_probe")
def waits_in_a_circle_are_not_found(method: Any, *arguments: Any) -> None:
    pass


@replacing(ChunkPool, "has_room", "unix")
def a_piece_waits_for_chunks_of_others(method: Any, pool: ChunkPool, _: int) -> bool:
    return bool(pool.free)


# The end.


@replacing(Session, "_flush")
def closed_before_all_is_delivered(method: Any, session: Session) -> None:
    pass


@replacing(Session, "_say_goodbye")
def goodbye_is_said_once(method: Any, session: Session) -> None:
    pass
