"""The state of a node's channel: received messages, credits, and who waits.

Messages are delivered here, and every call of the program blocks here. One lock guards
all of it. `on_credit` is called without the lock, because it may enter another mailbox.

There need be no thread between the connections and the program: with a `reader`, the
first thread that waits for anything reads all connections itself, and threads that wait
meanwhile sleep until it has read what they wait for. This saves the switch from one
thread to another, which takes longer than a small message does.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, Protocol

from placer.channel.cause import Aborted, Cause, DeadlineError
from placer.channel.credits import Credit
from placer.channel.frames import Demand, Probe
from placer.channel.message import MESSAGE_COST, Message
from placer.channel.peers import Status
from placer.channel.types import Array, Key, Limits, Piece
from placer.errors import RunError, did_you_mean

FIRST_PAUSE: Final = 0.005
"""Seconds after which a sender that waits looks for a deadlock again; the pause then
doubles."""
MAX_HOPS: Final = 64
"""Nodes that a probe passes at most."""


class Wait(Protocol):
    """Blocks until something has happened; see `Mailbox._wait`."""

    def __call__(
        self,
        peers: tuple[str, ...],
        key: Key,
        ready: Callable[[], bool],
        is_stuck: Callable[[], bool],
        *,
        sending: bool = False,
    ) -> None: ...


class FrameReader(Protocol):
    """Reads the frames that arrive on the connections of all peers.

    The mailbox calls it, and lets one thread at a time read.
    """

    def read(self, timeout: float) -> bool:
        """Handle what has arrived, waiting up to `timeout` seconds for it.

        False when nothing came. Returns early when the run has failed or ended.
        """

    def reading_stopped(self) -> None:
        """Note that no thread reads the connections any more.

        Called with the mailbox's lock held.
        """


class Mailbox:
    """The messages of one node and every wait of its program; safe to use from threads.

    `on_credit(source, total)` is called when this node has acknowledged `total` bytes
    to `source`, which is told to call `update_credit` of its mailbox with that.
    """

    def __init__(
        self,
        node: str,
        peers: Iterable[str],
        limits: Limits,
        on_credit: Callable[[str, int], None],
    ) -> None:
        self.node = node
        self.peers = tuple(peers)
        self.bytes_sent = 0
        self.bytes_received = 0
        self.aborted: Cause | None = None
        self.departed: set[str] = set()
        window = limits.window(len(self.peers))
        self.credits = {peer: Credit(window) for peer in self.peers}
        self.reader: FrameReader | None = None
        self.is_read = False  # a thread reads the connections
        self.status_of: Callable[[str], Status] = lambda peer: ()
        self._limits = limits
        self._on_credit = on_credit
        self._closed = False
        self._lock = threading.RLock()  # entering it is cheaper than the condition
        self._changed = threading.Condition(self._lock)
        self._sleepers = 0  # threads that wait for `_changed`
        # Messages by address that no call has claimed yet.
        self._queues: dict[tuple[str, Key], deque[Message]] = {}
        # Messages by source, claimed or not, whose cost was not granted back yet.
        self._unacknowledged: dict[str, list[Message]] = defaultdict(list)
        # Sends a frame to a peer, whose mailbox is to handle it.
        self.tell: Callable[[str, Probe | Demand], None] = lambda peer, frame: None
        self._probes = 0
        self._probed: dict[int, str] = {}  # by the number of a probe, who has it
        self._passed: dict[str, int] = {}  # the last probe of each node that was here
        # The peers of each wait, and whether they have to do something for it to end.
        self._waits: dict[object, tuple[tuple[str, ...], Callable[[], bool]]] = {}
        self._listeners: dict[tuple[int, int], Callable[[str, Key], None]] = {}
        # Where to put messages that may arrive before the program asks for them, by
        # address, until it does.
        self._expected: dict[tuple[str, Key], Sequence[Array | None]] = {}

    # Called by the program, through the channel.

    def listen(
        self, edge: int, call: Callable[[str, Key], None], thread: int = 0
    ) -> None:
        """Call `call(source, key)` for each message of an edge to a thread of this
        process; see `protocol`."""
        with self._lock:
            self._listeners[edge, thread] = call
            stored = [
                (source, key)
                for (source, key), messages in self._queues.items()
                for _ in messages
                if (key.edge, key.lane.target) == (edge, thread)
            ]
        for source, key in stored:
            call(source, key)

    def accept_own(self) -> None:
        """Accept messages of this node to itself: of one thread of it to another."""
        self.credits[self.node] = Credit(0)

    def reserve(
        self,
        to: str,
        key: Key,
        nbytes: int,
        copied_nbytes: int,
        ask: Callable[[], None] = lambda: None,
        *,
        follows: bool = False,
    ) -> None:
        """Wait until the bound has room for a message, and count it.

        It has `nbytes` of payload; `copied_nbytes` of them take credit. `ask` is called
        when the total has grown that the peer has to acknowledge for the messages that
        wait (`Credit.wanted`). A message that `follows` another is counted without a wait.
        Raises RunError when the message is too large, the peer has ended its run
        or the deadline passes, `Aborted` when the run has failed.
        """
        self._check_peer(to)
        if copied_nbytes > self._limits.max_message:
            raise RunError(
                f"{key} from {self.node} to {to}: a message of {copied_nbytes} bytes "
                f"is over the maximum of {self._limits.max_message}",
                hint="use a smaller batch, or place parameters on more nodes",
            )
        cost, credit = copied_nbytes + MESSAGE_COST, self.credits[to]
        with self._lock:
            self._check_run()
            room = partial(self._claim_room, to, nbytes, cost, follows)
            has_room = to not in self.departed and room()
            if not has_room:
                credit.waiting.append(cost)
            is_wanted = credit.wanted > 0
        if is_wanted:
            ask()
        if has_room:
            return
        try:
            self._wait(
                (to,), key, room, lambda: not credit.has_room(cost), sending=True
            )
        finally:
            with self._lock:
                credit.waiting.remove(cost)
                is_wanted = credit.wanted > 0
            if is_wanted:
                ask()

    def receive(
        self,
        addresses: Sequence[tuple[str, Key]],
        out: Sequence[Array | None] | None = None,
    ) -> tuple[str, Key, list[Array]]:
        """Wait for a message of any of the addresses, acknowledge it, and return its own
        address and its arrays."""
        message = self._claim_message(addresses)
        source, key = message.source, message.key
        try:
            arrays = message.collect(
                out,
                lambda: f"{key} from {source} to {self.node}",
                partial(self._wait_for_rest, source, key),
            )
            return source, key, arrays
        finally:
            self._acknowledge(message)

    def expect(self, source: str, key: Key, out: Sequence[Array | None]) -> None:
        """Let a message arrive before the program asks for it; see `protocol.Channel`."""
        self._check_peer(source)
        with self._lock:
            self._expected[source, key] = out
            stored = self._queues.get((source, key))
        if stored:
            stored[0].place(out)

    def expects(self, source: str) -> bool:
        """Whether a peer may send a message before the program asks for it; called with the
        lock held."""
        return any(peer == source for peer, _ in self._expected)

    def pieces(self, source: str, key: Key) -> Iterator[Piece]:
        """Wait for a message, return it piece by piece, then acknowledge it."""
        yield from self._pieces(self._claim_message([(source, key)]))

    def pieces_of_first(
        self, addresses: Sequence[tuple[str, Key]]
    ) -> tuple[str, Key, Iterator[Piece]]:
        """Wait for a message of any of the addresses; return its own, and its pieces."""
        message = self._claim_message(addresses)
        return message.source, message.key, self._pieces(message)

    def _pieces(self, message: Message) -> Iterator[Piece]:
        """Return a claimed message piece by piece, then acknowledge it."""
        wait = partial(self._wait_for_rest, message.source, message.key)
        try:
            yield from message.pieces(wait)
        finally:
            self._acknowledge(message)

    def waiting(self) -> tuple[str, ...]:
        """Return the peers that threads of this node wait for now, sorted."""
        with self._lock:
            return tuple(
                sorted({peer for peers, _ in self._waits.values() for peer in peers})
            )

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
            self._unacknowledged.clear()

    # Called by the transport.

    def deliver(self, message: Message) -> None:
        """Store a message that has arrived; more of its payload may follow."""
        address = (message.source, message.key)
        with self._lock:
            self.bytes_received += message.nbytes
            self._queues.setdefault(address, deque()).append(message)
            self._unacknowledged[message.source].append(message)
            self._wake()
            key = message.key
            listener = self._listeners.get((key.edge, key.lane.target))
            out = self._expected.get(address)
        if out is not None:
            message.place(out)
        if listener is not None:
            listener(message.source, key)

    def update_credit(self, peer: str, total: int) -> None:
        """Record that `peer` has acknowledged `total` bytes of what was sent to it."""
        with self._lock:
            if self.credits[peer].update(total):
                self._wake()

    def on_probe(self, source: str, probe: Probe) -> None:
        """Handle a probe that has come from `source`: see `_wait`."""
        initiator, hops = probe.initiator, min(probe.hops, MAX_HOPS)
        with self._lock:
            waited_for = sorted(
                {
                    peer
                    for peers, is_stuck in self._waits.values()
                    for peer in (peers if is_stuck() else ())
                    if peer != self.node
                }
            )
            probed = self._probed.get(probe.number) if initiator == self.node else None
            # One that has been here has reached all that it can reach from here.
            is_new = probe.number > self._passed.get(initiator, 0)
            if is_new:
                self._passed[initiator] = probe.number
        if initiator == self.node:
            if probed is not None:
                self.tell(probed, Demand())
        elif initiator == source and source in waited_for:
            self.acknowledge_all(source)
        elif hops > 0 and is_new:
            for peer in waited_for:
                self.tell(peer, Probe(initiator, probe.number, hops - 1))

    def acknowledge_all(self, source: str) -> None:
        """Acknowledge all messages of a peer, also those that the program has not received
        yet."""
        with self._lock:
            stored = list(self._unacknowledged[source])
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
            if self.is_read or self._closed or self.reader is None:
                return False
            self.is_read = True
        try:
            return self.reader.read(0)
        finally:
            with self._lock:
                self._stop_reading()

    def wrap_wait(self, wrap: Callable[[Wait], Wait]) -> None:
        """Let every wait go through `wrap(wait)`, called before the first one.

        It is also called if there is nothing to wait for.
        """
        self._wait = wrap(self._wait)  # type: ignore[method-assign]

    def change_needs(self, change: Callable[[], object] = lambda: None) -> None:
        """Call `change`, which changes whether the reader needs a thread that reads."""
        with self._lock:
            change()
            if not self.is_read and self.reader is not None:
                self.reader.reading_stopped()

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

    def _check_peer(self, peer: str) -> None:
        if peer not in self.credits:
            raise RunError(
                f"{self.node} has no peer '{peer}'", hint=did_you_mean(peer, self.peers)
            )

    def _claim_room(self, to: str, nbytes: int, cost: int, follows: bool) -> bool:
        credit = self.credits[to]
        has_room = follows or credit.has_room(cost)
        if has_room:
            credit.sent += cost
            self.bytes_sent += nbytes
        return has_room

    def _claim_message(self, wanted: Sequence[tuple[str, Key]]) -> Message:
        """Wait for a message of any of these addresses and remove it from its queue,
        without acknowledging it."""
        addresses = dict.fromkeys(wanted)
        sources = tuple(source for source, _ in addresses)
        claimed: list[Message] = []

        def arrived() -> bool:
            found: tuple[str, Key] | None = wanted[0]
            if len(addresses) > 1:  # the queues are in the order of their first message
                found = next((each for each in self._queues if each in addresses), None)
            messages = self._queues.pop(found, None) if found is not None else None
            if messages:
                assert found is not None
                claimed.append(messages.popleft())
                self._expected.pop(found, None)
                if messages:  # the next message of this source comes after the others
                    self._queues[found] = messages
            return bool(claimed)

        for source in sources:
            self._check_peer(source)
        _, key = wanted[0]
        self._wait(
            sources, key, arrived, lambda: self._queues.keys().isdisjoint(addresses)
        )
        return claimed[0]

    def _wait_for_rest(self, source: str, key: Key, ready: Callable[[], bool]) -> None:
        """Wait for the rest of a message that has begun to arrive."""
        self._wait((source,), key, ready, lambda: False)

    def _wait(
        self,
        peers: tuple[str, ...],
        key: Key,
        ready: Callable[[], bool],
        is_stuck: Callable[[], bool],
        *,
        sending: bool = False,
    ) -> None:
        """Block until `ready`, which is called with the lock held, as `is_stuck` is: whether
        the peers have to do something for that.

        `key` is the address of the message that is waited for, from any of `peers`, or
        with `sending` of the message that is to be sent to the only one.
        """
        # The bound could turn the order of receives into a deadlock: what a sender waits
        # for may be, through nodes that wait for each other, behind the message that it
        # cannot send. So a sender that waits sends a probe to its receiver, and every node
        # that waits passes it on to those that it waits for. If it comes back, all of them
        # wait in a circle, and the receiver has to acknowledge what it stores, though its
        # program has not received it (edge chasing: Chandy, Misra and Haas, 1983). A probe
        # that comes to a node that does not wait is dropped; it may wait later, so another
        # one follows after `FIRST_PAUSE`, then after twice that, and so on.
        #
        # The first thread that waits reads the connections; everything that can make
        # `ready` true for other threads passes through it, and `deliver`,
        # `update_credit` and so on wake them. When it has what it waits for, it wakes
        # the others, and the first of them reads on. The thread that reads is not woken
        # by `_changed`: its `read` ends with what arrives, at an abort, or a close.
        start = -1.0  # the clock is read only if this has to wait
        pause, deadline = 0.0, self._limits.deadline
        number = 0  # of the last probe
        token = object()
        is_reader = False
        try:
            while True:
                with self._lock:
                    # The order matters: a failed run fails every call, but a message
                    # that arrived before its source departed can still be received.
                    # Nothing can be sent to a peer that has departed.
                    if self.aborted is not None or self._closed:
                        self._check_run()
                    is_gone = self.departed.issuperset(peers)
                    if not (is_gone and sending) and ready():
                        break
                    if is_gone:
                        raise RunError(
                            f"{self.node} cannot send {key}: {peers[0]} has ended its run"
                            if sending
                            else f"{self.node} waits for {key} from {_any_of(peers)}, "
                            "which has ended its run"
                        )
                    now = time.monotonic()
                    if start < 0:
                        start = now
                        self._waits[token] = peers, is_stuck
                    waited = now - start
                    if waited >= deadline:
                        what = (
                            f"{peers[0]} to receive what it was sent before {key}"
                            if sending
                            else f"{key} from {_any_of(peers)}"
                        )
                        raise self._deadline_error(what, peers)
                    timeout = deadline - waited
                    is_probe = sending and waited >= pause
                    if is_probe:
                        pause = max(FIRST_PAUSE, 2 * waited)
                        self._probed.pop(number, None)
                        self._probes += 1
                        number = self._probes
                        self._probed[number] = peers[0]
                    elif sending:
                        timeout = min(deadline, pause) - waited
                    if not is_probe:
                        if not is_reader and self.reader is not None:
                            is_reader = not self.is_read
                            self.is_read = True
                        if not is_reader:
                            self._sleep(timeout)
                # Without the lock: this may enter another mailbox, and reading `deliver`.
                if is_probe:
                    self.tell(peers[0], Probe(self.node, number, MAX_HOPS))
                elif is_reader:
                    assert self.reader is not None
                    self.reader.read(timeout)
        finally:
            with self._lock:
                self._waits.pop(token, None)
                self._probed.pop(number, None)
                if is_reader:
                    self._stop_reading()

    def _deadline_error(self, what: str, peers: tuple[str, ...]) -> DeadlineError:
        """Return the error of a wait for `what`; its cause is what the last node of the
        chain does."""
        text = f"{self.node} waited {self._limits.deadline:g} s for {what}"
        status = self.status_of(peers[0]) if len(peers) == 1 else ()
        if not status or status[-1].node == self.node or not status[-1].what:
            return DeadlineError(text, None)
        last = status[-1]
        through = [each.node for each in status[:-1]]
        chain = f", which waits for {last.node}" if through else ""
        why = f"no progress for {last.seconds:.0f} s ({text}{chain})"
        return DeadlineError(text, Cause(last.node, last.what, why))

    def _stop_reading(self) -> None:
        """Let another thread read; called with the lock held."""
        self.is_read = False
        if self.reader is not None:
            self.reader.reading_stopped()
        self._wake()

    def _acknowledge(self, message: Message) -> None:
        """Grant the cost of a message to its source, unless that was done early."""
        source = message.source
        with self._lock:
            try:
                self._unacknowledged[source].remove(message)
            except ValueError:
                return  # `_wait` has acknowledged it early
            credit = self.credits[source]
            credit.granted += message.copied_nbytes + MESSAGE_COST
            total = credit.granted
        self._on_credit(source, total)


def _any_of(peers: Sequence[str]) -> str:
    """Return peers as errors name them."""
    return " or ".join(peers)
