"""Measures channels between two processes, and a plain copy and plain sockets.

All cases alternate within a round, so that they run under the same conditions. The
median of the rounds is printed, and the best round in brackets. All cases copy between
buffers that were not used for a while, as gradients are.

    python bench/channels.py
    python bench/channels.py --rounds 21
"""

from __future__ import annotations

import argparse
import itertools
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

from placer.channel.in_process import memory_channels
from placer.channel.interface import Channel, Key
from placer.channel.keys import RunKey
from placer.channel.ports import free_endpoints
from placer.channel.session import Session
from placer.system.memory import aligned
from placer.system.memory.allocator import keep_memory

SECRET = RunKey(bytes(32))
LARGE = 16 << 20
BUFFERS = 6
"""Buffers of `LARGE` bytes that are used in turn: more than a cache holds."""
SMALL = [np.zeros(1024, np.float32)]
ROUND_TRIPS = 400
COPIED = {"shared, mapped": 0, "shared, in pieces": 1, "shared, into out": 2}
COPIED |= {"tcp, in pieces": 2, "tcp, into out": 2, "plain sockets": 2}
"""Bytes copied for each byte exchanged, including those in the kernel."""


def buffers() -> list[np.ndarray]:
    arrays = [aligned.empty((LARGE,), np.uint8) for _ in range(BUFFERS)]
    for i, array in enumerate(arrays):
        array[...] = i
    return arrays


# The other process. A message of edge 0 asks it to play a role, once.


def peer(transport: str, addresses: dict[str, str], job: str) -> None:
    channel = Session(
        "b:0", addresses, job, transport=transport, key=SECRET, encrypt=False
    )
    channel.join()
    out = buffers()
    role = {"echo": 1, "out": 2, "pieces": 3, "any": 4}
    for turn in range(1_000_000):
        (requested,) = channel.receive("a:0", Key(0, turn))
        if requested[0] == role["echo"]:
            with on_core(-1):
                for step in range(ROUND_TRIPS):
                    arrays = channel.receive("a:0", Key(1, step))
                    channel.send("a:0", Key(1, step), arrays)
        elif requested[0] in role.values():
            start = time.process_time()
            for step in range(BUFFERS):
                receive_message(channel, requested[0], Key(1, step), out[step])
                channel.send("a:0", Key(1, step), [])
            cpu_seconds = time.process_time() - start
            channel.send("a:0", Key(2, turn), [np.array(cpu_seconds)])
        else:
            break
    channel.close()


@contextmanager
def on_core(index: int) -> Iterator[None]:
    """Pin this process to one of its cores inside the block."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[index]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def receive_message(channel: Channel, role: int, key: Key, out: np.ndarray) -> None:
    if role == 2:
        channel.receive("a:0", key, out=[out])
    elif role == 3:
        for _ in channel.pieces("a:0", key):
            pass
    else:
        channel.receive("a:0", key)


def sockets_peer(port: int) -> None:
    """Receive into buffers in turn, as the other peer does."""
    out = itertools.cycle([array.data for array in buffers()])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        start = time.process_time()
        while True:
            at, buffer = 0, next(out)
            while at < LARGE:
                got = connection.recv_into(buffer[at:])
                if not got:
                    return
                at += got
            cpu_seconds = time.process_time() - start
            connection.sendall(np.float64(cpu_seconds).tobytes())
            start = time.process_time()


def bare_peer(path: str) -> None:
    """Send back what arrives, without a channel: the cost of waking a process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(path)
        with on_core(-1):
            while data := connection.recv(64):
                connection.send(data)


# This process.


class Benchmarks:
    """The cases, each a method that measures one round."""

    def __init__(self) -> None:
        self.children: list[subprocess.Popen[bytes]] = []
        self.turn = dict.fromkeys(("shared", "tcp"), 0)
        self.channels = {name: self._channel(name) for name in self.turn}
        self.connection = self._connection()
        self.bare = self._bare()
        self.sources, self.targets = buffers(), buffers()
        memory = self.channels["shared"].share(BUFFERS * LARGE)
        self.mapped = [memory[i * LARGE : (i + 1) * LARGE] for i in range(BUFFERS)]
        channels = memory_channels(["a:0", "b:0"])
        self.memory_channels = channels["a:0"], channels["b:0"]

    def close(self) -> None:
        for name, channel in self.channels.items():
            channel.send("b:0", Key(0, self.turn[name]), [np.array([0])])
            channel.close()
        self.connection.close()
        self.bare.close()
        for child in self.children:
            child.wait()

    def copy(self) -> tuple[float, float]:
        """Return the wall and CPU seconds of a large plain copy."""
        return self._each(lambda i: np.copyto(self.targets[i], self.sources[i]))

    def map(self) -> tuple[float, float]:
        """Copy into shared memory, and send it to the peer without a copy."""

        def once(step: int) -> None:
            np.copyto(self.mapped[step], self.sources[step])
            self._send("shared", step, self.mapped[step])

        return self._with_peer("shared", 4, once)

    def send(self, transport: str, role: int) -> tuple[float, float]:
        """Send from private memory; the peer receives into `out`, or in pieces."""
        return self._with_peer(
            transport,
            role,
            lambda step: self._send(transport, step, self.sources[step]),
        )

    def sockets(self) -> tuple[float, float]:
        cpu_seconds = []

        def once(step: int) -> None:
            self.connection.sendall(self.sources[step].data)
            answer = self.connection.recv(8, socket.MSG_WAITALL)
            cpu_seconds.append(float(np.frombuffer(answer)[0]))

        wall, cpu = self._each(once)
        return wall, cpu + statistics.mean(cpu_seconds)

    def round_trip(self) -> float:
        """Return the median seconds of 4 KB to the other process and back.

        Each process is pinned to a core, like nodes that compute.
        """
        channel = self.channels["shared"]
        self._request("shared", 1)

        def once(step: int) -> None:
            channel.send("b:0", Key(1, step), SMALL)
            channel.receive("b:0", Key(1, step))

        with on_core(0):
            return statistics.median(times(once, ROUND_TRIPS))

    def bare_trip(self) -> float:
        """Return the median seconds of 64 bytes to the other process and back, over a
        socket of the same kind without a channel."""

        def once(step: int) -> None:
            self.bare.send(bytes(64))
            self.bare.recv(64)

        with on_core(0):
            return statistics.median(times(once, ROUND_TRIPS))

    def own_call(self) -> float:
        """Return the median seconds of the same calls over the memory channel."""
        a, b = self.memory_channels

        def once(step: int) -> None:
            a.send("b:0", Key(1, step), [])
            b.receive("a:0", Key(1, step))
            b.send("a:0", Key(1, step), [])
            a.receive("b:0", Key(1, step))

        return statistics.median(times(once, ROUND_TRIPS))

    def _channel(self, transport: str) -> Channel:
        addresses = free_endpoints(["a:0", "b:0"])
        job = f"bench {os.getpid()} {transport}"
        self._start("--peer", transport, json.dumps(addresses), job)
        channel = Session(
            "a:0", addresses, job, transport=transport, key=SECRET, encrypt=False
        )
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

    def _request(self, transport: str, role: int) -> int:
        turn = self.turn[transport]
        self.turn[transport] += 1
        self.channels[transport].send("b:0", Key(0, turn), [np.array([role])])
        return turn

    def _send(self, transport: str, step: int, array: np.ndarray) -> None:
        """Send, and wait until the peer has received it."""
        channel = self.channels[transport]
        channel.send("b:0", Key(1, step), [array])
        channel.receive("b:0", Key(1, step))

    def _with_peer(
        self, transport: str, role: int, once: Callable[[int], None]
    ) -> tuple[float, float]:
        turn = self._request(transport, role)
        wall, cpu = self._each(once)
        (cpu_seconds,) = self.channels[transport].receive("b:0", Key(2, turn))
        return wall, cpu + float(cpu_seconds) / BUFFERS

    def _each(self, once: Callable[[int], None]) -> tuple[float, float]:
        start = time.process_time()
        wall = statistics.median(times(once, BUFFERS))
        return wall, (time.process_time() - start) / BUFFERS


def times(once: Callable[[int], None], count: int) -> Iterator[float]:
    for step in range(count):
        start = time.perf_counter()
        once(step)
        yield time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--peer", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--sockets-peer", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--bare-peer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    keep_memory(2 * BUFFERS * LARGE)  # as a node that needs so much memory does
    if arguments.peer:
        transport, addresses, job = arguments.peer
        peer(transport, json.loads(addresses), job)
        return
    if arguments.sockets_peer:
        sockets_peer(arguments.sockets_peer)
        return
    if arguments.bare_peer:
        bare_peer("\0" + arguments.bare_peer)
        return
    benchmarks = Benchmarks()
    cases: dict[str, Callable[[], tuple[float, float]]] = {
        "plain copy": benchmarks.copy,
        "shared, mapped": benchmarks.map,
        "shared, in pieces": lambda: benchmarks.send("shared", 3),
        "shared, into out": lambda: benchmarks.send("shared", 2),
        "tcp, in pieces": lambda: benchmarks.send("tcp", 3),
        "tcp, into out": lambda: benchmarks.send("tcp", 2),
        "plain sockets": benchmarks.sockets,
    }
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    round_trips, bare, calls = [], [], []
    for number in range(arguments.rounds + 1):
        for name, benchmark in cases.items():
            results[name].append(benchmark())
        round_trips.append(benchmarks.round_trip())
        bare.append(benchmarks.bare_trip())
        calls.append(benchmarks.own_call())
        if number == 0:  # warm-up
            for values in (*results.values(), round_trips, bare, calls):
                values.clear()
    benchmarks.close()
    show(results, round_trips, bare, calls)


def show(
    results: dict[str, list[tuple[float, float]]],
    round_trips: list[float],
    bare: list[float],
    calls: list[float],
) -> None:
    tcp_setting = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    tcp = tcp_setting.read_text().strip() if tcp_setting.exists() else "?"
    print(f"{os.cpu_count()} cores, TCP with {tcp}; {len(round_trips)} rounds of 16 MB")
    print(f"{'':24}{'GB/s (best)':>16}{'of a copy (best)':>20}{'CPU s/GB (best)':>20}")
    copies = [wall for wall, _ in results["plain copy"]]
    for name, rounds in results.items():
        walls = [wall for wall, _ in rounds]
        cpus = [cpu / LARGE * 1e9 for _, cpu in rounds]
        ratios = [copy / wall for copy, wall in zip(copies, walls, strict=True)]
        speed = f"{LARGE / statistics.median(walls) / 1e9:.2f} ({LARGE / min(walls) / 1e9:.2f})"
        ratio = f"{statistics.median(ratios):.2f} ({min(copies) / min(walls):.2f})"
        cost = f"{statistics.median(cpus):.3f} ({min(cpus):.3f})"
        line = f"{name:24}{speed:>16}{ratio:>20}{cost:>20}"
        print(line + (f"  {COPIED[name]} copied" if name in COPIED else ""))
    cpu = {name: [c for _, c in rounds] for name, rounds in results.items()}
    pairs = zip(cpu["tcp, into out"], cpu["plain sockets"], strict=True)
    ratio = statistics.median(z / s for z, s in pairs)
    best = min(cpu["tcp, into out"]) / min(cpu["plain sockets"])
    print(f"tcp takes {ratio:.2f}x ({best:.2f}x) the CPU time of plain sockets")
    print(
        f"round trip of 4 KB over shared {statistics.median(round_trips) * 1e6:.0f} us "
        f"({min(round_trips) * 1e6:.0f}), the calls alone {statistics.median(calls) * 1e6:.0f}"
        f" ({min(calls) * 1e6:.0f}), a bare socket {statistics.median(bare) * 1e6:.0f}"
        f" ({min(bare) * 1e6:.0f})"
    )


if __name__ == "__main__":
    main()
