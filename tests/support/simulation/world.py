"""A simulated machine for the channels of all nodes of a run: threads, time and network."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

from placer.channel import (
    admission,
    connecting,
    contents,
    frame_socket,
    frames,
    link,
    mailbox,
    message,
    pieces,
    pool,
    region,
    session,
)
from placer.channel.incarnations import Incarnations
from placer.channel.keys import RunKey
from placer.channel.session import Session
from support.simulation.files import Files, SimulatedOs
from support.simulation.network import Network, SimulatedSocketModule, Weather
from support.simulation.scheduler import MAX_STEPS, Scheduler
from support.simulation.threads import SimulatedThreading, SimulatedTime

PIECE = 1 << 10
"""Bytes of a piece in a simulation: 1/1024 of the real one, as all sizes."""
INLINE = 256
NEVER = 1e9
"""Seconds that no simulation takes."""
KEY = RunKey(bytes(32))


class World:
    """What the nodes of a simulation run on.

    Args:
        seed: all that happens is drawn from it.
        streams: "tcp", or "unix" for shared memory.
        weather: what may go wrong; drawn from the seed by default.
        max_steps: the switch points of a run at most.
    """

    def __init__(
        self,
        seed: int,
        streams: str = "tcp",
        weather: Weather | None = None,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self.scheduler = Scheduler(seed, max_steps=max_steps)
        self.random = self.scheduler.random
        self.files = Files(self.scheduler)
        self.network = Network(
            self.scheduler, self.files, weather or Weather.draw(self.scheduler)
        )
        self.threading = SimulatedThreading(self.scheduler)
        self.time = SimulatedTime(self.scheduler)
        self.streams = streams

    def session(self, node: str, nodes: list[str], **options: Any) -> Session:
        """Open the channel of a node; called by its thread. Its thread repairs nothing:
        a wake-up that is lost shows as a wait that passes the deadline."""
        endpoints = {name: f"127.0.0.1:{1000 + i}" for i, name in enumerate(nodes)}
        key = KEY if self.streams == "tcp" else None
        return Session(
            node, endpoints, "job", key=key, encrypt=False, transport="tcp" if key else "shared",
            **{"beat": NEVER, "lost_after": 16 * NEVER, "incarnations": Incarnations(1)}
            | options,
        )  # fmt: skip

    @contextmanager
    def replaced(self, *users: ModuleType) -> Iterator[None]:
        """Let the channels use this world, and none of the system; and other modules its
        threads."""
        names: Mapping[ModuleType, Mapping[str, Any]] = {
            admission: {"secrets": _Secrets(self.random), "time": self.time},
            contents: {"INLINE": INLINE},
            frames: {"INLINE": INLINE},
            frame_socket: {
                "select": self.files,
                "socket": SimulatedSocketModule(),
                "threading": self.threading,
                "time": self.time,
                "BUFFER": 4 * PIECE,
                "AHEAD": 256,
                "LOW_WATER": PIECE // 2,
            },
            connecting: {
                "secrets": _Secrets(self.random),
                "random": self.random,
                "select": self.files,
                "socket": SimulatedSocketModule(),
                "sockets": self.network,
                "time": self.time,
            },
            link: {
                "PIECE": PIECE,
                "select": self.files,
                "threading": self.threading,
            },
            mailbox: {"threading": self.threading, "time": self.time},
            message: {"PIECE": PIECE, "threading": self.threading},
            pieces: {"PIECE": PIECE, "MIN_FRAGMENT": 64},
            pool: {"PIECE": PIECE},
            region: {"threading": self.threading},
            session: {
                "PIECE": PIECE,
                "SPIN": 3e-6,
                "TICK": NEVER,
                "os": SimulatedOs(self.files),
                "select": self.files,
                "threading": self.threading,
                "time": self.time,
            },
        }
        names = {**names, **{user: {"threading": self.threading} for user in users}}
        patches = [
            patch.object(module, name, new)
            for module, replaced in names.items()
            for name, new in replaced.items()
        ]
        pieces.piece_layout.cache_clear()
        for each in patches:
            each.start()
        try:
            yield
        finally:
            for each in patches:
                each.stop()
            pieces.piece_layout.cache_clear()


class _Secrets:
    """Stands for the module `secrets`."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    def randbits(self, count: int) -> int:
        return self._draw.getrandbits(count)

    def token_bytes(self, count: int) -> bytes:
        return self._draw.randbytes(count)


def check_waits(sessions: Iterable[Session]) -> None:
    """Check that no thread waits for what has happened; called when all wait."""
    for node in sessions:
        waits = node.mailbox._waits
        assert node.mailbox.is_read or not waits, f"{node.node} reads nothing"
        for wait in waits:
            is_rest = "_wait_for_rest" in wait.is_stuck.__qualname__  # it may be
            assert is_rest or wait.is_stuck(), (
                f"{node.node} waits for {wait.peers} in vain"
            )
