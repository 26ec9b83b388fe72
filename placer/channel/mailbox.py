"""The state of a process's channels: received messages, credits, and waiting threads.

Messages are delivered here, and every call of the program blocks here. One lock guards the whole
state. The carrier is called without the lock, because it may enter another mailbox.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from placer.channel.cause import Aborted, Cause, DeadlineError
from placer.channel.credits import Credit
from placer.channel.frames import Demand, Probe
from placer.channel.message import MESSAGE_COST, Message
from placer.channel.open_message import OpenMessage
from placer.channel.peers import Status
from placer.channel.types import Array, Key, Limits, Piece
from placer.errors import RunError, did_you_mean
from placer.place.node_kinds import NodeId

FIRST_PAUSE: Final = 0.005
"""Seconds after which a waiting sender checks again for a deadlock; the pause then doubles."""

Result = TypeVar("Result")
WatchWait = Callable[[tuple[str, ...], Key, bool], AbstractContextManager[None]]
"""Makes the context manager around a wait. The arguments are the peers, the key of the message, and
whether the wait is for room to send, not for a message."""


class Carrier:
    """The transport between mailboxes.

    Attributes:
        has_connections: whether the receiver must read connections.
    """

    has_connections = False

    def transmit(
        self, node: str, to: str, key: Key, arrays: list[Array], follows: bool
    ) -> None:
        """Send checked, C-contiguous arrays from one node to another."""
        raise NotImplementedError

    def open_message(
        self, node: str, to: str, key: Key, arrays: Sequence[Array]
    ) -> OpenMessage | None:
        """Start a message that is sent as it is written; None if that is not supported."""
        return None

    def tell(self, peer: str, frame: Probe | Demand) -> None:
        """Send a frame to a peer; the peer's mailbox handles it."""
        raise NotImplementedError

    def acknowledge(self, peer: str, total: int) -> None:
        """Tell a peer, now or later, that `total` of its bytes are acknowledged."""
        raise NotImplementedError

    def ask(self, peer: str) -> None:
        """Tell a peer at once how much credit is wanted."""

    def read(self, timeout: float) -> bool:
        """Handle received data; wait for it up to `timeout` seconds. Only one thread at
        a time calls this. Returns False if no data arrived. Returns early if the run
        has failed or ended."""
        return False

    def need(self, peer: str) -> None:
        """Have a peer's data read, even if no thread of the program waits."""

    def tick_slowly(self, is_slow: bool) -> None:
        """Do periodic work less often, because the nodes only wait for messages, or as often as
        before."""

    def reading_stopped(self) -> None:
        """Note that no thread reads the connections now; called with the lock held."""


@dataclass(eq=False, slots=True)
class _Wait:
    """A thread that waits for any of `peers`.

    Attributes:
        probe: the number of its last probe.
        edge: the edge of the message.
    """

    node: str
    peers: tuple[str, ...]
    is_stuck: Callable[[], bool]
    probe: int = 0
    edge: int = 0


class Mailbox:
    """The messages of the nodes of one process, and all waits of their programs.

    Safe to use from several threads.

    Attributes:
        node: the name of this process.
        bytes_sent: payload bytes by sending node.
        aborted: the root cause once the run has failed.
        departed: the peers that have ended their run.
        credits: the credit of each peer process.
        nodes: the credit for each node of this process and its peers. Several nodes of a
            process share its credit.
        is_read: whether a thread reads the connections.
        statuses: the last status of each node.
    """

    def __init__(
        self, node: str, peers: Collection[str], limits: Limits, carrier: Carrier
    ) -> None:
        self.node = node
        self.peers = tuple(peers)
        self.bytes_sent: Counter[str] = Counter()
        self.bytes_received = 0
        self.aborted: Cause | None = None
        self.departed: set[str] = set()
        window = limits.window(len(self.peers))
        self.credits = {peer: Credit(peer, window) for peer in self.peers}
        self.nodes: Mapping[str, Credit] = self.credits
        self.has_deadline = True
        self.is_read = False
        self.statuses: dict[str, Status] = {}
        self._limits = limits
        self._carrier = carrier
        self._closed = False
        self._lock = threading.RLock()  # cheaper to enter than the condition
        self._changed = threading.Condition(self._lock)
        self._sleepers = 0  # threads that wait for `_changed`
        # The keys of the next two dicts are addresses: receiver, source and key. The queues hold
        # messages that no call has claimed yet.
        self._queues: dict[tuple[str, str, Key], deque[Message]] = {}
        # Arrays for messages that may arrive before the program asks for them.
        self._expected: dict[tuple[str, str, Key], Sequence[Array | None]] = {}
        self._listeners: dict[tuple[str, int], Callable[[str], object]] = {}
        self._watches: dict[str, WatchWait] = {}
        self._waits: set[_Wait] = set()
        self._probes = 0
        self._passed: dict[str, int] = {}  # the last forwarded probe of each peer

    # Called by the program, through the channel.

    def add_nodes(self, names: Collection[str]) -> None:
        """Allow messages to and from these nodes, and between the nodes of this process."""
        credits = {**self.credits, self.node: Credit(self.node, 0)}
        of_processes = [(name, NodeId(name).process) for name in names]
        self.nodes = {name: credits[p] for name, p in of_processes if p in credits}

    def listen(self, node: str, edge: int, call: Callable[[str], object]) -> None:
        with self._lock:
            self._listeners[node, edge] = call
            stored = [
                source
                for (to, source, key), messages in self._queues.items()
                for _ in messages
                if (to, key.edge) == (node, edge)
            ]
        for source in stored:
            call(source)

    def watch_waits(self, node: str, watch: WatchWait) -> None:
        """Enter a context of `watch` around every call of a node that may wait."""
        self._watches[node] = watch

    def reserve(
        self,
        node: str,
        to: str,
        key: Key,
        nbytes: int,
        copied_nbytes: int,
        follows: bool = False,
    ) -> None:
        """Wait until the bound has room for a message of a node, and count the message.

        Args:
            node, to: the sending and the receiving node.
            key: the key of the message.
            nbytes: the bytes of the payload.
            copied_nbytes: the bytes of the payload that take credit.
            follows: whether the message continues an earlier message; it then does not wait.

        Raises:
            RunError: if the message is too large, the peer has ended its run or the
                deadline passes.
            Aborted: if the run has failed.
        """
        credit = self.credit(node, to)
        if copied_nbytes > self._limits.max_message:
            raise RunError(
                f"{key} from {node} to {to}: a message of {copied_nbytes} bytes "
                f"is over the maximum of {self._limits.max_message}",
                hint="use a smaller batch, or place parameters on more nodes",
            )
        cost = copied_nbytes + MESSAGE_COST

        def take() -> bool:
            has_room = follows or credit.has_room(cost)
            if has_room:
                credit.sent += cost
                self.bytes_sent[node] += nbytes
            return has_room

        with self._lock:
            self._check_run()
            has_room = credit.peer not in self.departed and take()
            if not has_room:
                credit.waiting.append(cost)
        if credit.waiting:
            self._ask(credit)
        if has_room:
            return
        wait = _Wait(node, (to,), lambda: not credit.has_room(cost))
        try:
            self._wait(wait, key, take, sending=True)
        finally:
            with self._lock:
                credit.waiting.remove(cost)
            self._ask(credit)

    def _ask(self, credit: Credit) -> None:
        """Ask a peer again for credit, after a change of the waiting messages or the room."""
        if credit.wanted:
            self._carrier.ask(credit.peer)

    def arrays(
        self, message: Message, out: Sequence[Array | None] | None
    ) -> list[Array]:
        """Wait for the rest of a claimed message, acknowledge it, and return its arrays."""
        try:
            return message.collect(out, partial(self._wait_for_rest, message))
        finally:
            self._acknowledge(message)

    def pieces(self, claim: Callable[[], Message]) -> Iterator[Piece]:
        """Claim a message, yield it piece by piece, then acknowledge it."""
        message = claim()
        try:
            yield from message.pieces(partial(self._wait_for_rest, message))
        finally:
            self._acknowledge(message)

    def claim(self, node: str, addresses: Sequence[tuple[str, Key]]) -> Message:
        """Wait for a message from any of these addresses, and remove it from its queue.
        The message is not acknowledged yet."""
        wanted = {(node, source, key) for source, key in addresses}
        sources = tuple([source for source, _ in addresses])
        for source in sources:
            self.credit(node, source)
        only = (node, *addresses[0]) if len(addresses) == 1 else None

        def take() -> Message | None:
            # The queues are sorted by the arrival of their first message.
            found = only or next(
                (each for each in self._queues if each in wanted), None
            )
            messages = self._queues.pop(found, None) if found is not None else None
            if messages is None or found is None:
                return None
            message = messages.popleft()
            self._expected.pop(found, None)
            if messages:  # move the queue behind the other queues
                self._queues[found] = messages
            return message

        def is_stuck() -> bool:
            return self._queues.keys().isdisjoint(wanted)

        return self._wait(_Wait(node, sources, is_stuck), addresses[0][1], take)

    def expect(
        self, node: str, source: str, key: Key, out: Sequence[Array | None]
    ) -> None:
        peer = self.credit(node, source).peer
        with self._lock:
            self._expected[node, source, key] = out
            stored = self._queues.get((node, source, key))
        if stored:
            stored[0].place(out)
        self._carrier.need(peer)

    def expects(self, peer: str) -> bool:
        """Return True if a message of a peer may arrive early; called with the lock held."""
        return any(self.nodes[source].peer == peer for _, source, _ in self._expected)

    def waiting(self, node: str, without: Container[int] = ()) -> tuple[str, ...]:
        """Return the nodes that threads of a node wait for now, sorted. Messages on the
        edges in `without` do not count."""
        with self._lock:
            waits = (
                wait.peers
                for wait in self._waits
                if wait.node == node and wait.edge not in without
            )
            return tuple(sorted({peer for peers in waits for peer in peers}))

    def wait_until(
        self, ready: Callable[[], bool], timeout: float, *, failed: bool = False
    ) -> bool:
        """Wait until `ready`; return False if that takes more than `timeout` seconds.
        `ready` is called with the lock held. Raises `Aborted` if the run has failed;
        with `failed`, the wait continues after a failure."""

        def is_over() -> bool:
            return self._closed or ready() or (self.aborted is not None and not failed)

        with self._lock:
            until = time.monotonic() + timeout
            while not is_over() and (left := until - time.monotonic()) > 0:
                self._sleep(left)
            if self.aborted is not None and not failed:
                raise Aborted(self.aborted)
            return ready()

    def close(self) -> None:
        """End every wait and drop all messages. Returns when no thread reads a
        connection any more, so that the caller can close the sockets."""
        with self._lock:
            self._closed = True
            self._wake()
            while self.is_read:
                self._sleep(None)
            self._queues.clear()
            for credit in self.nodes.values():
                credit.stored.clear()

    # Called by the carrier.

    def deliver(self, message: Message) -> None:
        """Store an arriving message; its payload may still be incomplete."""
        source, to, key = message.source, message.to, message.key
        with self._lock:
            self.bytes_received += message.nbytes
            self._queues.setdefault((to, source, key), deque()).append(message)
            self.nodes[source].stored.append(message)
            self._wake()
            listener = self._listeners.get((to, key.edge))
            out = self._expected.get((to, source, key))
        if out is not None:
            message.place(out)
        if listener is not None:
            listener(source)

    def pass_on(self, message: Message) -> None:
        with self._lock:
            self._check_run()
        self.deliver(message)

    def update_credit(self, peer: str, total: int) -> None:
        """Record that `peer` has acknowledged `total` of the bytes sent to it."""
        with self._lock:
            if self.credits[peer].update(total):
                self._wake()

    def on_probe(self, source: str, probe: Probe) -> None:
        """Handle a probe from `source`: see `_wait`."""
        initiator = probe.initiator
        with self._lock:
            stuck = (wait.peers for wait in self._waits if wait.is_stuck())
            peers = {self.nodes[peer].peer for peers in stuck for peer in peers}
            peers.discard(self.node)
            mine = (wait for wait in self._waits if wait.probe == probe.number)
            probed = next(mine, None) if initiator == self.node else None
            # A probe that was here before has been forwarded as far as possible.
            is_new = probe.number > self._passed.get(initiator, 0)
            if is_new:
                self._passed[initiator] = probe.number
        if initiator == self.node:
            if probed is not None:
                self._carrier.tell(self.nodes[probed.peers[0]].peer, Demand())
        elif initiator == source and source in peers:
            self.acknowledge_all(source)
        elif is_new:
            for peer in sorted(peers):
                self._carrier.tell(peer, probe)

    def acknowledge_all(self, peer: str) -> None:
        """Acknowledge all messages of a peer, even those that the program has not received yet."""
        with self._lock:
            stored = list(self.credits[peer].stored)
        for message in stored:
            self._acknowledge(message)

    def mark_departed(self, peer: str) -> None:
        """Record that `peer` has ended its run without a failure."""
        with self._lock:
            self.departed.add(peer)
            self._wake()

    def abort(self, cause: Cause) -> bool:
        """Record the root cause and wake every wait; return False if one was recorded before."""
        with self._lock:
            if self.aborted is not None:
                return False
            self.aborted = cause
            self._wake()
            return True

    def notify(self) -> None:
        """Wake every wait, because a state that a predicate reads has changed."""
        with self._lock:
            self._wake()

    def read(self) -> bool:
        """Handle received data, without waiting. Returns False if no data has arrived,
        or if another thread reads."""
        with self._lock:
            if self.is_read or self._closed:
                return False
            self.is_read = True
        try:
            return self._carrier.read(0)
        finally:
            with self._lock:
                self._stop_reading()

    def change_needs(self, change: Callable[[], object] = lambda: None) -> None:
        """Call `change`; then let the carrier decide whether a thread must read."""
        with self._lock:
            change()
            if not self.is_read:
                self._carrier.reading_stopped()

    # Internal.

    def _sleep(self, timeout: float | None) -> None:
        """Wait for a change; called with the lock held, which is released meanwhile."""
        self._sleepers += 1
        try:
            self._changed.wait(timeout)
        finally:
            self._sleepers -= 1

    def _wake(self) -> None:
        # Without a sleeping thread, which is the common case, this costs one comparison.
        if self._sleepers:
            self._changed.notify_all()

    def _check_run(self) -> None:
        if self.aborted is not None:
            raise Aborted(self.aborted)
        if self._closed:
            raise RunError(f"{self.node}: the channel is closed")

    def credit(self, node: str, peer: str) -> Credit:
        """Return the credit between a node and a peer."""
        credit = self.nodes.get(peer)
        if credit is None or peer == node:
            raise RunError(
                f"{node} has no peer '{peer}'", hint=did_you_mean(peer, self.nodes)
            )
        return credit

    def _wait_for_rest(self, message: Message, ready: Callable[[], bool]) -> None:
        wait = _Wait(message.to, (message.source,), lambda: False)
        self._wait(wait, message.key, ready)

    def _wait(
        self,
        wait: _Wait,
        key: Key,
        take: Callable[[], Result | None],
        *,
        sending: bool = False,
        is_watched: bool = False,
    ) -> Result:
        """Block until `take` returns a value, and return it.

        `key` is the address of the message to receive or, if `sending`, to send. `take` and
        `wait.is_stuck` are called with the lock held.
        """
        if not is_watched and (watch := self._watches.get(wait.node)) is not None:
            with watch(wait.peers, key, sending):
                return self._wait(wait, key, take, sending=sending, is_watched=True)
        # A waiting sender sends probes. The pauses between them double, because the node that a
        # probe reaches may not wait yet. The first thread that waits reads the connections: see
        # docs/about/channel.md, "Flow control" and "Who reads". `_changed` does not wake that thread:
        # its `read` ends when data arrives, at an abort, or at a close.
        peers, deadline = wait.peers, self._limits.deadline
        start = -1.0  # read the clock only if this must wait
        pause = 0.0
        is_reader = False
        try:
            while True:
                with self._lock:
                    # The order matters. A failed run fails every call. But a message that arrived
                    # before its source departed can still be received. Nothing can be sent to a
                    # departed peer.
                    if self.aborted is not None or self._closed:
                        self._check_run()
                    is_gone = self.departed and all(
                        self.nodes[peer].peer in self.departed for peer in peers
                    )
                    if not (is_gone and sending) and (result := take()):
                        return result
                    if is_gone:
                        raise RunError(
                            f"{wait.node} cannot send {key}: {peers[0]} has ended its run"
                            if sending
                            else f"{wait.node} waits for {key} from {' or '.join(peers)}, "
                            "which has ended its run"
                        )
                    now = time.monotonic()
                    if start < 0:
                        start = now
                        wait.edge = key.edge
                        self._waits.add(wait)
                    waited = now - start
                    if waited >= deadline:
                        if self.has_deadline:
                            raise self._deadline_error(wait, key, sending)
                        start, waited, pause = now, 0.0, 0.0
                    timeout = deadline - waited
                    is_probe = sending and waited >= pause
                    if is_probe:
                        pause = max(FIRST_PAUSE, 2 * waited)
                        self._probes += 1
                        wait.probe = self._probes
                    elif sending:
                        timeout = min(deadline, pause) - waited
                    if not is_probe:
                        if not is_reader and self._carrier.has_connections:
                            is_reader = not self.is_read
                            self.is_read = True
                        if not is_reader:
                            self._sleep(timeout)
                # Without the lock: `tell` may enter another mailbox, and `read` calls `deliver`.
                if is_probe:
                    probe = Probe(self.node, wait.probe)
                    self._carrier.tell(self.nodes[peers[0]].peer, probe)
                elif is_reader:
                    self._carrier.read(timeout)
        finally:
            if start >= 0:
                with self._lock:
                    self._waits.discard(wait)
                    if is_reader:
                        self._stop_reading()

    def _deadline_error(self, wait: _Wait, key: Key, sending: bool) -> DeadlineError:
        """Return the error of a wait that takes too long. Its cause is the activity of
        the last node in the chain of waits."""
        peers = wait.peers
        what = (
            f"{peers[0]} to receive the messages before {key}"
            if sending
            else f"{key} from {' or '.join(peers)}"
        )
        text = f"{wait.node} waited {self._limits.deadline:g} s for {what}"
        status = self.statuses.get(peers[0], ()) if len(peers) == 1 else ()
        if not status or status[-1].node == wait.node or not status[-1].what:
            return DeadlineError(text, None)
        last = status[-1]
        chain = f", which waits for {last.node}" if len(status) > 1 else ""
        why = f"no progress for {last.seconds:.0f} s ({text}{chain})"
        return DeadlineError(text, Cause(last.node, last.what, why))

    def _stop_reading(self) -> None:
        """Let another thread read; called with the lock held."""
        self.is_read = False
        self._carrier.reading_stopped()
        self._wake()

    def _acknowledge(self, message: Message) -> None:
        """Grant the cost of a message to its source, unless it was granted early."""
        with self._lock:
            credit = self.nodes[message.source]
            try:
                credit.stored.remove(message)
            except ValueError:
                return  # `acknowledge_all` has acknowledged it early
            credit.granted += message.copied_nbytes + MESSAGE_COST
            total = credit.granted
        if credit.peer != self.node:
            self._carrier.acknowledge(credit.peer, total)


WAIT_CODE: Final = Mailbox._wait.__code__
"""The code of the function in which a thread waits; it is on the stack of the thread."""
