"""What a node knows of its messages: those that came, those on their way, who waits.

Both carriers put what arrives here and block here. One condition guards all of it; the
carrier's `on_credit` is called without it held, because it may enter another mailbox.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from placer.errors import RunError, did_you_mean
from placer.runtime.channel import payload
from placer.runtime.channel.protocol import Aborted, Array, Cause, Key

MESSAGE_COST = 64
"""Bytes that a message counts for itself, so that empty ones are bounded as well."""


@dataclass(eq=False, slots=True)
class Letter:
    """A message that has arrived, until the program takes it."""

    source: str
    key: Key
    arrays: list[Array]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    @property
    def cost(self) -> int:
        return self.nbytes + MESSAGE_COST


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
    ) -> None:
        self.node = node
        self.peers = tuple(peers)
        self.bytes_sent = 0
        self.bytes_received = 0
        self.aborted: Cause | None = None
        self.departed: set[str] = set()
        self._bound = bound
        self._deadline = deadline
        self._beat = beat
        self._on_credit = on_credit
        self._changed = threading.Condition()
        self._letters: dict[tuple[str, Key], deque[Letter]] = {}
        self._held: dict[str, list[Letter]] = defaultdict(list)  # not acknowledged yet
        self._posted: dict[tuple[str, Key], Sequence[Array | None]] = {}
        self._credited = dict.fromkeys(self.peers, 0)  # what I acknowledged to each
        self._reserved = dict.fromkeys(self.peers, 0)  # the cost of all I sent to each
        self._allowed = dict.fromkeys(self.peers, 0)  # what each acknowledged to me
        self._waits: dict[object, str] = {}

    # What the program calls.

    def reserve(
        self, to: str, key: Key, nbytes: int, ask: Callable[[], None] | None = None
    ) -> None:
        """Count a message of `nbytes` as on its way, once the bound has room for it.

        `ask` is called once if that has to wait.
        """
        cost = nbytes + MESSAGE_COST

        def claim() -> bool:
            on_the_way = self._reserved[to] - self._allowed[to]
            if on_the_way and on_the_way + cost > self._bound:
                return False
            self._reserved[to] += cost
            self.bytes_sent += nbytes
            return True

        def gone() -> str:
            return f"{self.node} cannot send {key}: {to} has ended its run"

        with self._changed:
            self._check(to)
            if to in self.departed:
                raise RunError(gone())
            if claim():
                return
        if ask is not None:
            ask()
        late = f"for {to} to receive what it was sent before {key}"
        self._wait(to, claim, late, gone)

    def take(
        self, source: str, key: Key, out: Sequence[Array | None] | None
    ) -> list[Array]:
        """Wait for a message, acknowledge it and return its arrays."""
        address = (source, key)

        def arrived() -> bool:
            return address in self._letters

        def gone() -> str:
            return f"{self.node} waits for {key} from {source}, which has ended its run"

        while True:
            with self._changed:
                self._check(source)
                letter = self._pop(address)
                if letter is None and out is not None:
                    self._posted.setdefault(address, out)
            if letter is not None:
                break
            try:
                self._wait(source, arrived, f"for {key} from {source}", gone)
            finally:
                with self._changed:
                    if out is not None and self._posted.get(address) is out:
                        del self._posted[address]
        self._acknowledge([letter])
        return payload.fill(out, letter.arrays, f"{key} from {source} to {self.node}")

    def waiting(self) -> tuple[str, ...]:
        """The peers waited for right now, sorted."""
        with self._changed:
            return tuple(sorted(set(self._waits.values())))

    def until(self, ready: Callable[[], bool], timeout: float) -> bool:
        """Wait for `ready`, which is asked with the lock held; False after `timeout`.

        `Aborted` when the run fails first.
        """

        def over() -> bool:
            return self.aborted is not None or ready()

        with self._changed:
            self._changed.wait_for(over, timeout)
            if self.aborted is not None:
                raise Aborted(self.aborted)
            return ready()

    # What the carrier calls.

    def posted(self, source: str, key: Key) -> Sequence[Array | None] | None:
        """The `out` of the receive that waits for this message; asked for once."""
        with self._changed:
            return self._posted.pop((source, key), None)

    def deliver(self, letter: Letter) -> None:
        """A whole message has arrived."""
        address = (letter.source, letter.key)
        with self._changed:
            self.bytes_received += letter.nbytes
            self._letters.setdefault(address, deque()).append(letter)
            self._held[letter.source].append(letter)
            # A second message of the same address must not be written into the buffer
            # that this one is about to be returned in.
            self._posted.pop(address, None)
            self._changed.notify_all()

    def credit(self, peer: str, total: int) -> None:
        """`peer` has acknowledged `total` bytes of what was sent to it, all told."""
        with self._changed:
            if self._allowed[peer] < total <= self._reserved[peer]:
                self._allowed[peer] = total
                self._changed.notify_all()

    def credited(self, source: str) -> int:
        """The bytes of `source` that were acknowledged so far."""
        with self._changed:
            return self._credited[source]

    def depart(self, peer: str) -> None:
        """`peer` has ended its run in good order."""
        with self._changed:
            self.departed.add(peer)
            self._changed.notify_all()

    def abort(self, cause: Cause) -> bool:
        """Wake every wait with `cause`; False when the run had failed before."""
        with self._changed:
            if self.aborted is not None:
                return False
            self.aborted = cause
            self._changed.notify_all()
            return True

    def notify(self) -> None:
        """Something that an `until` asks about has changed."""
        with self._changed:
            self._changed.notify_all()

    # Inside.

    def _check(self, peer: str) -> None:
        if self.aborted is not None:
            raise Aborted(self.aborted)
        if peer not in self._reserved:
            raise RunError(
                f"{self.node} has no peer '{peer}'", hint=did_you_mean(peer, self.peers)
            )

    def _pop(self, address: tuple[str, Key]) -> Letter | None:
        letters = self._letters.get(address)
        if letters is None:
            return None
        letter = letters.popleft()
        if not letters:
            del self._letters[address]
        return letter

    def _wait(
        self,
        peer: str,
        ready: Callable[[], bool],
        late: str,
        gone: Callable[[], str],
    ) -> None:
        """Block until `ready`; acknowledge held messages where waiting could deadlock.

        Messages of `peer` that overtook the one waited for are acknowledged at once:
        their room may be what the peer needs to send it. The rest follow when the wait
        has lasted a beat, because the chain of who waits for whom may pass through
        other nodes; the pause doubles, so that what piles up grows with the logarithm
        of the wait.
        """
        start = time.monotonic()
        pause = self._beat
        token = object()
        try:
            while True:
                with self._changed:
                    if self.aborted is not None:
                        raise Aborted(self.aborted)
                    if ready():
                        return
                    if peer in self.departed:
                        raise RunError(gone())
                    waited = time.monotonic() - start
                    if waited >= self._deadline:
                        raise RunError(
                            f"{self.node} waited {self._deadline:g} s {late}"
                        )
                    self._waits[token] = peer
                    held = list(self._held[peer])
                    if waited >= pause:
                        pause *= 2
                        held = [x for letters in self._held.values() for x in letters]
                    if not held:
                        self._changed.wait(min(self._deadline, pause) - waited)
                self._acknowledge(held)
        finally:
            with self._changed:
                self._waits.pop(token, None)

    def _acknowledge(self, letters: Sequence[Letter]) -> None:
        totals: dict[str, int] = {}
        with self._changed:
            for letter in letters:
                held = self._held[letter.source]
                if letter in held:
                    held.remove(letter)
                    self._credited[letter.source] += letter.cost
                    totals[letter.source] = self._credited[letter.source]
        for source, total in totals.items():
            self._on_credit(source, total)
