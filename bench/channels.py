"""Channels between two processes, against a plain copy and plain sockets, in one run.

Ways alternate within a round, so that all meet the same machine; medians over the rounds
are printed, and the best round beside them. A plain copy goes between buffers that were
not touched for a while, as gradients are, and so does everything else here.

    python bench/channels.py
    python bench/channels.py --rounds 21
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from placer.channel.memory import MemoryHub
from placer.channel.protocol import Channel, Key
from placer.channel.transport import open_channel
from placer.launcher.ports import free_endpoints
from placer.memory import aligned
from placer.memory.allocator import keep_memory

LARGE = 16 << 20
TURNS = 6
"""Buffers of that size that are used in turn, more than a cache holds."""
SMALL = [np.zeros(1024, np.float32)]
ROUND_TRIPS = 400
COPIED = {"shared, mapped": 0, "shared, in pieces": 1, "shared, into out": 2}
COPIED |= {"zeromq, into the arena": 3, "plain sockets": 2}
"""Bytes copied for each byte exchanged, in the kernel too: how each way is made."""


def buffers() -> list[np.ndarray]:
    made = [aligned.empty((LARGE,), np.uint8) for _ in range(TURNS)]
    for i, array in enumerate(made):
        array[...] = i
    return made


# The other process. A message of any edge asks it to play a part, once.


def peer(carrier: str, addresses: dict[str, str], job: str) -> None:
    channel = open_channel("b:0", addresses, job, carrier=carrier)
    channel.join()
    out = buffers()
    part = {"echo": 1, "out": 2, "pieces": 3, "any": 4}
    for turn in range(1_000_000):
        (asked,) = channel.receive("a:0", Key(0, turn))
        if asked[0] == part["echo"]:
            with on_core(-1):
                for step in range(ROUND_TRIPS):
                    arrays = channel.receive("a:0", Key(1, step))
                    channel.send("a:0", Key(1, step), arrays)
        elif asked[0] in part.values():
            begin = time.process_time()
            for step in range(TURNS):
                take(channel, asked[0], Key(1, step), out[step])
                channel.send("a:0", Key(1, step), [])
            used = time.process_time() - begin
            channel.send("a:0", Key(2, turn), [np.array(used)])
        else:
            break
    channel.close()


@contextmanager
def on_core(index: int) -> Iterator[None]:
    """Keep this process on one of its cores meanwhile."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[index]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def take(channel: Channel, part: int, key: Key, out: np.ndarray) -> None:
    if part == 2:
        channel.receive("a:0", key, out=[out])
    elif part == 3:
        for _ in channel.pieces("a:0", key):
            pass
    else:
        channel.receive("a:0", key)


def sockets_peer(port: int) -> None:
    """Receives into one buffer that it uses again and again."""
    buffer = memoryview(bytearray(LARGE))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begin = time.process_time()
        while True:
            at = 0
            while at < LARGE:
                got = connection.recv_into(buffer[at:])
                if not got:
                    return
                at += got
            used = time.process_time() - begin
            connection.sendall(np.float64(used).tobytes())
            begin = time.process_time()


def bare_peer(path: str) -> None:
    """Sends back what comes, with nothing of ours between: what waking costs."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(path)
        with on_core(-1):
            while data := connection.recv(64):
                connection.send(data)


# This process.


class Ways:
    """The ways to move bytes, each with a method that takes one round of it."""

    def __init__(self) -> None:
        self.children: list[subprocess.Popen[bytes]] = []
        self.turn = dict.fromkeys(("shared", "zeromq"), 0)
        self.channels = {name: self._channel(name) for name in self.turn}
        self.connection = self._connection()
        self.bare = self._bare()
        self.sources, self.targets = buffers(), buffers()
        memory = self.channels["shared"].share(TURNS * LARGE)
        self.mapped = [memory[i * LARGE : (i + 1) * LARGE] for i in range(TURNS)]
        hub = MemoryHub(["a:0", "b:0"])
        self.own = hub.channel("a:0"), hub.channel("b:0")

    def close(self) -> None:
        for name, channel in self.channels.items():
            channel.send("b:0", Key(0, self.turn[name]), [np.array([0])])
            channel.close()
        self.connection.close()
        self.bare.close()
        for child in self.children:
            child.wait()

    def copy(self) -> tuple[float, float]:
        """Wall and CPU seconds for each large plain copy."""
        return self._each(lambda i: np.copyto(self.targets[i], self.sources[i]))

    def map(self) -> tuple[float, float]:
        """Written into shared memory, which the peer is given."""

        def once(step: int) -> None:
            np.copyto(self.mapped[step], self.sources[step])
            self._send("shared", step, self.mapped[step])

        return self._with_peer("shared", 4, once)

    def ring(self, part: int) -> tuple[float, float]:
        """From private memory into private memory, or in pieces."""
        return self._with_peer(
            "shared", part, lambda step: self._send("shared", step, self.sources[step])
        )

    def zeromq(self) -> tuple[float, float]:
        return self._with_peer(
            "zeromq", 4, lambda step: self._send("zeromq", step, self.sources[step])
        )

    def sockets(self) -> tuple[float, float]:
        used = []

        def once(step: int) -> None:
            self.connection.sendall(self.sources[step].data)
            answer = self.connection.recv(8, socket.MSG_WAITALL)
            used.append(float(np.frombuffer(answer)[0]))

        wall, cpu = self._each(once)
        return wall, cpu + statistics.mean(used)

    def round_trip(self) -> float:
        """Seconds for 4 KB to the other process and back: the median of many.

        Each process has a core, as nodes have that compute.
        """
        channel = self.channels["shared"]
        self._ask("shared", 1)

        def once(step: int) -> None:
            channel.send("b:0", Key(1, step), SMALL)
            channel.receive("b:0", Key(1, step))

        with on_core(0):
            return statistics.median(times(once, ROUND_TRIPS))

    def bare_trip(self) -> float:
        """Seconds for 64 bytes there and back over a bare socket of the same kind."""

        def once(step: int) -> None:
            self.bare.send(bytes(64))
            self.bare.recv(64)

        with on_core(0):
            return statistics.median(times(once, ROUND_TRIPS))

    def own_call(self) -> float:
        """The same calls over the memory channel, empty, in this process alone."""
        a, b = self.own

        def once(step: int) -> None:
            a.send("b:0", Key(1, step), [])
            b.receive("a:0", Key(1, step))
            b.send("a:0", Key(1, step), [])
            a.receive("b:0", Key(1, step))

        return statistics.median(times(once, ROUND_TRIPS))

    def _channel(self, carrier: str) -> Channel:
        addresses = free_endpoints(["a:0", "b:0"])
        job = f"bench {os.getpid()} {carrier}"
        self._start("--peer", carrier, json.dumps(addresses), job)
        channel = open_channel("a:0", addresses, job, carrier=carrier)
        channel.join()
        return channel

    def _connection(self) -> socket.socket:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._start("--sockets-peer", str(server.getsockname()[1]))
            connection, _ = server.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _bare(self) -> socket.socket:
        path = f"\0placer bench {os.getpid()}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.bind(path)
            server.listen()
            self._start("--bare-peer", path[1:])
            connection, _ = server.accept()
        return connection

    def _start(self, *arguments: str) -> None:
        self.children.append(subprocess.Popen([sys.executable, __file__, *arguments]))

    def _ask(self, carrier: str, part: int) -> int:
        turn = self.turn[carrier]
        self.turn[carrier] += 1
        self.channels[carrier].send("b:0", Key(0, turn), [np.array([part])])
        return turn

    def _send(self, carrier: str, step: int, array: np.ndarray) -> None:
        """Send and wait until the peer has it."""
        channel = self.channels[carrier]
        channel.send("b:0", Key(1, step), [array])
        channel.receive("b:0", Key(1, step))

    def _with_peer(
        self, carrier: str, part: int, once: Callable[[int], None]
    ) -> tuple[float, float]:
        turn = self._ask(carrier, part)
        wall, cpu = self._each(once)
        (used,) = self.channels[carrier].receive("b:0", Key(2, turn))
        return wall, cpu + float(used) / TURNS

    def _each(self, once: Callable[[int], None]) -> tuple[float, float]:
        begin = time.process_time()
        wall = statistics.median(times(once, TURNS))
        return wall, (time.process_time() - begin) / TURNS


def times(once: Callable[[int], None], count: int) -> Iterator[float]:
    for step in range(count):
        begin = time.perf_counter()
        once(step)
        yield time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--peer", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--sockets-peer", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--bare-peer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    keep_memory(2 * TURNS * LARGE)  # as a node of so much memory
    if arguments.peer:
        carrier, addresses, job = arguments.peer
        peer(carrier, json.loads(addresses), job)
        return
    if arguments.sockets_peer:
        sockets_peer(arguments.sockets_peer)
        return
    if arguments.bare_peer:
        bare_peer("\0" + arguments.bare_peer)
        return
    ways = Ways()
    moved: dict[str, Callable[[], tuple[float, float]]] = {
        "plain copy": ways.copy,
        "shared, mapped": ways.map,
        "shared, in pieces": lambda: ways.ring(3),
        "shared, into out": lambda: ways.ring(2),
        "zeromq, into the arena": ways.zeromq,
        "plain sockets": ways.sockets,
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in moved}
    trips, bare, calls = [], [], []
    for number in range(arguments.rounds + 1):
        for name, way in moved.items():
            found[name].append(way())
        trips.append(ways.round_trip())
        bare.append(ways.bare_trip())
        calls.append(ways.own_call())
        if number == 0:  # what is made once
            for kept in (*found.values(), trips, bare, calls):
                kept.clear()
    ways.close()
    show(found, trips, bare, calls)


def show(
    found: dict[str, list[tuple[float, float]]],
    trips: list[float],
    bare: list[float],
    calls: list[float],
) -> None:
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    tcp = control.read_text().strip() if control.exists() else "?"
    print(f"{os.cpu_count()} cores, TCP with {tcp}; {len(trips)} rounds of 16 MB")
    print(f"{'':24}{'GB/s (best)':>16}{'of a copy (best)':>20}{'CPU s/GB (best)':>20}")
    copies = [wall for wall, _ in found["plain copy"]]
    for name, rounds in found.items():
        walls = [wall for wall, _ in rounds]
        cpus = [cpu / LARGE * 1e9 for _, cpu in rounds]
        ratios = [copy / wall for copy, wall in zip(copies, walls, strict=True)]
        speed = f"{LARGE / statistics.median(walls) / 1e9:.2f} ({LARGE / min(walls) / 1e9:.2f})"
        ratio = f"{statistics.median(ratios):.2f} ({min(copies) / min(walls):.2f})"
        cost = f"{statistics.median(cpus):.3f} ({min(cpus):.3f})"
        line = f"{name:24}{speed:>16}{ratio:>20}{cost:>20}"
        print(line + (f"  {COPIED[name]} copied" if name in COPIED else ""))
    cpu = {name: [c for _, c in rounds] for name, rounds in found.items()}
    pairs = zip(cpu["zeromq, into the arena"], cpu["plain sockets"], strict=True)
    ratio = statistics.median(z / s for z, s in pairs)
    best = min(cpu["zeromq, into the arena"]) / min(cpu["plain sockets"])
    print(f"zeromq takes {ratio:.2f}x ({best:.2f}x) the CPU time of plain sockets")
    print(
        f"round trip of 4 KB over shared {statistics.median(trips) * 1e6:.0f} us "
        f"({min(trips) * 1e6:.0f}), the calls alone {statistics.median(calls) * 1e6:.0f}"
        f" ({min(calls) * 1e6:.0f}), a bare socket {statistics.median(bare) * 1e6:.0f}"
        f" ({min(bare) * 1e6:.0f})"
    )


if __name__ == "__main__":
    main()
