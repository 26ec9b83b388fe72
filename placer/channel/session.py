"""Connects a node process to its peers and keeps the connections alive until the run ends.

The session has one thread. It connects the peers, sends heartbeats, notices silent peers and
reports failures. So a node that computes for minutes stays alive for its peers. The thread reads
connections only while no thread of the program does.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final

from msgspec.structs import replace

from placer.channel import frames
from placer.channel.cause import Aborted, Cause
from placer.channel.connecting import Joining
from placer.channel.contents import describe_arrays
from placer.channel.endpoint import parse_endpoint, show_endpoint
from placer.channel.frame_socket import FrameSocket
from placer.channel.frames import Abort, Hello, Identity, InvalidFrame, Refused
from placer.channel.incarnations import Incarnations
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
"""Seconds between two attempts to connect to absent peers."""
TICK: Final = 0.1
"""Seconds until the session's thread reads frames that no thread waits for."""
LATE_JOIN_WAIT: Final = 5.0
"""Seconds that a failed node waits for unconnected peers. This is enough for nodes that were
started together to come up."""
CLOSE_LINGER: Final = 1.0
"""Seconds that `close` waits until the last frames (GOODBYE, ABORT) are sent."""
CONTINUE_LINGER: Final = 0.1
"""The same, where another attempt follows: its HELLOs tell the rest."""
RECONNECT_WAIT: Final = 5.0
"""Seconds that `close` then waits for peers whose connections have broken."""
SPIN: Final = 100e-6
"""Seconds to poll for frames before sleeping: twice the time of a reply of a peer that is awake."""
MAX_SPIN_SKIPS: Final = 256
"""The largest number of waits without spinning, after spins without success."""
DRAIN_LIMIT: Final = 64
"""How often the session's thread reads before it handles its other events."""
MAX_EVENTS: Final = 64
"""The number of ready sockets to handle per call of `epoll`."""
_ENDED: Final = select.EPOLLRDHUP | select.EPOLLONESHOT


class Session(Channel, Carrier):
    """The channel of a node that runs as a process.

    If a process has several nodes, they share it (`thread_channel`). Opening it starts its
    thread, which connects to the peers.

    Args:
        node: the name of this node.
        endpoints: the address of every node of the run ("worker:0" -> "127.0.0.1:4321").
        job: the name of the run, which must differ from other runs at the same addresses.
        build: a digest of the build, which must be the same on all nodes.
        key: the key of the run. Without a key, only processes of the same user on this
            machine can connect.
        peers: the nodes to connect to; by default all other nodes.
        nodes: the nodes of the run, if processes have several: `worker:0.1` is a thread of
            `worker:0`. In all other arguments, a node is a process.
        transport: how peers may be connected: see `transport.choose_transport`.
        encrypt: whether to use TLS over TCP. Without TLS, connections are still
            authenticated at their start.
        bind: the address `HOST:PORT` to listen at, if it differs from `endpoints`.
        join_timeout: the longest time that `join` waits, in seconds.
        lost_after: seconds of silence after which a peer is lost.
        attempt: the attempt of the run that this session belongs to, counted from 1.
        incarnations: the memory of this process; a new one by default. The sessions of a
            process must share it.
        limits: the fields of `types.Limits`.

    Attributes:
        on_peer: called with each change of a peer's state, in the thread that finds it. May
            be set.
        links: the links by peer name.
        regions: the shared memory of this node, to send from.
        arena: buffers for received arrays.
        eager: how many pieces a peer may send before this node asks for a message.
        continues: whether another attempt follows a failure whose cause is not final, so that
            `close` need not wait for absent peers. May be set.
        newer_attempt: the largest attempt of a peer that is larger than `attempt`; 0 if none.
        is_replaced: whether another process is this node, so that this process must end.

    Raises:
        RunError: if the transport does not exist, an address is missing or malformed, TCP
            has no key, or the node cannot listen at its address.
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
        attempt: int = 1,
        incarnations: Incarnations | None = None,
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
                hint="create a key with `placer key new FILE`; start every node with --key FILE",
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
        # The channels of the nodes in this process.
        self.channels: tuple[Channel, ...] = (self,) if node in self.own_nodes else ()
        self.window = self.limits.window(len(self.mailbox.peers))
        self.eager = min(MAX_EAGER, self.window // PIECE)
        self.arena = Arena()
        self._job, self._build = job, build
        self._join_timeout = join_timeout
        self._lost_after = lost_after
        self._slow_tick = min(self.limits.beat / 2, lost_after / 16)
        self._fast_tick = self._tick = min(self._slow_tick, TICK)
        self._peers = Peers(lost_after, self.limits.beat)
        # The peers that refuse this process as a second one, and since when.
        self.second_since: dict[str, float] = {}
        self._told_at = 0.0  # when the last statuses were sent
        self.on_peer: Callable[[PeerEvent], object] = self.end_if_lost
        self._unreported: list[Cause] = []  # failures to report to the peers
        self._joined = False
        self.is_closing = False  # waits until its peers have received everything
        self._is_leaving = False  # has said goodbye
        self._close_lock = threading.Lock()
        self.attempt = attempt
        self.incarnations = incarnations or Incarnations()
        self.continues = False
        self.newer_attempt = 0
        self.is_replaced = False
        self._over_tcp = "tls" if encrypt else "tcp"
        self._shares = "unix" in streams and is_supported()
        self.regions = Regions()
        self.links = {peer: Link(self, peer) for peer in others}
        self._links_by_fd: dict[int, Link] = {}
        self._blocked: set[Link] = set()  # links that may be blocked
        self._watches_frames = False  # `_epoll` reports the next event of `_frames`
        self._is_streaming = False  # the rest of a piece is on the way
        self._spin_skips = 0  # waits until the next spin
        self._next_spin_skips = 1  # `_spin_skips` after the next failed spin
        # The session's thread polls it. It reports new connections, the end of established
        # connections, and `_frames` while a sender is blocked and no thread of the program
        # reads.
        self._epoll = select.epoll()
        self._frames = select.epoll()  # the connections, for the reading thread
        # Readable after a failure or the end of the run: ends every wait for a frame.
        self._eventfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # These wake the session's thread, and the reading thread.
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
        """Return the last reported activity of a peer; empty if it has reported none.
        Of its nodes, the one with the shortest chain of waits is used."""
        mailbox = self.mailbox
        statuses = [
            mailbox.statuses[node]
            for node, credit in mailbox.nodes.items()
            if credit.peer == peer and node in mailbox.statuses
        ]
        return min(statuses, key=len)[0].what if statuses else ""

    # The methods of `Channel`.

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
                f" If another process of {self.node} runs, end it",
            )
        self._joined = self.incarnations.has_been_in_attempt = True

    def move(self, peer: str, address: str, *, replaced: bool = False) -> None:
        """Connect to a peer at another address from now on: its node has moved. If its process
        is `replaced`, the attempt fails if the process has joined it."""
        self._endpoints[peer] = parse_endpoint(peer, address)
        if replaced and peer in self.links and self.links[peer].is_joined:
            self.abort(Cause(peer, f"seen from {self.node}", f"moved to {address}"))

    def _absence(self, peer: str) -> str:
        where = show_endpoint(self._endpoints[peer])
        text = f"{peer} did not join within {self._join_timeout:g} s ({where})"
        return ": ".join(filter(None, (text, self.links[peer].reason)))

    def abort(self, cause: Cause) -> None:
        if self.mailbox.abort(cause) and not self._closed:
            self._broadcast_abort(cause)
            self._wake()

    def close(self) -> None:
        # The order matters. The thread runs until everything is delivered, because it handles
        # acknowledgements. `_closed` then refuses new calls. The thread ends before the mailbox
        # closes. The mailbox waits until no thread reads a socket, so that the sockets can be
        # closed.
        assert threading.current_thread() is not self._thread
        with self._close_lock:
            if self._closed:
                return
            try:
                if self.aborted is None and self._joined:
                    self._flush()
                    self._say_goodbye()
                elif self.aborted is not None and not self._is_followed:
                    self.mailbox.wait_until(
                        self._all_informed, LATE_JOIN_WAIT, failed=True
                    )
            finally:  # even if a signal interrupts the wait
                self._closed = True
                self._wake()
                self._thread.join()
                self.mailbox.close()
                self._close_sockets()

    @property
    def _is_followed(self) -> bool:
        """Whether another attempt follows the failure of this one."""
        cause = self.aborted
        return self.continues and cause is not None and not cause.is_final

    def check_open(self) -> None:
        super().check_open()
        if not self._joined and self.aborted is None:
            raise RunError(f"{self.node}: the channel has not joined its peers yet")

    # The methods of `Carrier`.

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
        # The peer can map arrays in shared memory.
        references = self.regions.find(arrays) if link.is_unix else ()
        contents = describe_arrays(arrays, references)
        nbytes, copied_nbytes = contents.nbytes, contents.copied_nbytes
        mailbox.reserve(node, to, key, nbytes, copied_nbytes, follows)
        link.send(node, to, key, contents, arrays)

    def open_message(
        self, node: str, to: str, key: Key, arrays: Sequence[Array]
    ) -> OpenMessage | None:
        link = self.links.get(self.mailbox.credit(node, to).peer)
        # A thread of this process, or a peer that maps or copies the arrays.
        if link is None or link.is_unix:
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
        """Return new memory for the pool of a link. None means: send pieces over the connection."""
        chunks = min(MAX_CHUNKS, self.window // PIECE)
        if not self._shares or not chunks:
            return None
        return Region(0, chunks * PIECE, self.node)

    def _flush(self) -> None:
        # A peer may lack its last messages. While a connection is broken, GOODBYE would be lost.
        def is_delivered() -> bool:
            return not any(
                link.ended or not link.is_delivered
                for link in self.links.values()
                if link.peer not in self.mailbox.departed
            )

        self.is_closing = True
        for link in self.links.values():
            if not link.is_delivered and link.peer not in self.mailbox.departed:
                # The peer's program may receive the messages later.
                link.tell(frames.Clear())
        self.mailbox.change_needs()
        # A failure ends the flush; the caller finds the failure in `aborted`.
        with suppress(Aborted):
            self.mailbox.wait_until(is_delivered, self.limits.deadline)

    def _say_goodbye(self) -> None:
        """Tell the peers that this node has ended its run. A peer with a broken
        connection is told after it has reconnected. Otherwise it would wait for this
        node."""
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
        # The next data must wake the session's thread while a sender is blocked, here or (to
        # close) at the peer, or while a message is expected.
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
        # The kernel takes longer to wake a sleeping thread than a peer on another core takes to
        # reply to a small message. So polling first shortens the round trip. It helps only
        # while the peer runs: if the peer computes, or shares this core, spinning delays both.
        # So each failed spin doubles the number of waits that sleep at once, and a successful
        # spin resets it.
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
        """Record a failure found here; the thread reports it to the peers. It does not
        wait, because a thread that reads a socket may call it."""
        if self.mailbox.abort(cause):
            self._unreported.append(cause)
            self._wake()

    def connection_ended(self) -> None:
        """Have the session's thread connect again; called by the reading thread."""
        self._signal(self._ended)

    def identity(self, sender: str, receiver: str) -> Identity:
        """Return the identity that a HELLO of this session has."""
        return Identity(
            self._job, self._build, sender, receiver, self._names, self.attempt
        )

    def _wake(self) -> None:
        """End `_poll` and every wait of the program for a frame."""
        self._signal(self._eventfd)

    def tick_slowly(self, is_slow: bool) -> None:
        self._tick = self._slow_tick if is_slow else self._fast_tick

    def _signal(self, eventfd: int) -> None:
        with self._eventfd_lock:
            if not self._epoll.closed:
                os.eventfd_write(eventfd, 1)

    def _broadcast_abort(self, cause: Cause) -> None:
        for link in self._joined_links():  # `connected` tells peers that join later
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
            # Without this thread, waits would end only at their deadline.
            is_known = isinstance(error, RunError)
            what = str(error) if is_known else f"{type(error).__name__}: {error}"
            self.fail(Cause(self.node, "channel", what, is_error=True))
            self._report_failures()
            if not is_known:
                raise

    def _report_failures(self) -> None:
        while self._unreported:
            cause = self._unreported.pop()
            self._broadcast_abort(cause)
            self.on_abort(cause)

    def _poll(self, timeout: float) -> None:
        for fd, _ in self._epoll.poll(timeout):
            if fd == self._frames.fileno():
                self._watches_frames = False
                self._drain()
            elif fd in self._links_by_fd:
                self._drain()
            elif fd not in (self._eventfd, self._ended):
                self.joining.on_event(fd)

    def _drain(self) -> None:
        """Handle received data, unless another thread reads."""
        for _ in range(DRAIN_LIMIT):
            if not self.mailbox.read():
                break
        self.mailbox.notify()

    def _on_tick(self, now: float, is_beat: bool) -> None:
        """Do the periodic work; if `is_beat`, also send heartbeats."""
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
        """Return frames with the statuses of this process's nodes, and store the statuses."""
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
        """End the run if a peer is lost. This is the default of `on_peer`."""
        if event.state is PeerState.LOST:
            what = f"lost: no heartbeat for {self._lost_after:g} s"
            self.links[event.peer].lose(what)

    # Called by `joining`, in the session's thread.

    def refused_by(self, peer: str) -> None:
        """Note that a peer does not listen. If this node wants to close and the peer
        has received everything, the peer must have ended its run, and its GOODBYE was
        lost with the connection."""
        link = self.links[peer]
        if self.is_closing and link.ended and link.is_delivered:
            self.mailbox.mark_departed(peer)

    def has_position(self, peer: str) -> bool:
        """Return True if no more messages can arrive on the old connection of a peer.
        Ends that connection if it still exists."""
        link = self.links[peer]
        if not link.ended:
            link.socket.abandon()
            self._drain()
        return link.ended

    def greet(self, peer: str, nonce: bytes, refused: Refused | None = None) -> Hello:
        """Return the HELLO for a peer whose position is final, or one that refuses it."""
        link = self.links[peer]
        if not link.is_joined:
            link.own_incarnation = self.incarnations.own
        hello = Hello(
            self.identity(self.node, peer),
            self.window,
            link.own_incarnation,
            self.incarnations.of(peer),
            nonce=nonce,
        )
        if refused is not None:
            why = frames.as_text(str(refused))
            return replace(hello, refusal=why, is_second=refused.is_second)
        expected, incomplete = link.position()
        return replace(hello, expected=expected, incomplete=incomplete)

    def is_heard(self, peer: str, *, despite: int) -> bool:
        """Whether the process that is connected as this peer is alive, although another
        process of the node says HELLO."""
        link = self.links[peer]
        if not link.ended:
            self._drain()  # notice if the connection has ended
        is_open = not link.ended and not link.socket.has_hung_up
        # If the other process was refused before, both are alive, and the connection of the first
        # one may only be broken.
        is_known = despite in link.seconds
        return (is_known or is_open) and self._peers.is_alive(peer)

    def connected(self, peer: str, socket: FrameSocket, hello: Hello) -> None:
        """Start serving a peer that has connected, for the first time or again."""
        self._report_peers(self._peers.hear(peer, time.monotonic()))
        self.incarnations.see(peer, hello.incarnation, socket.peer_address)
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
        if self.is_closing:  # an earlier CLEAR may have been lost with the connection
            link.tell(frames.Clear())
        if self._is_leaving:
            link.tell(frames.Goodbye())
        # An aborting thread first sets the cause and then looks for links. Here the order is
        # reversed, so one of the two threads sends the cause to the peer.
        if self.aborted is not None:
            socket.put(frames.encode(Abort.of(self.aborted)))
        self._links_by_fd[socket.fd] = link
        self._epoll.register(socket.fd, _ENDED)
        socket.serve(self._frames)
        self._drain()

    def _close_sockets(self) -> None:
        # The order matters. GOODBYE follows all other frames. Then each side waits for the end of
        # the other side: a socket that is closed with unread bytes discards its unsent data. After a
        # failure, `_broadcast_abort` has already sent ABORT.
        cause = self.aborted
        last = frames.encode(frames.Goodbye() if cause is None else Abort.of(cause))
        linger = CONTINUE_LINGER if self._is_followed else CLOSE_LINGER
        until = time.monotonic() + linger
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
