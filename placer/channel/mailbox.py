"""The state of the channels of a process: received messages, credits, and who waits.

Messages are delivered here, and every call of the program blocks here. One lock guards
all of it. The carrier is called without the lock, because it may enter another mailbox.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
"""Seconds after which a sender that waits looks for a deadlock again; the pause then
doubles."""

Result = TypeVar("Result")
WatchWait = Callable[[tuple[str, ...], Key, bool], AbstractContextManager[None]]
"""Returns the context of a wait for a message of any of these nodes, or if true, until the
node receives what it was sent before the message."""


class Carrier:
    """What passes messages between the mailboxes of processes; without `has_connections`,
    nothing has to be read."""

    has_connections = False

    def transmit(
        self, node: str, to: str, key: Key, arrays: list[Array], follows: bool
    ) -> None:
        """Send arrays, which are checked and C-contiguous, from one node to another."""
        raise NotImplementedError

    def open_message(
        self, node: str, to: str, key: Key, arrays: Sequence[Array]
    ) -> OpenMessage | None:
        """Begin a message whose payload leaves as it is written; None where it cannot."""
        return None

    def tell(self, peer: str, frame: Probe | Demand) -> None:
        """Send a frame to a peer, whose mailbox is to handle it."""
        raise NotImplementedError

    def acknowledge(self, peer: str, total: int) -> None:
        """Tell a peer, now or later, that `total` bytes of it are acknowledged."""
        raise NotImplementedError

    def ask(self, peer: str) -> None:
        """Tell a peer now the credit that is wanted of it."""

    def read(self, timeout: float) -> bool:
        """Handle what has arrived, waiting up to `timeout` seconds for it; one thread at a
        time does.

        False when nothing came. Returns early when the run has failed or ended.
        """
        return False

    def need(self, peer: str) -> None:
        """Have what a peer sends read, also if no thread of the program waits."""

    def reading_stopped(self) -> None:
        """Note that no thread reads the connections any more; called with the lock."""


@dataclass(eq=False, slots=True)
class _Wait:
    """A wait of a node for any of these; `probe` is the number of its last probe."""

    node: str
    peers: tuple[str, ...]
    is_stuck: Callable[[], bool]
    probe: int = 0


class Mailbox:
    """The messages of the nodes of one process, and every wait of their programs; safe to
    use from threads.

    `credits` are by the name of each peer of the process, `nodes` those of the nodes that
    its own can exchange messages with. Unless processes have several nodes each, these
    are the same.
    """

    def __init__(
        self, node: str, peers: Collection[str], limits: Limits, carrier: Carrier
    ) -> None:
        self.node = node
        self.peers = tuple(peers)
        self.bytes_sent: Counter[str] = Counter()  # by the node that sends
        self.bytes_received = 0
        self.aborted: Cause | None = None
        self.departed: set[str] = set()
        window = limits.window(len(self.peers))
        self.credits = {peer: Credit(peer, window) for peer in self.peers}
        self.nodes: Mapping[str, Credit] = self.credits
        self.is_read = False  # a thread reads the connections
        # What each node last said that it does, and whom it waits for.
        self.statuses: dict[str, Status] = {}
        self._limits = limits
        self._carrier = carrier
        self._closed = False
        self._lock = threading.RLock()  # entering it is cheaper than the condition
        self._changed = threading.Condition(self._lock)
        self._sleepers = 0  # threads that wait for `_changed`
        # What follows is by address: the receiver, the source and the key.
        # Messages that no call has claimed yet.
        self._queues: dict[tuple[str, str, Key], deque[Message]] = {}
        # Where to put messages that may arrive before the program asks for them.
        self._expected: dict[tuple[str, str, Key], Sequence[Array | None]] = {}
        self._listeners: dict[tuple[str, int], Callable[[str], object]] = {}
        self._watches: dict[str, WatchWait] = {}
        self._waits: set[_Wait] = set()
        self._probes = 0
        self._passed: dict[str, int] = {}  # the last probe of each peer that was here

    # Called by the program, through the channel.

    def add_nodes(self, names: Collection[str]) -> None:
        """Exchange messages with these nodes, and between those of this process."""
        credits = {**self.credits, self.node: Credit(self.node, 0)}
        of_processes = [(name, NodeId(name).process) for name in names]
        self.nodes = {name: credits[p] for name, p in of_processes if p in credits}

    def listen(self, node: str, edge: int, call: Callable[[str], object]) -> None:
        """Call `call(source)` for each message of an edge to a node; see `protocol`."""
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
        """Let every wait of a node be in a context of `watch`, also if there is nothing to
        wait for."""
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
        """Wait until the bound has room for a message of a node, and count it.

        It has `nbytes` of payload; `copied_nbytes` of them take credit. A message that
        `follows` another is counted without a wait. Raises RunError when the message is
        too large, the peer has ended its run or the deadline passes, `Aborted` when the
        run has failed.
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
        """Ask a peer again for the credit that messages wait for: room was taken, or one
        waits that did not, or another number of bytes."""
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
        """Claim a message, return it piece by piece, then acknowledge it."""
        message = claim()
        try:
            yield from message.pieces(partial(self._wait_for_rest, message))
        finally:
            self._acknowledge(message)

    def claim(self, node: str, addresses: Sequence[tuple[str, Key]]) -> Message:
        """Wait for a message to a node of any source and key, and remove it from its
        queue, without acknowledging it."""
        wanted = {(node, source, key) for source, key in addresses}
        sources = tuple([source for source, _ in addresses])
        for source in sources:
            self.credit(node, source)
        only = (node, *addresses[0]) if len(addresses) == 1 else None

        def take() -> Message | None:
            # The queues are in the order of their first message.
            found = only or next(
                (each for each in self._queues if each in wanted), None
            )
            messages = self._queues.pop(found, None) if found is not None else None
            if messages is None or found is None:
                return None
            message = messages.popleft()
            self._expected.pop(found, None)
            if messages:  # the next message of this source comes after the others
                self._queues[found] = messages
            return message

        def is_stuck() -> bool:
            return self._queues.keys().isdisjoint(wanted)

        return self._wait(_Wait(node, sources, is_stuck), addresses[0][1], take)

    def expect(
        self, node: str, source: str, key: Key, out: Sequence[Array | None]
    ) -> None:
        """Let a message arrive before the program asks for it; see `protocol`."""
        peer = self.credit(node, source).peer
        with self._lock:
            self._expected[node, source, key] = out
            stored = self._queues.get((node, source, key))
        if stored:
            stored[0].place(out)
        self._carrier.need(peer)

    def expects(self, peer: str) -> bool:
        """Whether a peer may send a message before the program asks for it; called with the
        lock held."""
        return any(self.nodes[source].peer == peer for _, source, _ in self._expected)

    def waiting(self, node: str) -> tuple[str, ...]:
        """Return the nodes that threads of a node wait for now, sorted."""
        with self._lock:
            waits = (wait.peers for wait in self._waits if wait.node == node)
            return tuple(sorted({peer for peers in waits for peer in peers}))

    def wait_until(
        self, ready: Callable[[], bool], timeout: float, *, failed: bool = False
    ) -> bool:
        """Wait until `ready`; return False if that takes more than `timeout` seconds.

        `ready` is called with the lock held. Raises `Aborted` when the run has failed,
        unless `failed` says that this is known.
        """

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
        """End every wait and drop all messages.

        Returns when no thread reads a connection any more, so that the caller can close
        the sockets.
        """
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
        """Store a message that has arrived; more of its payload may follow."""
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
        """Deliver a message of another thread of this process."""
        with self._lock:
            self._check_run()
        self.deliver(message)

    def update_credit(self, peer: str, total: int) -> None:
        """Record that `peer` has acknowledged `total` bytes of what was sent to it."""
        with self._lock:
            if self.credits[peer].update(total):
                self._wake()

    def on_probe(self, source: str, probe: Probe) -> None:
        """Handle a probe that has come from `source`: see `_wait`."""
        initiator = probe.initiator
        with self._lock:
            stuck = (wait.peers for wait in self._waits if wait.is_stuck())
            peers = {self.nodes[peer].peer for peers in stuck for peer in peers}
            peers.discard(self.node)
            mine = (wait for wait in self._waits if wait.probe == probe.number)
            probed = next(mine, None) if initiator == self.node else None
            # One that has been here has reached all that it can reach from here.
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
        """Acknowledge all messages of a peer, also those that the program has not received
        yet."""
        with self._lock:
            stored = list(self.credits[peer].stored)
        for message in stored:
            self._acknowledge(message)

    def mark_departed(self, peer: str) -> None:
        """Record that `peer` has ended its run in good order."""
        with self._lock:
            self.departed.add(peer)
            self._wake()

    def abort(self, cause: Cause) -> bool:
        """Record the root cause and wake every wait; False if there was one before."""
        with self._lock:
            if self.aborted is not None:
                return False
            self.aborted = cause
            self._wake()
            return True

    def notify(self) -> None:
        """Wake every wait, because something that a predicate reads has changed."""
        with self._lock:
            self._wake()

    def read(self) -> bool:
        """Handle what has arrived, without waiting.

        False when nothing has arrived, and while another thread reads.
        """
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
        """Call `change`, which changes whether the carrier needs a thread that reads."""
        with self._lock:
            change()
            if not self.is_read:
                self._carrier.reading_stopped()

    # Internal.

    def _sleep(self, timeout: float | None) -> None:
        """Wait for a change; called with the lock held, and releases it meanwhile."""
        self._sleepers += 1
        try:
            self._changed.wait(timeout)
        finally:
            self._sleepers -= 1

    def _wake(self) -> None:
        """Wake all threads that sleep; called with the lock held."""
        # Without a sleeper this costs one comparison, and most frames find no sleeper.
        if self._sleepers:
            self._changed.notify_all()

    def _check_run(self) -> None:
        if self.aborted is not None:
            raise Aborted(self.aborted)
        if self._closed:
            raise RunError(f"{self.node}: the channel is closed")

    def credit(self, node: str, peer: str) -> Credit:
        """Return the credit of a node that another one exchanges messages with."""
        credit = self.nodes.get(peer)
        if credit is None or peer == node:
            raise RunError(
                f"{node} has no peer '{peer}'", hint=did_you_mean(peer, self.nodes)
            )
        return credit

    def _wait_for_rest(self, message: Message, ready: Callable[[], bool]) -> None:
        """Wait for the rest of a message that has begun to arrive."""
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
        """Block until `take` returns something, which is called with the lock held; return
        that. `wait.is_stuck`, also called with it, says whether the peers have to do
        something for that.

        `key` is the address of the message that is waited for, from any of the peers, or
        with `sending` of the message that is to be sent to the only one.
        """
        if not is_watched and (watch := self._watches.get(wait.node)) is not None:
            with watch(wait.peers, key, sending):
                return self._wait(wait, key, take, sending=sending, is_watched=True)
        # A sender that waits sends probes, after pauses that double, as the node that they
        # come to may not wait yet; and the first thread that waits reads the connections:
        # see docs/channel.md, "Flow control" and "Who reads". That thread is not woken by
        # `_changed`: its `read` ends with what arrives, at an abort, or a close.
        peers, deadline = wait.peers, self._limits.deadline
        start = -1.0  # the clock is read only if this has to wait
        pause = 0.0
        is_reader = False
        try:
            while True:
                with self._lock:
                    # The order matters: a failed run fails every call, but a message
                    # that arrived before its source departed can still be received.
                    # Nothing can be sent to a peer that has departed.
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
                        self._waits.add(wait)
                    waited = now - start
                    if waited >= deadline:
                        raise self._deadline_error(wait, key, sending)
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
                # Without the lock: this may enter another mailbox, and reading `deliver`.
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
        """Return the error of a wait that is too long; its cause is what the last node of
        the chain does."""
        peers = wait.peers
        what = (
            f"{peers[0]} to receive what it was sent before {key}"
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
        """Grant the cost of a message to its source, unless that was done early."""
        with self._lock:
            credit = self.nodes[message.source]
            try:
                credit.stored.remove(message)
            except ValueError:
                return  # `on_probe` has acknowledged it early
            credit.granted += message.copied_nbytes + MESSAGE_COST
            total = credit.granted
        if credit.peer != self.node:
            self._carrier.acknowledge(credit.peer, total)
