"""The channel of a node that is a process of its own: how a run starts, stays alive, fails
and ends.

The session of a node has one thread. It connects the peers, sends heartbeats, finds
peers that are silent, and reports failures, so a node that computes for minutes stays
alive for the others. It reads connections only where no thread of the program does.
"""

from __future__ import annotations

import os
import secrets
import select
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final

from placer.channel import frames
from placer.channel.cause import Aborted, Cause
from placer.channel.connecting import Joining
from placer.channel.contents import describe_arrays
from placer.channel.endpoint import parse_endpoint, show_endpoint
from placer.channel.frame_socket import FrameSocket
from placer.channel.frames import Abort, Hello, Identity, InvalidFrame, Refused
from placer.channel.interface import Channel
from placer.channel.keys import RunKey
from placer.channel.link import MAX_EAGER, Link
from placer.channel.mailbox import Carrier, Mailbox
from placer.channel.message import Message
from placer.channel.open_message import OpenMessage
from placer.channel.outgoing import Outgoing
from placer.channel.payload import read_only_views
from placer.channel.peers import PeerEvent, Peers, PeerState, own_status
from placer.channel.pieces import PIECE
from placer.channel.pool import MAX_CHUNKS
from placer.channel.region import Region, Regions, is_supported
from placer.channel.transport import choose_streams
from placer.channel.types import Array, Bytes, Key, Limits
from placer.errors import RunError, did_you_mean
from placer.place.node_kinds import NodeId
from placer.system.memory.arena import Arena

CONNECT_PAUSE: Final = 0.02
"""Seconds between two attempts to connect to peers that are not there."""
TICK: Final = 0.1
"""Seconds until the thread of the session reads frames that nobody waits for."""
LATE_JOIN_WAIT: Final = 5.0
"""Seconds that a failed node stays for peers that are not connected: enough for nodes
that were started together to come up."""
CLOSE_LINGER: Final = 1.0
"""Seconds that `close` waits until the last frames (GOODBYE, ABORT) are sent."""
RECONNECT_WAIT: Final = 5.0
"""Seconds that `close` then waits for peers whose connections have broken."""
SPIN: Final = 100e-6
"""Seconds to look for frames before sleeping: twice what a reply of a peer that is awake
takes."""
MAX_SPIN_SKIPS: Final = 256
"""Waits without spinning at most, after spins that were in vain."""
DRAIN_LIMIT: Final = 64
"""Times that the session's thread reads before it looks at its other events."""
MAX_EVENTS: Final = 64
"""Sockets that are looked at before `epoll` is asked again."""
SECOND_WAIT: Final = 12.0
"""Seconds after which a refused second process fails; by then peers have noticed that the
first one is gone (`peers.SILENT_AFTER`)."""
_ENDED: Final = select.EPOLLRDHUP | select.EPOLLONESHOT


class Session(Channel, Carrier):
    """The channel of a node that is a process of its own; the nodes of a process that has
    several share it (`thread_channel`).

    Opening it starts its thread, which connects to the peers.

    `on_peer`, which may be set, is called with each change of a peer's state, in the
    thread that finds it.

    `links` are by the names of the peers. `regions` is the shared memory of this node, `arena` has the arrays that it
    receives; `eager` are the pieces of a message that peers send before it asks for it.

    Args:
        node: the name of this node.
        endpoints: the address of every node of the run ("worker:0" ->
            "127.0.0.1:4321").
        job: a name that all nodes of a run have, and no other run at the same addresses.
        build: a digest of what the nodes run, which must be the same on all.
        key: the key of the run. Without one only processes of the same user on this
            machine can connect.
        peers: the nodes to connect to; by default all others.
        nodes: the nodes of the run, if processes have several: `worker:0.1` is a thread of
            `worker:0`. In all other arguments, a node is a process.
        transport: how peers may be connected: see `transport.choose_transport`.
        encrypt: whether to use TLS over TCP. Without it, connections are still
            authenticated when they begin.
        bind: the address `HOST:PORT` to listen at, if it is not that of `endpoints`.
        join_timeout: seconds that `join` waits at most.
        lost_after: seconds of silence after which a peer is lost.
        limits: the fields of `types.Limits`.

    Raises:
        RunError: there is no such transport; an address is missing or malformed; there is
            no key for TCP, or the node cannot listen at its address.
    """

    has_connections = True

    def __init__(
        self,
        node: str,
        endpoints: Mapping[str, str],
        job: str,
        *,
        build: str = "",
        key: RunKey | None = None,
        peers: Collection[str] | None = None,
        nodes: Collection[str] | None = None,
        encrypt: bool = True,
        bind: str | None = None,
        transport: str = "auto",
        join_timeout: float = 600.0,
        lost_after: float = 60.0,
        **limits: Any,
    ) -> None:
        if node not in endpoints:
            raise RunError(
                f"no address for node '{node}'", hint=did_you_mean(node, endpoints)
            )
        streams = choose_streams(transport, endpoints)
        if key is None and "tcp" in streams:
            raise RunError(
                f"{node}: connections over TCP need a key",
                hint="`placer key new FILE` makes one; give every node --key FILE",
            )
        self._endpoints = {
            name: parse_endpoint(name, text) for name, text in endpoints.items()
        }
        self._names = sorted(endpoints)
        among = self._names if peers is None else peers
        self.limits = Limits(**limits)
        others = [n for n in self._names if n in among and n != node]
        super().__init__(node, Mailbox(node, others, self.limits, self), self)
        nodes = self._names if nodes is None else nodes
        self.own_nodes = tuple(n for n in nodes if NodeId(n).process == node)
        self.mailbox.add_nodes(nodes)
        # Those of the nodes of this process.
        self.channels: tuple[Channel, ...] = (self,) if node in self.own_nodes else ()
        self.window = self.limits.window(len(self.mailbox.peers))
        self.eager = min(MAX_EAGER, self.window // PIECE)
        self.arena = Arena()
        self._job, self._build = job, build
        self._join_timeout = join_timeout
        self._lost_after = lost_after
        self._tick = min(self.limits.beat / 2, lost_after / 16, TICK)
        self._peers = Peers(lost_after, self.limits.beat)
        self._second_since = 0.0  # since when another process is this node
        self._told_at = 0.0  # when the last statuses were sent
        self.on_peer: Callable[[PeerEvent], object] = self.end_if_lost
        self._unreported: list[Cause] = []  # failures to report to the peers
        self._joined = False
        self.is_closing = False  # and waits until its peers have all
        self._is_leaving = False  # and has said goodbye
        self._close_lock = threading.Lock()
        self._incarnation = secrets.randbits(63)
        self._over_tcp = "tls" if encrypt else "tcp"
        self._shares = "unix" in streams and is_supported()
        self.regions = Regions()
        self.links = {peer: Link(self, peer) for peer in others}
        self._links_by_fd: dict[int, Link] = {}
        self._blocked: set[Link] = set()  # those that may be blocked
        self._watches_frames = False  # `_epoll` reports the next event of `_frames`
        self._is_streaming = False  # the rest of a piece is on the way
        self._spin_skips = 0  # waits until the next spin
        self._next_spin_skips = 1  # `_spin_skips` after the next spin in vain
        # What the session's thread looks at: new connections, the end of established
        # ones, and `_frames` while a sender is blocked and no thread of the program reads.
        self._epoll = select.epoll()
        self._frames = select.epoll()  # the connections, for the thread that reads
        # Readable from a failure or the end of the run on: ends every wait for a frame.
        self._eventfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Wake the session's thread, and a thread that reads.
        self._ended = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._passed_on = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._eventfd_lock = threading.Lock()  # another thread may close them
        try:
            identities = None
            if key is not None and "tcp" in streams and encrypt:
                from placer.channel.tls import Identities

                identities = Identities(key, node, self.mailbox.peers)
            self.joining = Joining(
                self,
                job,
                self._endpoints,
                self._endpoints[node] if bind is None else parse_endpoint(node, bind),
                streams,
                key,
                identities,
                self._epoll,
            )
        except BaseException:
            self._close_events()
            raise
        for fd in (self._eventfd, self._ended):
            self._epoll.register(fd, select.EPOLLIN | select.EPOLLET)
        self._epoll.register(self._frames, 0)
        self._frames.register(self._eventfd, select.EPOLLIN)
        self._frames.register(self._passed_on, select.EPOLLIN | select.EPOLLET)
        self._thread = threading.Thread(
            target=self._run, name=f"placer channel of {node}", daemon=True
        )
        self._thread.start()

    def streams(self) -> dict[str, str]:
        unix = "shared memory" if self._shares else "unix socket"
        streams = {self.node: "thread"}
        for link in self._joined_links():
            streams[link.peer] = unix if link.is_unix else self._over_tcp
        nodes = [(n, each.peer) for n, each in self.mailbox.nodes.items()]
        return {n: streams[p] for n, p in nodes if n != self.node and p in streams}

    def _joined_links(self) -> list[Link]:
        return [link for link in self.links.values() if link.is_joined]

    def doing(self, peer: str) -> str:
        """Return what a peer last said that it does: of its nodes, the one that waits for
        the fewest others; empty if it has said nothing."""
        mailbox = self.mailbox
        statuses = [
            mailbox.statuses[node]
            for node, credit in mailbox.nodes.items()
            if credit.peer == peer and node in mailbox.statuses
        ]
        return min(statuses, key=len)[0].what if statuses else ""

    # The interface of protocol.Channel; see there.

    def join(self) -> None:
        mailbox = self.mailbox

        def missing() -> list[str]:
            return [link.peer for link in self.links.values() if not link.is_joined]

        mailbox.wait_until(
            lambda: not missing() or bool(mailbox.departed), self._join_timeout
        )
        absent = missing()
        if absent and mailbox.departed:
            left = ", ".join(sorted(mailbox.departed))
            raise RunError(f"{left} left before all had joined")
        if absent:
            own = show_endpoint(self._endpoints[self.node])
            raise RunError(
                "; ".join(map(self._absence, absent)),
                hint=f"start the node with the same build and key; {self.node} is at {own}."
                f" Or end another process of {self.node}, if one runs",
            )
        self._joined = True

    def _absence(self, peer: str) -> str:
        """Return that a peer did not join, and why as far as it is known."""
        where = show_endpoint(self._endpoints[peer])
        text = f"{peer} did not join within {self._join_timeout:g} s ({where})"
        return ": ".join(filter(None, (text, self.links[peer].reason)))

    def abort(self, cause: Cause) -> None:
        if self.mailbox.abort(cause) and not self._closed:
            self._broadcast_abort(cause)
            self._wake()

    def close(self) -> None:
        # The order matters. The thread runs until everything is delivered, because it
        # handles acknowledgements. `_closed` then refuses new calls. The thread ends
        # before the mailbox closes, which waits until no thread reads a socket, so that
        # the sockets can be closed.
        assert threading.current_thread() is not self._thread
        with self._close_lock:
            if self._closed:
                return
            try:
                if self.aborted is None and self._joined:
                    self._flush()
                    self._say_goodbye()
                elif self.aborted is not None:
                    self.mailbox.wait_until(
                        self._all_informed, LATE_JOIN_WAIT, failed=True
                    )
            finally:  # also when a signal interrupts the wait
                self._closed = True
                self._wake()
                self._thread.join()
                self.mailbox.close()
                self._close_sockets()

    def check_open(self) -> None:
        super().check_open()
        if not self._joined and self.aborted is None:
            raise RunError(f"{self.node}: the channel has not joined its peers yet")

    # The interface of mailbox.Carrier; see there.

    def transmit(
        self, node: str, to: str, key: Key, arrays: list[Array], follows: bool
    ) -> None:
        mailbox = self.mailbox
        credit = mailbox.credit(node, to)
        if credit.peer == self.node:
            mailbox.pass_on(Message(node, to, key, 0, 0, read_only_views(arrays)))
            if mailbox.is_read:  # by a thread that may wait for this message
                self._signal(self._passed_on)
            return
        link = self.links[credit.peer]
        # Those that the peer can map.
        references = self.regions.find(arrays) if link.is_unix else ()
        contents = describe_arrays(arrays, references)
        nbytes, copied_nbytes = contents.nbytes, contents.copied_nbytes
        mailbox.reserve(node, to, key, nbytes, copied_nbytes, follows)
        link.send(node, to, key, contents, arrays)

    def open_message(
        self, node: str, to: str, key: Key, arrays: Sequence[Array]
    ) -> OpenMessage | None:
        link = self.links.get(self.mailbox.credit(node, to).peer)
        if (
            link is None or link.is_unix
        ):  # another thread; or the peer maps them, or copies
            return None
        contents = describe_arrays(arrays)
        if contents.is_inline:
            return None

        @cache
        def begin() -> Outgoing:
            nbytes, copied_nbytes = contents.nbytes, contents.copied_nbytes
            self.mailbox.reserve(node, to, key, nbytes, copied_nbytes)
            return link.send(node, to, key, contents, arrays, written=False)

        def written(array: int, stop: int) -> None:
            link.add_written(begin(), array, stop)

        return OpenMessage(lambda: written(len(arrays), 0), written)

    def tell(self, peer: str, frame: frames.Probe | frames.Demand) -> None:
        self.links[peer].tell(frame)

    def ask(self, peer: str) -> None:
        self.links[peer].send_beat()

    def acknowledge(self, peer: str, total: int) -> None:
        self.links[peer].acknowledge(total)

    def _allocate(self, nbytes: int) -> Bytes:
        if self._shares:
            return self.regions.allocate(nbytes, self.node)
        return super()._allocate(nbytes)

    def pool_region(self) -> Region | None:
        """Return new memory for the pool of a link, or None: its pieces then go over the
        connection."""
        chunks = min(MAX_CHUNKS, self.window // PIECE)
        if not self._shares or not chunks:
            return None
        return Region(0, chunks * PIECE, self.node)

    def _flush(self) -> None:
        """Wait until every peer has what was sent to it."""

        # A peer may lack its last messages, or, while its connection is broken, the
        # GOODBYE would be lost.
        def is_delivered() -> bool:
            return not any(
                link.ended or not link.is_delivered
                for link in self.links.values()
                if link.peer not in self.mailbox.departed
            )

        self.is_closing = True
        for link in self.links.values():
            if not link.is_delivered and link.peer not in self.mailbox.departed:
                # Its program may receive that later.
                link.tell(frames.Clear())
        self.mailbox.change_needs()
        # A failure ends the flush; the caller finds it in `aborted`.
        with suppress(Aborted):
            self.mailbox.wait_until(is_delivered, self.limits.deadline)

    def _say_goodbye(self) -> None:
        """Tell the peers that this node has ended its run. One whose connection breaks is
        told when it has connected again, or it would wait for this node."""
        links = self.links.values()
        self._is_leaving = True
        for link in links:
            link.tell(frames.Goodbye())

        def is_told() -> bool:
            return all(link.is_over for link in links)

        def is_told_or_slow() -> bool:
            return all(link.is_over or not link.ended for link in links)

        with suppress(Aborted):
            self.mailbox.wait_until(is_told, CLOSE_LINGER)
            self.mailbox.wait_until(is_told_or_slow, RECONNECT_WAIT)

    def _all_informed(self) -> bool:
        """Whether all peers know of the failure: a connection begins with it."""
        links, departed = self.links.values(), self.mailbox.departed
        return all(link.peer in departed or link.is_informed for link in links)

    def read(self, timeout: float) -> bool:
        events = [] if timeout <= 0 or self._is_streaming else self._spin()
        has_read = self._is_streaming = False
        for fd, event in events or self._frames.poll(timeout, MAX_EVENTS):
            link = self._links_by_fd.get(fd)
            if link is not None:
                has_read = True
                link.on_event(event)
                if not link.socket.filled:
                    self._is_streaming = True
                if link.peer_clears and link not in self._blocked:
                    self.need(link.peer)
        return has_read

    def reading_stopped(self) -> None:
        # The session's thread is woken by what arrives next, while a sender is blocked,
        # here or (to close) at the peer, or a message is expected.
        blocked = self._blocked
        if blocked:
            self._blocked = blocked = {link for link in blocked if link.is_blocked}
        is_needed = (blocked or self.is_closing) and self.aborted is None
        if is_needed and not self._watches_frames and not self._epoll.closed:
            self._watches_frames = True
            self._epoll.modify(self._frames, select.EPOLLIN | select.EPOLLONESHOT)

    def need(self, peer: str) -> None:
        if (link := self.links.get(peer)) is not None:
            self.mailbox.change_needs(lambda: self._blocked.add(link))

    def _spin(self) -> list[tuple[int, int]]:
        """Poll without sleeping for `SPIN` seconds; return the events, if any."""
        # Waking a thread that sleeps takes the kernel longer than a peer on another
        # core takes to reply to a small message, so polling first shortens the round
        # trip. It only helps when the peer is running: where it computes, or has to
        # share this core, spinning delays everybody. So each spin in vain doubles the
        # number of waits that sleep at once, and a successful one resets it.
        if self._spin_skips:
            self._spin_skips -= 1
            return []
        until = time.perf_counter() + SPIN
        while not (events := self._frames.poll(0, MAX_EVENTS)):
            if time.perf_counter() > until:
                self._spin_skips = self._next_spin_skips
                self._next_spin_skips = min(2 * self._next_spin_skips, MAX_SPIN_SKIPS)
                return []
        self._next_spin_skips = 1
        return events

    # Run by the session's thread.

    def fail(self, cause: Cause) -> None:
        """Record a failure found here; the thread reports it to the peers.

        May be called by a thread that reads a socket, so it does not wait.
        """
        if self.mailbox.abort(cause):
            self._unreported.append(cause)
            self._wake()

    def connection_ended(self) -> None:
        """Have the thread connect again; called by the thread that reads."""
        self._signal(self._ended)

    def _identity(self, sender: str, receiver: str) -> Identity:
        """Return who the sender of a `Hello` is."""
        return Identity(self._job, self._build, sender, receiver, self._names)

    def _wake(self) -> None:
        """End `_poll` and every wait of the program for a frame."""
        self._signal(self._eventfd)

    def _signal(self, eventfd: int) -> None:
        with self._eventfd_lock:
            if not self._epoll.closed:
                os.eventfd_write(eventfd, 1)

    def _broadcast_abort(self, cause: Cause) -> None:
        for link in self._joined_links():  # `connected` serves the others
            link.socket.put(frames.encode(Abort.of(cause)))

    def _run(self) -> None:
        join_due = due = beat_due = 0.0
        try:
            while not self._closed:
                is_joining = self.joining.is_waiting
                self._poll(min(CONNECT_PAUSE, self._tick) if is_joining else self._tick)
                self._report_failures()
                now = time.monotonic()
                if now >= join_due:
                    join_due = now + CONNECT_PAUSE
                    self.joining.on_tick(now)
                if now >= due:
                    due = now + self._tick
                    is_beat = now >= beat_due
                    if is_beat:
                        beat_due = now + self.limits.beat
                    self._on_tick(now, is_beat)
            self._report_failures()
        except Exception as error:
            # Without this thread nothing would end a wait before its deadline.
            is_known = isinstance(error, RunError)
            what = str(error) if is_known else f"{type(error).__name__}: {error}"
            self.fail(Cause(self.node, "channel", what))
            self._report_failures()
            if not is_known:
                raise

    def _report_failures(self) -> None:
        while self._unreported:
            cause = self._unreported.pop()
            self._broadcast_abort(cause)
            self.on_abort(cause)

    def _poll(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for events, and handle them."""
        for fd, _ in self._epoll.poll(timeout):
            if fd == self._frames.fileno():
                self._watches_frames = False
                self._drain()
            elif fd in self._links_by_fd:
                self._drain()
            elif fd not in (self._eventfd, self._ended):
                self.joining.on_event(fd)

    def _drain(self) -> None:
        """Handle what has arrived, unless another thread does that."""
        for _ in range(DRAIN_LIMIT):
            if not self.mailbox.read():
                break
        self.mailbox.notify()

    def _on_tick(self, now: float, is_beat: bool) -> None:
        """Do what is due from time to time; with `is_beat`, send heartbeats."""
        self._drain()
        if is_beat:
            status = self._status(now)
        for link in self.links.values():
            if link.heard:
                link.heard = False
                self._report_peers(self._peers.hear(link.peer, now))
            if is_beat and not link.ended and not link.socket.full:
                link.send_beat(status=status)
        for peer in list(self.mailbox.departed):
            self._peers.forget(peer)
        self._report_peers(self._peers.check(now))
        self.mailbox.notify()

    def _status(self, now: float) -> bytes:
        """Return frames that say what the nodes of this process do, and note it here."""
        encoded, statuses = b"", self.mailbox.statuses
        elapsed, self._told_at = now - self._told_at, now
        for channel in self.channels:
            what, waits_for = channel.describe(), channel.waiting()
            status = own_status(channel.node, what, waits_for, statuses, elapsed)
            statuses[channel.node] = status
            encoded += frames.encode(frames.Status(status))
        return encoded

    def _report_peers(self, events: list[PeerEvent]) -> None:
        for event in events:
            self.on_peer(event)

    def end_if_lost(self, event: PeerEvent) -> None:
        """End the run if a peer is lost: what `on_peer` does by default."""
        if event.state is PeerState.LOST:
            what = f"lost: no heartbeat for {self._lost_after:g} s"
            self.links[event.peer].lose(what)

    # What `joining` asks; run by the session's thread.

    def refused_by(self, peer: str) -> None:
        """Note that a peer does not listen. If this node wants to close, and the peer has
        all that was sent to it, then it has ended its run, and its GOODBYE was lost with
        the connection."""
        link = self.links[peer]
        if self.is_closing and link.ended and link.is_delivered:
            self.mailbox.mark_departed(peer)

    def has_position(self, peer: str) -> bool:
        """Whether it is final what was received of a peer; ends its connection if there
        still is one."""
        link = self.links[peer]
        if not link.ended:
            link.socket.abandon()
            self._drain()
        return link.ended

    def greet(self, peer: str, nonce: bytes) -> Hello:
        """Return the greeting for a peer, whose position is final."""
        identity, position = (
            self._identity(self.node, peer),
            self.links[peer].position(),
        )
        return Hello(identity, self.window, self._incarnation, *position, nonce)

    def check(self, hello: Hello, newcomer: FrameSocket) -> None:
        """Raise Refused unless a greeting is of a peer of this run."""
        peer = hello.identity.node
        theirs, ours = hello.identity, self._identity(peer, self.node)
        if theirs.build != ours.build:
            raise Refused("it has another build")
        if theirs != ours:
            raise Refused("it is of another run")
        link = self.links[peer]
        if link.incarnation not in (None, hello.incarnation):
            if peer in self.mailbox.departed:
                raise Refused("it has ended its run")
            if not link.ended:
                self._drain()  # the connection may have ended
            if not link.ended and self._peers.is_alive(peer):
                # Both may be meant to be this node, but it is the first one that the
                # run has a state of.
                raise Refused(
                    f"this node runs already, at {link.socket.peer_address}; the second"
                    f" process is at {newcomer.peer_address}: end one of them",
                    is_second=True,
                )
            self.fail(Cause(peer, f"seen from {self.node}", "was restarted"))
            raise Refused("it was restarted")
        if link.is_invalid:
            raise Refused("it is lost")
        if peer in self.mailbox.departed or link.is_unix:
            raise Refused("it has another connection")

    def refused_as_second(self, why: str) -> None:
        """Note that a peer is connected to another process of this node. This one fails if
        that is still so after a time in which the peer would have missed the other one."""
        now = time.monotonic()
        self._second_since = self._second_since or now
        if now - self._second_since >= SECOND_WAIT:
            self.fail(Cause(self.node, "", why))

    def connected(self, peer: str, socket: FrameSocket, hello: Hello) -> None:
        """Serve a peer that is connected now, for the first time or again."""
        self._report_peers(self._peers.hear(peer, time.monotonic()))
        link = self.links[peer]
        if link.is_joined:
            del self._links_by_fd[link.socket.fd]
        try:
            link.connect(socket, hello)
        except InvalidFrame as why:
            socket.close()
            link.lose(f"sent an invalid frame: {why}")
            return
        link.is_joined = True
        if self.is_closing:  # the request may have been lost with the connection
            link.tell(frames.Clear())
        if self._is_leaving:
            link.tell(frames.Goodbye())
        # A thread that aborts sets the cause first and looks for links second; here the
        # order is the reverse, so that the peer gets the cause from one of the two.
        if self.aborted is not None:
            socket.put(frames.encode(Abort.of(self.aborted)))
        self._links_by_fd[socket.fd] = link
        self._epoll.register(socket.fd, _ENDED)
        socket.serve(self._frames)
        self._drain()

    def _close_sockets(self) -> None:
        # The order matters. GOODBYE goes behind all other frames. Then each side waits
        # for the end of the other one: a socket that is closed with unread bytes
        # discards what it has not sent. After a failure, `_broadcast_abort` has sent
        # ABORT already.
        cause = self.aborted
        last = frames.encode(frames.Goodbye() if cause is None else Abort.of(cause))
        until = time.monotonic() + CLOSE_LINGER
        for link in self._joined_links():
            if cause is None and not self._is_leaving:
                link.socket.put(last)
            link.socket.linger(until)
            link.socket.finish()
        for link in self._joined_links():
            link.socket.drain(until)
            link.close()
        self.joining.close(last)
        self._close_events()
        self.regions.close()

    def _close_events(self) -> None:
        with self._eventfd_lock:
            self._epoll.close()
            self._frames.close()
            os.close(self._eventfd)
            os.close(self._ended)
            os.close(self._passed_on)
