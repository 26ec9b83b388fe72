"""What a node knows of its messages: those that came, those on their way, who waits.

Every carrier puts what arrives here and blocks here. One lock guards all of it; the
carrier's `on_credit` is called without it held, because it may enter another mailbox.

A carrier whose streams are read by the threads that wait gives a `Reader`: the first to
wait for a peer reads its stream, others wait to be told. That saves the hop from one
thread to another, which costs more than the message.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from placer.channel.credits import Ledger
from placer.channel.message import Message
from placer.channel.protocol import Aborted, Array, Cause, Key, Piece
from placer.channel.reader import Reader
from placer.errors import RunError, did_you_mean


class Mailbox:
    """The messages of one node and everything that its program waits for.

    `on_credit(source, total)` is called when the bytes acknowledged to `source` rise to
    `total`; the other side's mailbox takes that through `credit`.
    """

    def __init__(
        self,
        node: str,
        peers: Iterable[str],
        *,
        bound: int,
        deadline: float,
        beat: float,
        on_credit: Callable[[str, int], None],
        reader: Reader | None = None,
    ) -> None:
        self.node = node
        self.peers = tuple(peers)
        self.bytes_sent = 0
        self.bytes_received = 0
        self.aborted: Cause | None = None
        self.departed: set[str] = set()
        self._deadline = deadline
        self._beat = beat
        self._on_credit = on_credit
        self._reader = reader
        self._read: set[str] = set()  # peers whose stream some thread reads
        self._closed = False
        self._lock = threading.RLock()  # quicker to enter than the condition
        self._changed = threading.Condition(self._lock)
        self._asleep = 0  # threads that wait for it
        self._letters: dict[tuple[str, Key], deque[Message]] = {}
        self._held: dict[str, list[Message]] = defaultdict(list)  # not acknowledged yet
        self._posted: dict[tuple[str, Key], Sequence[Array | None]] = {}
        self._ledger = Ledger(self.peers, bound)
        self._waits: dict[object, str] = {}
        self._listeners: dict[int, Callable[[str], None]] = {}

    # What the program calls.

    def listen(self, edge: int, call: Callable[[str], None]) -> None:
        """Call `call(source)` for each message of this edge that arrives from now on."""
        with self._lock:
            self._listeners[edge] = call

    def reserve(
        self,
        to: str,
        key: Key,
        nbytes: int,
        cost: int,
        ask: Callable[[int], None] | None = None,
    ) -> None:
        """Count a message as on its way, once the bound has room for its cost.

        If that has to wait, `ask` is called once, with the credit that is waited for.
        """
        self._check_peer(to)
        with self._lock:
            self._check_run()
            if to not in self.departed and self._claim_room(to, nbytes, cost):
                return

        def claim() -> bool:
            return self._claim_room(to, nbytes, cost)

        def gone() -> str:
            return f"{self.node} cannot send {key}: {to} has ended its run"

        def late() -> str:
            return f"for {to} to receive what it was sent before {key}"

        with self._lock:
            if to in self.departed:
                raise RunError(gone())
            wanted = self._ledger.wanted(to, cost)
        if ask is not None:
            ask(wanted)
        self._wait(to, claim, late, gone)

    def take(
        self, source: str, key: Key, out: Sequence[Array | None] | None
    ) -> list[Array]:
        """Wait for a message, acknowledge it and return its arrays."""
        message = self._claim(source, key, out)
        try:
            return message.collect(
                out,
                lambda: f"{key} from {source} to {self.node}",
                partial(self._wait_for_rest, message),
            )
        finally:
            self._acknowledge(message)

    def pieces(self, source: str, key: Key) -> Iterator[Piece]:
        """Wait for a message and return it piece by piece, then acknowledge it."""
        message = self._claim(source, key, None)
        try:
            yield from message.pieces(partial(self._wait_for_rest, message))
        finally:
            self._acknowledge(message)

    def waiting(self) -> tuple[str, ...]:
        """The peers waited for right now, sorted."""
        with self._lock:
            return tuple(sorted(set(self._waits.values())))

    def until(
        self, ready: Callable[[], bool], timeout: float, *, failed: bool = False
    ) -> bool:
        """Wait for `ready`, which is asked with the lock held; False after `timeout`.

        `Aborted` when the run fails first, unless it has `failed` before.
        """

        def over() -> bool:
            return self._closed or ready() or (self.aborted is not None and not failed)

        with self._lock:
            until = time.monotonic() + timeout
            while not over() and (left := until - time.monotonic()) > 0:
                self._sleep(left)
            if self.aborted is not None and not failed:
                raise Aborted(self.aborted)
            return ready()

    def close(self) -> None:
        """End every wait, forget all messages; returns when no thread reads a stream."""
        with self._lock:
            self._closed = True
            self._stir()
            while self._read:
                self._sleep(None)
            self._letters.clear()
            self._held.clear()

    # What the carrier calls.

    def posted(self, source: str, key: Key) -> Sequence[Array | None] | None:
        """The `out` of the receive that waits for this message; asked for once."""
        with self._lock:
            return self._posted.pop((source, key), None)

    def deliver(self, message: Message) -> None:
        """A message has arrived; the rest of what it carries may follow."""
        address = (message.source, message.key)
        with self._lock:
            self.bytes_received += message.nbytes
            self._letters.setdefault(address, deque()).append(message)
            self._held[message.source].append(message)
            # A second message of the same address must not be written into the buffer
            # that this one is about to be returned in.
            self._posted.pop(address, None)
            self._stir()
            listener = self._listeners.get(message.key.edge)
        if listener is not None:
            listener(message.source)

    def credit(self, peer: str, total: int) -> None:
        """`peer` has acknowledged `total` bytes of what was sent to it, all told."""
        with self._lock:
            if self._ledger.allow(peer, total):
                self._stir()

    def credited(self, source: str) -> int:
        """The bytes of `source` that were acknowledged so far."""
        with self._lock:
            return self._ledger.credited(source)

    def depart(self, peer: str) -> None:
        """`peer` has ended its run in good order."""
        with self._lock:
            self.departed.add(peer)
            self._stir()

    def abort(self, cause: Cause) -> bool:
        """Wake every wait with `cause`; False when the run had failed before."""
        with self._lock:
            if self.aborted is not None:
                return False
            self.aborted = cause
            self._stir()
            return True

    def notify(self) -> None:
        """Something that an `until` asks about has changed."""
        with self._lock:
            self._stir()

    def read(self, peer: str) -> bool:
        """Take what comes next from `peer`, if anything is there to be read.

        False also while another thread reads that stream.
        """
        assert self._reader is not None
        with self._lock:
            if peer in self._read or self._closed:
                return False
            self._read.add(peer)
        try:
            return self._reader.read(peer, 0)
        finally:
            with self._lock:
                self._leave(peer)

    def is_read(self, peer: str) -> bool:
        """Whether some thread reads the stream of `peer` right now."""
        with self._lock:
            return peer in self._read

    def settle(self, peer: str) -> None:
        """Put aside all that has come from `peer`: it wants to end its run."""
        with self._lock:
            held = list(self._held[peer])
        for message in held:
            message.settle()

    # Inside.

    def _sleep(self, timeout: float | None) -> None:
        """Wait until something changes, with the lock held."""
        self._asleep += 1
        try:
            self._changed.wait(timeout)
        finally:
            self._asleep -= 1

    def _stir(self) -> None:
        """Something has changed: wake all that sleep, with the lock held."""
        if self._asleep:
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
        if not self._ledger.has_room(to, cost):
            return False
        self._ledger.send(to, cost)
        self.bytes_sent += nbytes
        return True

    def _claim(
        self, source: str, key: Key, out: Sequence[Array | None] | None
    ) -> Message:
        """Wait for a message and take it out, still to be acknowledged."""
        address = (source, key)
        found: list[Message] = []

        def arrived() -> bool:
            message = self._pop(address)
            if message is not None:
                found.append(message)
            elif out is not None:
                self._posted.setdefault(address, out)
            return message is not None

        self._check_peer(source)
        late, gone = partial(_late, source, key), partial(self._gone, source, key)
        try:
            self._wait(source, arrived, late, gone)
        finally:
            if out is not None:
                with self._lock:
                    if self._posted.get(address) is out:
                        del self._posted[address]
        return found[0]

    def _pop(self, address: tuple[str, Key]) -> Message | None:
        messages = self._letters.get(address)
        if messages is None:
            return None
        message = messages.popleft()
        if not messages:
            del self._letters[address]
        return message

    def _gone(self, source: str, key: Key) -> str:
        return f"{self.node} waits for {key} from {source}, which has ended its run"

    def _wait_for_rest(self, message: Message, ready: Callable[[], bool]) -> None:
        """How a message that was taken waits for what is still to come of it."""
        source, key = message.source, message.key
        late, gone = partial(_late, source, key), partial(self._gone, source, key)
        self._wait(source, ready, late, gone, message)

    def _wait(
        self,
        peer: str,
        ready: Callable[[], bool],
        late: Callable[[], str],
        gone: Callable[[], str],
        own: Message | None = None,
    ) -> None:
        """Block until `ready`; acknowledge held messages where waiting could deadlock.

        Messages of `peer` that overtook the one waited for are acknowledged at once:
        their room may be what the peer needs to send it. The rest follow when the wait
        has lasted a beat, because the chain of who waits for whom may pass through
        other nodes; the pause doubles, so that what piles up grows with the logarithm
        of the wait. `own` is the message whose rest is waited for: it is left alone.
        """
        start = -1.0
        pause = self._beat
        token = object()
        reads = False
        try:
            while True:
                with self._lock:
                    if reads:
                        reads = False
                        self._leave(peer)
                    if self.aborted is not None or self._closed:
                        self._check_run()
                    if ready():
                        self._waits.pop(token, None)
                        return
                    if peer in self.departed:
                        raise RunError(gone())
                    now = time.monotonic()
                    if start < 0:
                        start = now
                        self._waits[token] = peer
                    waited = now - start
                    if waited >= self._deadline:
                        raise RunError(
                            f"{self.node} waited {self._deadline:g} s {late()}",
                            hint="a longer --deadline waits longer",
                        )
                    held = [x for x in self._held[peer] if x is not own]
                    if waited >= pause:
                        while pause <= waited:  # the whole process may have stood still
                            pause *= 2
                        every = self._held.values()
                        held = [x for xs in every for x in xs if x is not own]
                    timeout = min(self._deadline, pause) - waited
                    if not held:
                        reads = self._reader is not None and peer not in self._read
                        if reads:
                            self._read.add(peer)
                        else:
                            self._sleep(timeout)
                if reads:
                    assert self._reader is not None
                    self._reader.read(peer, timeout)
                elif held:
                    for message in held:
                        message.settle()
                        self._acknowledge(message)
        except BaseException:
            with self._lock:
                self._waits.pop(token, None)
                if reads:
                    self._leave(peer)
            raise

    def _leave(self, peer: str) -> None:
        """Stop reading the stream of `peer`, with the lock held; others may go on."""
        assert self._reader is not None
        self._read.discard(peer)
        self._reader.left(peer)
        self._stir()

    def _acknowledge(self, message: Message) -> None:
        source = message.source
        with self._lock:
            try:
                self._held[source].remove(message)
            except ValueError:
                return  # it was acknowledged when it was put aside
            total = self._ledger.credit(source, message.cost)
        self._on_credit(source, total)


def _late(source: str, key: Key) -> str:
    return f"for {key} from {source}"
