"""Whether a peer that says HELLO may connect: docs/about/channel.md, "Attempts".

Both sides of a connection call `check_run` and then `admit` with the other side's HELLO.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from placer.channel.cause import Cause
from placer.channel.frame_socket import FrameSocket
from placer.channel.frames import Hello, Refused

if TYPE_CHECKING:
    from placer.channel.session import Session

SECOND_WAIT: Final = 12.0
"""Seconds after which a refused second process fails. By then, peers have noticed whether the first
process is gone (`peers.SILENT_AFTER`)."""
_ANOTHER: Final = "another process is this node"


def check_run(session: Session, hello: Hello) -> None:
    """Raise Refused unless a HELLO is from a peer of this run, in any attempt."""
    theirs = hello.identity
    ours = session.identity(theirs.node, session.node)
    if theirs.build != ours.build:
        raise Refused("the build is different")
    if replace(theirs, attempt=ours.attempt) != ours:
        raise Refused("the run is different")


def admit(session: Session, hello: Hello, newcomer: FrameSocket) -> None:
    """Raise Refused unless a peer of this run may connect in this attempt.

    Args:
        session: the session of this node; it fails if the HELLO shows that its attempt is over,
            or that this process was replaced.
        hello: the HELLO of the peer.
        newcomer: the new connection to the peer.
    """
    _check_own_place(session, hello)
    peer, attempt, incarnation = (
        hello.identity.node,
        hello.identity.attempt,
        hello.incarnation,
    )
    link, incarnations = session.links[peer], session.incarnations
    is_another = link.incarnation not in (None, incarnation)
    if is_another and peer in session.mailbox.departed:
        raise Refused("the node has ended its run")
    if is_another and session.is_heard(peer):
        # Both processes may claim to be this node, but the run has state of the first one.
        raise Refused(
            f"the node already runs at {link.socket.peer_address}; the second"
            f" process is at {newcomer.peer_address}: end one of them",
            is_second=True,
        )
    if incarnation < incarnations.of(peer):
        raise Refused(f"{_ANOTHER}; it runs at {incarnations.address_of(peer)}")
    if attempt > session.attempt:
        session.newer_attempt = max(session.newer_attempt, attempt)
    if is_another:
        incarnations.see(peer, incarnation, newcomer.peer_address)
        _fail(session, peer, "was restarted")
        raise Refused("the process was restarted")
    if attempt != session.attempt:
        begun = f"attempt {max(attempt, session.attempt)} has begun"
        if attempt > session.attempt:
            _fail(session, peer, begun)
        raise Refused(begun)
    if link.is_invalid:
        raise Refused("the node is lost")
    if peer in session.mailbox.departed or link.is_unix:
        raise Refused("the node is already connected")


def _fail(session: Session, peer: str, what: str) -> None:
    session.fail(Cause(peer, f"seen from {session.node}", what))


def _check_own_place(session: Session, hello: Hello) -> None:
    """Compare the incarnation of this process with the largest one that a peer knows."""
    incarnations, peer = session.incarnations, hello.identity.node
    if hello.known <= incarnations.own:
        return
    if incarnations.has_been_in_attempt:
        _end_process(session, f"seen from {peer}", hello.refusal or _ANOTHER)
        raise Refused(_ANOTHER)
    if not hello.is_second:
        # This process is the newer one, but its clock is behind.
        incarnations.own = hello.known + 1


def refused_as_second(session: Session, peer: str, why: str) -> None:
    """Note that a peer is connected to another process of this node. This process
    fails if the refusals continue for `SECOND_WAIT` seconds. By then the peer would
    have noticed the end of the other process."""
    now = time.monotonic()
    since = session.second_since.setdefault(peer, now)
    if now - since >= SECOND_WAIT:
        _end_process(session, "", why)


def _end_process(session: Session, where: str, why: str) -> None:
    """End this session, and let its owner end the process."""
    session.is_replaced = True
    session.fail(Cause(session.node, where, why))
