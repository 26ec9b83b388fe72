"""The state that all transports share: received messages, credits, and who waits.

Every transport delivers messages here, and every call of the program blocks here. One
lock guards all of it. The transport's `on_credit` is called without the lock, because
it may enter another mailbox.

A transport may set `FrameReader`s. Then there is no thread between socket and program:
the first thread that waits for a peer reads the connection of that peer itself, and
other threads that wait for the same peer sleep until it has read something. This saves
the switch from one thread to another, which takes longer than a small message does.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from placer.channel.cause import Aborted, Cause
from placer.channel.credits import Credits
from placer.channel.message import MESSAGE_COST, Message
from placer.channel.types import Array, Key, Limits, Piece
from placer.errors import RunError, did_you_mean


class FrameReader(Protocol):
    """Reads the frames that arrive on the connection of one peer.

    The mailbox calls it, and lets one thread at a time read.
    """

    def read(self, timeout: float) -> bool:
        """Handle the next frame, waiting up to `timeout` seconds for it.

        False when no frame came. Returns early when the run has failed or ended.
        """

    def reading_stopped(self) -> None:
        """Note that no thread reads the connection any more.

        Called with the mailbox's lock held.
        """


class Mailbox:
    """The messages of one node and every wait of its program; safe to use from threads.

    `on_credit(source, total)` is called when this node has acknowledged `total` bytes
    to `source`; the transport passes the total to `update_credit` of the other mailbox.
    `readers` has the peers whose connections the threads that wait are to read.
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
        self.readers: Mapping[str, FrameReader] = {}
        self._limits = limits
        self._on_credit = on_credit
        self.being_read: set[str] = set()  # peers whose connection a thread reads
        self._closed = False
        self._lock = threading.RLock()  # entering it is cheaper than the condition
        self._changed = threading.Condition(self._lock)
        self._sleepers = 0  # threads that wait for `_changed`
        # Messages by address that no call has claimed yet.
        self._queues: dict[tuple[str, Key], deque[Message]] = {}
        # Messages by source, claimed or not, whose cost was not granted back yet.
        self._unacknowledged: dict[str, list[Message]] = defaultdict(list)
        # The `out` of each receive that waits, so that a transport can write into it.
        self._posted_outs: dict[tuple[str, Key], Sequence[Array | None]] = {}
        self._credits = Credits(self.peers, limits.bound)
        self._waits: dict[object, tuple[str, ...]] = {}  # the peers of each wait
        # Peers whose messages a thread waits for together with those of others, with
        # the number of such threads: it cannot read all of their connections itself.
        self._awaited: Counter[str] = Counter()
        self._listeners: dict[int, Callable[[str], None]] = {}

    # Called by the program, through the channel.

    def listen(self, edge: int, call: Callable[[str], None]) -> None:
        """Call `call(source)` for each later message of an edge; see `protocol`."""
        with self._lock:
            self._listeners[edge] = call

    def reserve(
        self,
        to: str,
        key: Key,
        nbytes: int,
        copied_nbytes: int,
        ask: Callable[[int], None] | None = None,
    ) -> None:
        """Wait until the bound has room for a message, and count it.

        It has `nbytes` of payload; `copied_nbytes` of them take credit. If that has to
        wait, `ask` is called once with the total that the peer has to acknowledge
        first. Raises RunError when the message is too large, the peer has ended its run
        or the deadline passes, `Aborted` when the run has failed.
        """
        self._check_peer(to)
        if copied_nbytes > self._limits.max_message:
            raise RunError(
                f"{key} from {self.node} to {to}: a message of {copied_nbytes} bytes "
                f"is over the maximum of {self._limits.max_message}",
                hint="use a smaller batch, or place parameters on more nodes",
            )
        cost = copied_nbytes + MESSAGE_COST
        with self._lock:
            self._check_run()
            is_there = to not in self.departed
            if is_there and self._claim_room(to, nbytes, cost):
                return
            wanted = self._credits.required_credit(to, cost)
        if is_there and ask is not None:
            ask(wanted)
        room = partial(self._claim_room, to, nbytes, cost)
        self._wait((to,), key, room, sending=True)

    def receive(
        self, source: str, key: Key, out: Sequence[Array | None] | None
    ) -> list[Array]:
        """Wait for a message, acknowledge it, and return its arrays."""
        message = self._claim_message((source,), key, out)
        return self._collect(message, out)

    def receive_any(self, sources: Sequence[str], key: Key) -> tuple[str, list[Array]]:
        """Wait for a message of any of the sources, acknowledge it, and return its
        source and arrays."""
        message = self._claim_message(tuple(sources), key, None)
        return message.source, self._collect(message, None)

    def _collect(
        self, message: Message, out: Sequence[Array | None] | None
    ) -> list[Array]:
        """Return the arrays of a claimed message, and acknowledge it."""
        source, key = message.source, message.key
        try:
            return message.collect(
                out,
                lambda: f"{key} from {source} to {self.node}",
                partial(self._wait, (source,), key, own=message),
            )
        finally:
            self._acknowledge(message)

    def pieces(self, source: str, key: Key) -> Iterator[Piece]:
        """Wait for a message, return it piece by piece, then acknowledge it."""
        message = self._claim_message((source,), key, None)
        try:
            yield from message.pieces(partial(self._wait, (source,), key, own=message))
        finally:
            self._acknowledge(message)

    def waiting(self) -> tuple[str, ...]:
        """Return the peers that threads of this node wait for now, sorted."""
        with self._lock:
            return tuple(
                sorted({peer for each in self._waits.values() for peer in each})
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
            while self.being_read:
                self._sleep(None)
            self._queues.clear()
            self._unacknowledged.clear()

    # Called by the transport.

    def posted_out(self, source: str, key: Key) -> Sequence[Array | None] | None:
        """Return the `out` of the `receive` that waits for this message, once."""
        with self._lock:
            return self._posted_outs.pop((source, key), None)

    def deliver(self, message: Message) -> None:
        """Store a message that has arrived; more of its payload may follow."""
        address = (message.source, message.key)
        with self._lock:
            self.bytes_received += message.nbytes
            self._queues.setdefault(address, deque()).append(message)
            self._unacknowledged[message.source].append(message)
            # The waiting receive gets this message. A second message of the same
            # address must not be written into the same `out`.
            self._posted_outs.pop(address, None)
            self._wake()
            listener = self._listeners.get(message.key.edge)
        if listener is not None:
            listener(message.source)

    def update_credit(self, peer: str, total: int) -> None:
        """Record that `peer` has acknowledged `total` bytes of what was sent to it."""
        with self._lock:
            if self._credits.update(peer, total):
                self._wake()

    def granted_credit(self, source: str) -> int:
        """Return the total that this node has acknowledged to `source`, in bytes."""
        with self._lock:
            return self._credits.granted(source)

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

    def read(self, peer: str) -> bool:
        """Handle the next frame of `peer` if one has arrived, without waiting.

        False when none has arrived, and while another thread reads that connection.
        """
        with self._lock:
            if peer in self.being_read or self._closed:
                return False
            self.being_read.add(peer)
        try:
            return self.readers[peer].read(0)
        finally:
            with self._lock:
                self._stop_reading(peer)

    def detach_all(self, peer: str) -> None:
        """Copy all messages of `peer` out of its buffers: it wants to end its run."""
        with self._lock:
            messages = list(self._unacknowledged[peer])
        for message in messages:
            message.detach()

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
        if peer not in self.peers:
            raise RunError(
                f"{self.node} has no peer '{peer}'", hint=did_you_mean(peer, self.peers)
            )

    def _claim_room(self, to: str, nbytes: int, cost: int) -> bool:
        claimed = self._credits.claim(to, cost)
        if claimed:
            self.bytes_sent += nbytes
        return claimed

    def _claim_message(
        self,
        sources: tuple[str, ...],
        key: Key,
        out: Sequence[Array | None] | None,
    ) -> Message:
        """Wait for a message of any of the sources and remove it from its queue, without
        acknowledging it. Only the message of a single source can be written to `out`."""
        addresses = dict.fromkeys((source, key) for source in sources)
        address = (sources[0], key)
        claimed: list[Message] = []

        def arrived() -> bool:
            found: tuple[str, Key] | None = address
            if len(addresses) > 1:  # the queues are in the order of their first message
                found = next((each for each in self._queues if each in addresses), None)
            messages = self._queues.pop(found, None) if found is not None else None
            if messages:
                assert found is not None
                claimed.append(messages.popleft())
                if messages:  # the next message of this source comes after the others
                    self._queues[found] = messages
            elif out is not None:
                self._posted_outs.setdefault(address, out)
            return bool(claimed)

        for source in sources:
            self._check_peer(source)
        try:
            self._wait(sources, key, arrived)
        finally:
            if out is not None:
                with self._lock:
                    if self._posted_outs.get(address) is out:
                        del self._posted_outs[address]
        return claimed[0]

    def _wait(
        self,
        peers: tuple[str, ...],
        key: Key,
        ready: Callable[[], bool],
        *,
        own: Message | None = None,
        sending: bool = False,
    ) -> None:
        """Block until `ready`, which is called with the lock held.

        `key` is the address of the message that is waited for, from any of `peers`, or
        with `sending` of the message that is to be sent to the only one. `own` is the message whose rest is waited
        for, if any: it is not acknowledged early.
        """
        # A node that waits acknowledges messages that its program has not received yet,
        # because the bound could otherwise turn the order of receives into a deadlock:
        # - Stored messages of `peers` arrived before the one that is waited for. The
        #   peer may need their room to send it, so they are acknowledged at once.
        # - The chain of who waits for whom may pass through other nodes, so messages of
        #   all peers are acknowledged when the wait has lasted for `beat` seconds. The
        #   pause then doubles: each round lets every peer send another `bound` bytes,
        #   so the bytes stored here grow only with the logarithm of the wait.
        #
        # One thread reads the connection of a peer. Everything that can make `ready`
        # true for another thread that waits for the same peer passes through it, and
        # `deliver`, `update_credit` and `mark_departed` wake that thread. When the
        # reader has what it waits for, `_stop_reading` wakes the others, and the first
        # of them reads on. A reader itself is not woken by `_changed`: the transport
        # ends its `read` at an abort or a close. A thread that waits for several peers
        # reads none of them: the session's thread does.
        peer, is_single = peers[0], len(peers) == 1
        start = -1.0  # the clock is read only if this has to wait
        pause, deadline = self._limits.beat, self._limits.deadline
        token = object()
        is_reader = False
        try:
            while True:
                with self._lock:
                    if is_reader:
                        is_reader = False
                        self._stop_reading(peer)
                    # The order matters: a failed run fails every call, but a message
                    # that arrived before its source departed can still be received.
                    # Nothing can be sent to a peer that has departed.
                    if self.aborted is not None or self._closed:
                        self._check_run()
                    is_gone = self.departed.issuperset(peers)
                    if not (is_gone and sending) and ready():
                        self._end_wait(token)
                        return
                    if is_gone:
                        raise RunError(
                            f"{self.node} cannot send {key}: {peer} has ended its run"
                            if sending
                            else f"{self.node} waits for {key} from {_any_of(peers)}, "
                            "which has ended its run"
                        )
                    now = time.monotonic()
                    if start < 0:
                        start = now
                        self._begin_wait(token, peers)
                    waited = now - start
                    if waited >= deadline:
                        what = (
                            f"{peer} to receive what it was sent before {key}"
                            if sending
                            else f"{key} from {_any_of(peers)}"
                        )
                        raise RunError(
                            f"{self.node} waited {deadline:g} s for {what}",
                            hint="a longer --deadline waits longer",
                        )
                    lists = [self._unacknowledged[each] for each in peers]
                    if waited >= pause:
                        # Several pauses may have passed while the process was stopped;
                        # the timeout below must not be negative.
                        while pause <= waited:
                            pause *= 2
                        lists = [*self._unacknowledged.values()]
                    stored = [x for xs in lists for x in xs if x is not own]
                    timeout = min(deadline, pause) - waited
                    # With messages to acknowledge, do that and look again: it may take
                    # long, and `ready` may be true by then.
                    if not stored:
                        is_reader = (
                            is_single
                            and peer in self.readers
                            and peer not in self.being_read
                        )
                        if is_reader:
                            self.being_read.add(peer)
                        else:
                            self._sleep(timeout)
                # Without the lock: reading enters `deliver`, and copying is slow.
                if is_reader:
                    self.readers[peer].read(timeout)
                elif stored:
                    for message in stored:
                        message.detach()
                        self._acknowledge(message)
        except BaseException:
            with self._lock:
                self._end_wait(token)
                if is_reader:
                    self._stop_reading(peer)
            raise

    def _begin_wait(self, token: object, peers: tuple[str, ...]) -> None:
        """Note that a thread waits; called with the lock held."""
        self._waits[token] = peers
        if len(peers) > 1:
            self._awaited.update(peers)
            for peer in self.readers.keys() & set(peers):
                self.readers[peer].reading_stopped()

    def _end_wait(self, token: object) -> None:
        """Note that a thread waits no more; called with the lock held."""
        peers = self._waits.pop(token, ())
        if len(peers) > 1:
            self._awaited.subtract(peers)

    def is_awaited(self, peer: str) -> bool:
        """Whether a thread waits for messages of this peer that another one has to
        read."""
        return self._awaited[peer] > 0

    def _stop_reading(self, peer: str) -> None:
        """Let other threads read from `peer`; called with the lock held."""
        self.being_read.discard(peer)
        self.readers[peer].reading_stopped()
        self._wake()

    def _acknowledge(self, message: Message) -> None:
        """Grant the cost of a message to its source, unless that was done early."""
        source = message.source
        with self._lock:
            try:
                self._unacknowledged[source].remove(message)
            except ValueError:
                return  # `_wait` has acknowledged it early
            total = self._credits.grant(source, message.copied_nbytes + MESSAGE_COST)
        self._on_credit(source, total)


def _any_of(peers: Sequence[str]) -> str:
    """Return peers as errors name them."""
    return " or ".join(peers)
