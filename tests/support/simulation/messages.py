"""Programs of nodes that send messages to each other, and what has to hold of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from unittest.mock import patch

import numpy as np

from placer.channel import mailbox
from placer.channel.interface import Array, Key
from placer.channel.message import MESSAGE_COST
from placer.channel.session import Session
from support.free_addresses import receive_any
from support.simulation.world import INLINE, NEVER, PIECE, World, check_waits

SIZES = (0, 5, 60, INLINE - 64, INLINE + 1, PIECE, 3 * PIECE, 13 * PIECE)
DEADLINE = 60.0
"""Seconds, of which no simulation takes so many unless a wake-up is lost."""
SHARED_EDGE = 5
"""Messages of every fifth edge have an array in memory of `share`."""


@dataclass(frozen=True)
class Stream:
    """Messages of one edge: from each of its sources, in order, to one node.

    `way` is how they are received, `numbered` whether each has a key of its own. One
    thread of the receiver receives them.
    """

    edge: int
    sources: tuple[str, ...]
    to: str
    way: str
    numbered: bool

    def key(self, number: int) -> Key:
        return Key(self.edge, number if self.numbered else 0)


@dataclass(frozen=True)
class Event:
    """The next message of a stream is sent by `source`, or received if that is None.

    The thread computes for `pause` seconds before. If it `lingers`, it does not use the
    channel until what it has sent has been received.
    """

    stream: Stream
    source: str | None
    sizes: tuple[int, ...] = ()
    lingers: bool = False
    pause: float = 0.0


@dataclass(frozen=True)
class Program:
    """What each thread of each node does.

    Every message is sent before it is waited for, in one order of all events, so no
    thread waits for ever. But the bound can let nodes wait in a circle, unless
    `is_free`: each stream has threads of its own.
    """

    nodes: list[str]
    threads: dict[tuple[str, int], list[Event]]
    is_free: bool


def draw_program(draw: Random) -> Program:
    nodes = ["a:0", "b:0", "c:0", "d:0"][: draw.choice([2, 2, 3, 4])]
    is_free = draw.random() < 0.6
    streams = [
        _draw_stream(draw, nodes, edge) for edge in range(1, draw.randrange(3, 8))
    ]
    threads = {node: draw.choice([1, 1, 2, 3]) for node in nodes}
    thread_of = {
        (node, stream.edge): stream.edge if is_free else draw.randrange(threads[node])
        for stream in streams
        for node in nodes
    }
    program: dict[tuple[str, int], list[Event]] = defaultdict(list)
    waiting: Counter[Stream] = Counter()

    pauses = draw.choice([0.0, 5e-3, 50e-3])

    def add(node: str, event: Event) -> None:
        if draw.random() < 0.5:
            event = replace(event, pause=pauses * draw.random())
        program[node, thread_of[node, event.stream.edge]].append(event)

    for _ in range(draw.randrange(4, 40)):
        stream = draw.choice(streams)
        if waiting[stream] and draw.random() < 0.45:
            waiting[stream] -= 1
            add(stream.to, Event(stream, None))
        else:
            sizes = draw.choices(SIZES, (4, 4, 4, 3, 3, 2, 2, 1), k=draw.randrange(4))
            source = draw.choice(stream.sources)
            waiting[stream] += 1
            lingers = is_free and draw.random() < 0.2
            add(source, Event(stream, source, tuple(sizes), lingers))
    for stream in waiting.elements():
        add(stream.to, Event(stream, None))
    return Program(nodes, program, is_free)


def _draw_stream(draw: Random, nodes: Sequence[str], edge: int) -> Stream:
    to = draw.choice(nodes)
    others = [node for node in nodes if node != to]
    way = draw.choice(["receive", "pieces", "out", "some", "any", "first"])
    if way in ("any", "first"):
        sources = draw.sample(others, draw.randrange(1, len(others) + 1))
        return Stream(edge, tuple(sources), to, way, numbered=False)
    return Stream(edge, (draw.choice(others),), to, way, numbered=draw.random() < 0.5)


def content(edge: int, source: str, number: int, sizes: Sequence[int]) -> list[Array]:
    """Return the arrays of a message, which differ from those of every other."""
    start = 7 * edge + 31 * number + ord(source[0])
    return [
        ((np.arange(size) * 3 + start + 11 * i) % 251).astype(np.uint8)
        for i, size in enumerate(sizes)
    ]


class Messages:
    """A run of a program in a world.

    `play` is the simulation; `check` says whether what holds at the end does.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        draw = world.random
        program = draw_program(draw)
        self.nodes, self._program = program.nodes, program.threads
        self._is_free = program.is_free
        self._bound = draw.choice([INLINE, PIECE, 4 * PIECE, 64 * PIECE])
        self._sizes: dict[tuple[int, str], list[tuple[int, ...]]] = defaultdict(list)
        self._shared: dict[tuple[int, str], list[int]] = defaultdict(list)
        for events in self._program.values():
            for event in events:
                if event.source is not None:
                    self._sizes[event.stream.edge, event.source].append(event.sizes)
        self._sent: Counter[tuple[int, str]] = Counter()
        self._received: Counter[tuple[int, str]] = Counter()
        self._heard: Counter[tuple[int, str]] = Counter()
        self._sessions: dict[str, Session] = {}
        self._joined: list[str] = []
        self._changed = world.threading.Condition()

    def play(self) -> None:
        """Run the program; raises what fails."""
        for node in self.nodes:
            self._world.scheduler.spawn(partial(self._run_node, node), node, node)
        self._world.scheduler.on_idle = lambda: check_waits(self._sessions.values())
        # No other probe looks for a circle, and so wakes a sender.
        pause = NEVER if self._is_free else mailbox.FIRST_PAUSE
        with patch.object(mailbox, "FIRST_PAUSE", pause):
            self._world.scheduler.run()
        self._check()

    def _run_node(self, node: str) -> None:
        world = self._world
        session = world.session(
            node, self.nodes, bound=self._bound, deadline=DEADLINE,
            join_timeout=DEADLINE,
        )  # fmt: skip
        self._sessions[node] = session
        for edge in range(1, 10):
            session.listen(edge, partial(self._hear, session, edge))
        session.join()
        with self._changed:
            self._joined.append(node)
            if len(self._joined) == len(self.nodes):
                world.network.begin_cuts()
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(self._joined) == len(self.nodes))
        memory = session.share(100)
        memory[:] = ord(node[0])
        threads = [
            world.threading.Thread(
                target=partial(self._run_thread, session, memory, events),
                name=f"{node} thread {i}",
            )
            for (of, i), events in self._program.items()
            if of == node
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        world.network.draw_cut()
        began = world.scheduler.now
        session.close()
        took = world.scheduler.now - began
        assert took < DEADLINE, f"{node} took {took} s to close"

    def _hear(self, session: Session, edge: int, source: str) -> None:
        """Note a message that has arrived, and check the bound."""
        self._heard[edge, source] += 1
        stored = session.mailbox.credits[source].stored
        cost = sum(message.copied_nbytes + MESSAGE_COST for message in stored)
        window = session.limits.window(len(session.mailbox.peers))
        assert cost <= window or len(stored) == 1, (session.node, source, cost, window)

    def _run_thread(
        self, session: Session, memory: Array, events: Sequence[Event]
    ) -> None:
        for event in events:
            stream = event.stream
            if event.pause:
                self._world.scheduler.block(event.pause)
            if event.source is None:
                self._receive(session, stream)
                continue
            number = self._sent[stream.edge, event.source]
            self._sent[stream.edge, event.source] += 1
            arrays = content(stream.edge, event.source, number, event.sizes)
            if stream.edge == SHARED_EDGE:
                arrays.append(memory[: number + 1])
            session.send(stream.to, stream.key(number), arrays)
            if event.lingers:
                address = stream.edge, event.source
                with self._changed:
                    self._changed.wait_for(lambda: self._received[address] > number)  # noqa: B023

    def _receive(self, session: Session, stream: Stream) -> None:
        got, source = self._take(session, stream)
        number = self._received[stream.edge, source]
        with self._changed:
            self._received[stream.edge, source] += 1
            self._changed.notify_all()
        sizes = self._sizes[stream.edge, source][number]
        sent = content(stream.edge, source, number, sizes)
        if stream.edge == SHARED_EDGE:
            sent.append(np.full(number + 1, ord(source[0]), np.uint8))
        if stream.way in ("pieces", "first"):  # empty arrays have none
            sent = [array for array in sent if array.size]
        if stream.way != "some":
            assert [*map(bytes, got)] == [*map(bytes, sent)], (stream, source, number)

    def _take(self, session: Session, stream: Stream) -> tuple[list[Array], str]:
        """Receive the next message of a stream; return its arrays and its source."""
        source = stream.sources[0]
        number = self._received[stream.edge, source]
        key = stream.key(number)
        if stream.way == "any":
            source, arrays = receive_any(session, stream.sources, key)
            return arrays, source
        if stream.way == "first":
            addresses = [(each, key) for each in stream.sources]
            source, key, pieces = session.pieces_of_first(addresses)
            return _join(pieces), source
        if stream.way == "receive":
            return session.receive(source, key), source
        if stream.way == "pieces":
            return _join(session.pieces(source, key)), source
        if stream.way == "some":
            pieces = session.pieces(source, key)
            next(pieces, None)
            pieces.close()  # type: ignore[attr-defined]
            return [], source
        sizes = self._sizes[stream.edge, source][number]
        out: list[Array | None] = [np.zeros(size, np.uint8) for size in sizes]
        if stream.edge == SHARED_EDGE:
            out.append(None)
        return session.receive(source, key, out=out), source

    def _check(self) -> None:
        """Check what holds once all has ended."""
        for address, sizes in self._sizes.items():
            assert self._received[address] == len(sizes), address
            assert self._heard[address] == len(sizes), address
        for session in self._sessions.values():
            for peer, credit in session.mailbox.credits.items():
                granted = self._sessions[peer].mailbox.credits[session.node].granted
                assert credit.sent == granted, (session.node, peer)


def _join(pieces: Iterator[tuple[int, int, Array]]) -> list[Array]:
    joined: dict[int, bytearray] = {}
    for index, first, view in pieces:
        array = joined.setdefault(index, bytearray())
        assert len(array) == first
        array += view.tobytes()
    return [np.frombuffer(joined[i], np.uint8) for i in sorted(joined)]


def simulate(seed: int, streams: str = "") -> tuple[int, float]:
    """Run the program of a seed; raises what fails.

    Args:
        seed: all that happens is drawn from it.
        streams: "tcp", "unix", or by default one of them.

    Returns:
        The number of switch points, and the virtual time that it took.
    """
    world = World(seed, streams or ("tcp" if seed % 4 else "unix"))
    try:
        with world.replaced():
            Messages(world).play()
    except BaseException as error:
        error.add_note(f"simulate({seed}, {world.streams!r})")
        raise
    return world.scheduler.steps, world.scheduler.now
