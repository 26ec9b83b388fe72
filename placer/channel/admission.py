"""Whether a peer that says HELLO may connect: docs/about/channel.md, "Attempts".

Both sides of a connection call `check_run` and then `admit` with the other side's HELLO.
"""

from __future__ import annotations

import secrets
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
JUMP_BITS: Final = 40
"""A process whose clock is behind takes a number that is larger by up to 18 minutes."""
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
            or that another process is this node.
        hello: the HELLO of the peer.
        newcomer: the new connection to the peer.
    """
    peer, attempt = hello.identity.node, hello.identity.attempt
    link, incarnations = session.links[peer], session.incarnations
    is_another = link.incarnation not in (None, hello.incarnation)
    if is_another and peer in session.mailbox.departed:
        raise Refused("the node has ended its run")
    if is_another and session.is_heard(peer, despite=hello.incarnation):
        # Both processes may claim to be this node, but the run has state of the first one.
        link.seconds.add(hello.incarnation)
        raise Refused(
            f"the node already runs at {link.socket.peer_address}; the second"
            f" process is at {newcomer.peer_address}: end one of them",
            is_second=True,
        )
    _check_own_place(session, hello)
    if hello.incarnation < incarnations.of(peer):
        raise Refused(f"{_ANOTHER}; it runs at {incarnations.address_of(peer)}")
    if attempt > session.attempt:
        session.newer_attempt = max(session.newer_attempt, attempt)
    if is_another:
        incarnations.see(peer, hello.incarnation, newcomer.peer_address)
        _fail(session, peer, "was restarted")
        raise Refused("the process was restarted")
    if attempt != session.attempt:
        begun = f"attempt {max(attempt, session.attempt)} has begun"
        if attempt > session.attempt:
            _fail(session, peer, begun)
        raise Refused(begun)
    if hello.refusal:
        raise Refused(_refused_by(hello))
    if link.is_invalid:
        raise Refused("the node is lost")
    if peer in session.mailbox.departed or link.is_unix:
        raise Refused("the node is already connected")


def _fail(session: Session, peer: str, what: str) -> None:
    session.fail(Cause(peer, f"seen from {session.node}", what))


def _refused_by(hello: Hello) -> str:
    return f"the peer refused the connection: {hello.refusal}"


def _check_own_place(session: Session, hello: Hello) -> None:
    """Raise Refused if a peer knows another process of this node, and that one goes first."""
    incarnations, peer = session.incarnations, hello.identity.node
    if session.is_replaced:
        raise Refused(_ANOTHER)
    is_older = hello.known > incarnations.own
    if is_older and incarnations.has_been_in_attempt:
        _end_process(session, f"seen from {peer}", hello.refusal or _ANOTHER)
        raise Refused(_ANOTHER)
    if hello.is_second:
        now = time.monotonic()
        if now - session.second_since.setdefault(peer, now) >= SECOND_WAIT:
            _end_process(session, "", hello.refusal)
        raise Refused(_refused_by(hello))
    session.second_since.pop(peer, None)
    if is_older:
        # This process is the newer one, but the clock of its machine is behind. Another process of
        # the node may do the same, and must get another number.
        incarnations.own = hello.known + 1 + secrets.randbits(JUMP_BITS)


def _end_process(session: Session, where: str, why: str) -> None:
    """End this session, and let its owner end the process."""
    session.is_replaced = True
    session.fail(Cause(session.node, where, why))
