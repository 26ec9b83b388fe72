"""Measures how long many nodes take to join over TCP, and what that costs.

Half of the nodes are channels of one process, half of another; each of one half is
connected to each of the other, as workers to servers.

    python bench/joining.py 64
    python bench/joining.py 16 32 64 128 --insecure-network
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from placer.channel.interface import Key
from placer.channel.keys import RunKey
from placer.channel.ports import free_endpoints
from placer.channel.session import Session

KEY = RunKey(bytes(32))


def play(kind: str, endpoints: dict[str, str], encrypt: bool) -> None:
    """Open the channels of a kind, join, exchange a message with each peer, close."""
    mine = [node for node in endpoints if node.startswith(kind)]
    others = [node for node in endpoints if not node.startswith(kind)]
    before = resident()
    begin = time.perf_counter()
    channels = {
        node: Session(
            node,
            endpoints,
            "join",
            key=KEY,
            peers=others,
            transport="tcp",
            encrypt=encrypt,
            join_timeout=120.0,
        )
        for node in mine
    }
    opened = time.perf_counter() - begin
    with ThreadPoolExecutor(len(mine)) as pool:
        list(pool.map(lambda channel: channel.join(), channels.values()))
    joined = time.perf_counter() - begin
    for channel in channels.values():
        for other in others:
            channel.send(other, Key(1, 1), [np.arange(10)])
    for channel in channels.values():
        for other in others:
            channel.receive(other, Key(1, 1))
    used = resource.getrusage(resource.RUSAGE_SELF)
    facts = {
        "opened": opened,
        "joined": joined,
        "exchanged": time.perf_counter() - begin,
        "cpu": used.ru_utime + used.ru_stime,
        "memory": resident() - before,
        "threads": threading.active_count(),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }
    print(json.dumps(facts), flush=True)
    sys.stdin.readline()
    with ThreadPoolExecutor(len(mine)) as pool:
        list(pool.map(lambda channel: channel.close(), channels.values()))


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure(count: int, encrypt: bool) -> None:
    """Join `count` workers and as many servers; print what it takes."""
    nodes = [f"{kind}:{i}" for kind in ("worker", "ps") for i in range(count)]
    endpoints = free_endpoints(nodes)
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--play", kind, json.dumps(endpoints)]
            + ["--insecure-network"] * (not encrypt),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for kind in ("worker", "ps")
    ]
    facts = [json.loads(process.stdout.readline()) for process in processes]
    for process in processes:
        process.communicate("\n")
    most = {name: max(each[name] for each in facts) for name in facts[0]}
    pairs = count * count
    print(
        f"{count} + {count} nodes, {pairs} connections, {'TLS' if encrypt else 'TCP'}: "
        f"joined in {most['joined']:.2f} s ({most['opened']:.2f} s to open), CPU "
        f"{sum(f['cpu'] for f in facts):.1f} s or {sum(f['cpu'] for f in facts) / pairs * 1e3:.2f} ms per connection; "
        f"of each process {most['memory'] / pairs / 1e3:.0f} KB per connection, "
        f"{most['threads']} threads, {most['descriptors']} descriptors",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counts", nargs="*")
    parser.add_argument("--insecure-network", action="store_true")
    parser.add_argument("--play", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    encrypt = not arguments.insecure_network
    if arguments.play:
        kind, endpoints = arguments.counts
        play(kind, json.loads(endpoints), encrypt)
        return
    for count in arguments.counts:
        measure(int(count), encrypt)


if __name__ == "__main__":
    main()
