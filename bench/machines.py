"""Measures training between machines, which are network namespaces joined by a bridge.

`wire` trains an MLP of 100 MB of parameters (bench/specs/dense.yaml) with one worker and
one server on two machines, whose connection is limited to a rate in each direction. The
server sends parameters back while gradients still arrive, so that the two directions
overlap; the worker computes before the first gradient leaves and after the last parameter
has come. So a step takes at least

    bytes of parameters / rate + the step of one process

`buckets` trains with and without `bucket_cap_mb`, in turns: with it, gradients leave and
parameters come back while the worker computes.

With `--rate 0` there is no limit, and the rate is what plain sockets reach on the same
connection, in the same round.

`mixed` trains with two workers and two servers, one of each on each machine: over shared
memory within a machine and TCP between them, and over TCP everywhere.

It needs root, and the commands `ip` and `tc`.

    python bench/machines.py wire --rate 1gbit
    python bench/machines.py wire --rate 0 --rounds 5
    python bench/machines.py buckets --workload deep --batch 512
    python bench/machines.py mixed --workload w1
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from operator import truediv
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path += [str(ROOT / "tests"), str(ROOT / "bench")]

from support.hosts import Host, hosts  # noqa: E402
from training import WORKLOADS, run_plain  # noqa: E402

from placer.channel.keys import new_key, write_key  # noqa: E402

PARAMETER_BYTES = 4 * (1024 * 4096 + 4096 * 4096 + 4096 * 1000 + 4096 + 4096 + 1000)
SIZE = 100 << 20
OPTIONS = {"tcp": ("--insecure-network",), "tls": ()}
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def compile_build(workload: str, nodes: str, folder: Path, *options: str) -> Path:
    build = folder / "build"
    command = [sys.executable, "-m", "placer.command", "compile"]
    command += [str(WORKLOADS[workload].spec), "--out", str(build), "--nodes", nodes]
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
    return build


def train(
    build: Path, places: Mapping[str, Host], folder: Path, steps: int, *options: str
) -> float:
    """Train on these machines; return the seconds per step, without the first one."""
    key, history = folder / "run.key", folder / "history.jsonl"
    if not key.exists():
        write_key(key, new_key())
    listed = ",".join(
        f"{node}={host.ipv4}:{4711 + i}"
        for i, (node, host) in enumerate(places.items())
    )
    processes = [
        host.start(
            *(sys.executable, "-m", "placer.command", "run", str(build)),
            *("--node", node, "--endpoints", listed, "--key", str(key)),
            *("--steps", str(steps), "--history", str(history), *options),
        )
        for node, host in places.items()
    ]
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    lines = [line for line in lines if "step" in line]
    return (lines[-1]["seconds"] - lines[0]["seconds"]) / (len(lines) - 1)


def receive(port: int) -> None:
    """Receive `SIZE` bytes again and again; a byte says that they have come."""
    buffer = memoryview(bytearray(SIZE))
    with socket.create_server(("0.0.0.0", port)) as listener:
        connection, _ = listener.accept()
    with connection:
        while True:
            at = 0
            while at < SIZE:
                got = connection.recv_into(buffer[at:])
                if not got:
                    return
                at += got
            connection.sendall(b"1")


def send(host: str, port: int) -> None:
    """Print the bytes per second of sending `SIZE` bytes, the best of several."""
    data = bytes(SIZE)
    until = time.monotonic() + 10
    while True:
        try:
            connection = socket.create_connection((host, port))
            break
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
    rates = []
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(6):
            begin = time.perf_counter()
            connection.sendall(data)
            connection.recv(1)
            rates.append(SIZE / (time.perf_counter() - begin))
    print(statistics.median(rates[1:]))


def plain_rate(first: Host, second: Host) -> float:
    """Return the bytes per second of plain sockets between two machines."""
    this = (sys.executable, __file__)
    receiver = second.start(*this, "receive")
    sender = first.start(*this, "send", second.ipv4)
    out, errors = sender.communicate()
    receiver.communicate()
    assert sender.returncode == 0, errors
    return float(out)


def wire(two: list[Host], folder: Path, rate: str, rounds: int, steps: int) -> None:
    build = compile_build("w3", "worker=1,ps=1", folder)
    places = {"worker:0": two[0], "ps:0": two[1]}
    limit = set_rate(two, rate)
    batch = WORKLOADS["w3"].batch
    print("  rate GB/s   one process ms   formula ms   tcp ms, ratio   tls ms, ratio")
    ratios: dict[str, list[float]] = {name: [] for name in OPTIONS}
    for _ in range(rounds):
        bandwidth = limit or plain_rate(*two)
        alone = batch / run_plain("w3", batch, steps)[0]
        formula = PARAMETER_BYTES / bandwidth + alone
        shown = f"  {bandwidth / 1e9:9.3f}{1e3 * alone:17.1f}{1e3 * formula:13.1f}"
        for name, options in OPTIONS.items():
            seconds = train(build, places, folder, steps, *options)
            ratios[name].append(seconds / formula)
            shown += f"{1e3 * seconds:9.1f}  {seconds / formula:.2f}x "
        print(shown, flush=True)
    for name, each in ratios.items():
        print(f"{name}: {statistics.median(each):.2f}x of the formula")


def set_rate(two: list[Host], rate: str) -> float:
    """Limit the connection of the machines; return its bytes per second, 0 for no limit."""
    if rate == "0":
        return 0.0
    number, unit = re.fullmatch(r"([\d.]+)([kmg]bit)", rate).groups()
    for host in two:
        host.limit_rate(rate)
    return float(number) * UNITS[unit] / 8


def buckets(
    two: list[Host],
    folder: Path,
    workload: str,
    rate: str,
    batch: int,
    cap: float,
    rounds: int,
    steps: int,
) -> None:
    builds = {}
    for name, value in {"one message": "null", "buckets": str(cap)}.items():
        into = folder / name.replace(" ", "_")
        into.mkdir()
        options = [f"data.train.batch={batch}", f"train.bucket_cap_mb={value}"]
        settings = [text for option in options for text in ("--set", option)]
        builds[name] = compile_build(workload, "worker=1,ps=1", into, *settings)
    places = {"worker:0": two[0], "ps:0": two[1]}
    bandwidth = set_rate(two, rate)
    wire_ms = 1e3 * PARAMETER_BYTES / bandwidth if bandwidth else 0.0
    print(f"{workload}, batch {batch}, {rate}: the wire takes {wire_ms:.0f} ms")
    times: dict[str, list[float]] = {name: [] for name in builds}
    for number in range(rounds):
        alone = 1e3 * batch / run_plain(workload, batch, steps)[0]
        row = f"  load {os.getloadavg()[0]:4.1f}  one process {alone:7.1f}"
        names = list(builds)[:: -1 if number % 2 else 1]
        taken = {
            name: train(builds[name], places, folder, steps, *OPTIONS["tcp"])
            for name in names
        }
        for name, each in times.items():
            each.append(taken[name])
            row += f"  {name} {1e3 * taken[name]:7.1f}"
        print(row, flush=True)
    ratio = statistics.median(map(truediv, times["buckets"], times["one message"]))
    middle = {name: 1e3 * statistics.median(each) for name, each in times.items()}
    print(", ".join(f"{name} {ms:.0f} ms" for name, ms in middle.items()), end=": ")
    print(f"{ratio:.2f}x")


def mixed(
    two: list[Host], folder: Path, workload: str, rounds: int, steps: int
) -> None:
    build = compile_build(workload, "worker=2,ps=2", folder)
    names = ("worker:0", "worker:1", "ps:0", "ps:1")
    places = {name: two[int(name[-1])] for name in names}
    cases = {
        f"{transport}, {stream}": ("--transport", transport, *options)
        for stream, options in OPTIONS.items()
        for transport in ("auto", "tcp")
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, options in cases.items():
            times[name].append(train(build, places, folder, steps, *options))
        row = "".join(f"{1e3 * times[name][-1]:12.2f}" for name in cases)
        print(row, flush=True)
    for stream in OPTIONS:
        mine, everywhere = times[f"auto, {stream}"], times[f"tcp, {stream}"]
        ratio = statistics.median(b / a for a, b in zip(mine, everywhere, strict=True))
        print(
            f"{workload}, {stream}: mixed {1e3 * statistics.median(mine):.2f} ms, TCP "
            f"everywhere {1e3 * statistics.median(everywhere):.2f} ms: {ratio:.2f}x"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    modes = ["wire", "buckets", "mixed", "send", "receive"]
    parser.add_argument("what", choices=modes)
    parser.add_argument("host", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--rate", default="1gbit", help="such as 1gbit; 0: no limit")
    parser.add_argument("--workload", choices=["w1", "w3", "deep"], default="w3")
    parser.add_argument("--batch", type=int, help="of `buckets`")
    parser.add_argument("--cap", type=float, default=25, help="of `buckets`, in MiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int)
    arguments = parser.parse_args()
    if arguments.what == "send":
        send(arguments.host, 4700)
        return
    if arguments.what == "receive":
        receive(4700)
        return
    os.environ["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as name, hosts(("host-a", "host-b")) as two:
        folder, rounds = Path(name), arguments.rounds
        if arguments.what == "wire":
            wire(two, folder, arguments.rate, rounds, arguments.steps or 12)
        elif arguments.what == "buckets":
            work = arguments.workload
            batch, steps = arguments.batch or WORKLOADS[work].batch, arguments.steps
            given = arguments.rate, batch, arguments.cap, rounds, steps or 12
            buckets(two, folder, work, *given)
        else:
            steps = arguments.steps or (200 if arguments.workload == "w1" else 20)
            mixed(two, folder, arguments.workload, rounds, steps)


if __name__ == "__main__":
    main()
