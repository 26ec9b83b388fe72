"""Measures the ways in which workers agree on updates, beside torch and TensorFlow.

`w1` is the network of specs/seed_ctr.yaml with Adam and 512 rows for each worker, `w3` an
MLP 1024-4096-4096-1000 with SGD and 64 rows for each (100 MB of parameters). Systems take
turns, a run each in a round, with the same model, dtype, batch, number of processes and
cores: each worker is held to one core; one server may use both cores, and of two servers
each shares the core of a worker. The first steps are not counted. A ratio is computed in
each round; its median is compared with the target.

    python bench/modes.py --setup FOLDER           # installs torch and TensorFlow, once
    python bench/modes.py FOLDER                   # all cases
    python bench/modes.py FOLDER w1_sync w1_async --rounds 5
    python bench/modes.py FOLDER --json modes.json

The case `wire` needs root, and the commands `ip` and `tc`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mode_builds import BUILDS, copy_specs
from on_cores import Process, run_together
from peers import runs
from peers.environment import set_up

from placer.channel.ports import free_endpoints

ROOT = Path(__file__).parent.parent
W3_BYTES = 4 * (1024 * 4096 + 4096 * 4096 + 4096 * 1000 + 4096 + 4096 + 1000)
GIGABIT = 1e9 / 8


@dataclass(frozen=True)
class Bench:
    """The folders of a run of this benchmark: the environment of the peers, and specs."""

    env: Path
    folder: Path

    def build(self, name: str) -> Path:
        """Compile the build of a case, the first time."""
        out = self.folder / name
        if not out.exists():
            BUILDS[name].compile(self.folder, out)
        return out

    def placer(self, name: str, steps: int, warm: int) -> float:
        """Run a build; return the samples per second of all workers together."""
        out, build = self.build(name), BUILDS[name]
        nodes = build.nodes()
        endpoints = ",".join(f"{n}={a}" for n, a in free_endpoints(nodes).items())
        history = self.folder / "history.jsonl"
        command = [sys.executable, "-m", "placer.command", "run", str(out)]
        command += ["--endpoints", endpoints, "--steps", str(warm + steps)]
        command += ["--history", str(history), "--node"]
        cores = runs.cores_of(build.workers, build.servers)
        run_together(
            [
                Process([*command, node], core)
                for node, core in zip(nodes, cores, strict=True)
            ]
        )
        lines = [json.loads(line) for line in history.read_text().splitlines()]
        seconds = [line["seconds"] for line in lines if "step" in line]
        batch = build.workers * runs.ROWS[build.workload]
        return batch * steps / (seconds[-1] - seconds[warm - 1])


def alone(workload: str, steps: int, workers: int = 1) -> float:
    """Return samples per second of processes of plain JAX that do not know each other,
    each on a core of its own, all together."""
    rows = str(runs.ROWS[workload])
    command = [sys.executable, str(ROOT / "bench" / "training.py"), workload]
    command += ["--plain", rows, str(steps)]
    printed = run_together([Process(command, str(core)) for core in range(workers)])
    return sum(json.loads(text)[0] for text in printed)


# The cases. Each measures one round: a number by system.

Measured = Mapping[str, float]


def w1_sync(bench: Bench) -> Measured:
    return {
        "placer": bench.placer("w1_sync", 150, 10),
        "torch RPC": runs.torch_rpc(bench.env, "w1", "sync", 2, 1, 150, 10),
    }


def w1_async(bench: Bench) -> Measured:
    return {
        "placer": bench.placer("w1_async", 150, 10),
        "torch RPC": runs.torch_rpc(bench.env, "w1", "async", 2, 1, 150, 10),
        "TensorFlow": runs.tensorflow_async(bench.env, 150, 10),
    }


def w1_geo(bench: Bench) -> Measured:
    return {
        "placer": bench.placer("w1_geo", 300, 10),
        "two JAX processes": alone("w1", 150, workers=2),
    }


def w3_servers(bench: Bench) -> Measured:
    return {
        "placer": bench.placer("w3_servers", 20, 3),
        "torch RPC": runs.torch_rpc(bench.env, "w3", "sync", 2, 2, 12, 2),
    }


def w3_all_reduce(bench: Bench) -> Measured:
    return {
        "placer": bench.placer("w3_all_reduce", 20, 3),
        "one JAX process": alone("w3", 15),
        "torch DDP": runs.torch_ddp(bench.env, 2, 20, 3),
        "one torch process": runs.torch_ddp(bench.env, 1, 20, 3),
    }


def all_reduce(bench: Bench) -> Measured:
    command = [sys.executable, str(ROOT / "bench" / "all_reduce.py"), "sum", "--json"]
    (printed,) = run_together([Process([*command, "--rounds", "1"], runs.BOTH)])
    copy, _, taken = json.loads(printed)[0]
    return {
        "placer": 1e3 * taken,
        "torch gloo": 1e3 * runs.torch_all_reduce(bench.env, W3_BYTES, 10),
        "a copy": 1e3 * copy,
    }


def wire(bench: Bench) -> Measured:
    from machines import hosts, train  # which needs the tests of this checkout

    with hosts(("host-a", "host-b")) as two:
        for host in two:
            host.limit_rate("1gbit")
        places = dict(zip(BUILDS["wire"].nodes(), two, strict=True))
        build = bench.build("wire")
        seconds = train(build, places, bench.folder, 8, "--insecure-network")
    return {
        "placer": 1e3 * seconds,
        "wire": 1e3 * W3_BYTES / GIGABIT,
        "one JAX process": 1e3 * runs.ROWS["w3"] / alone("w3", 15),
    }


@dataclass(frozen=True)
class Ratio:
    """A ratio of a round, and what it must be at least or at most, if anything."""

    name: str
    of: Callable[[Measured], float]
    at_least: float | None = None
    at_most: float | None = None

    def target(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least}"
        return "" if self.at_most is None else f"<= {self.at_most}"

    def reached(self, value: float) -> bool | None:
        if self.at_least is not None:
            return value >= self.at_least
        return None if self.at_most is None else value <= self.at_most


@dataclass(frozen=True)
class Case:
    what: str
    unit: str
    measure: Callable[[Bench], Measured]
    ratios: tuple[Ratio, ...]


def over_best(values: Measured) -> float:
    """Return the rate of placer over that of the best peer."""
    return values["placer"] / max(v for name, v in values.items() if name != "placer")


CASES = {
    "w1_sync": Case(
        "W1, 1 server and 2 workers, synchronous",
        "samples/s",
        w1_sync,
        (Ratio("of the best peer", over_best, at_least=1.3),),
    ),
    "w1_async": Case(
        "W1, 1 server and 2 workers, asynchronous",
        "samples/s",
        w1_async,
        (Ratio("of the best peer", over_best, at_least=1.3),),
    ),
    "w1_geo": Case(
        "W1, 1 server and 2 workers on a core each, GEO with k = 100",
        "samples/s",
        w1_geo,
        (Ratio("of two processes side by side", over_best, at_least=0.95),),
    ),
    "w3_servers": Case(
        "W3, 2 servers and 2 workers, synchronous",
        "samples/s",
        w3_servers,
        (Ratio("of torch RPC", over_best, at_least=3),),
    ),
    "w3_all_reduce": Case(
        "W3, all-reduce of 2 workers on a core each",
        "samples/s",
        w3_all_reduce,
        (
            Ratio(
                "efficiency of placer",
                lambda v: v["placer"] / v["one JAX process"] / 2,
                at_least=0.85,
            ),
            Ratio(
                "efficiency of DDP",
                lambda v: v["torch DDP"] / v["one torch process"] / 2,
            ),
        ),
    ),
    "all_reduce": Case(
        "all-reduce of 100 MB between 2 processes",
        "ms",
        all_reduce,
        (
            Ratio("of gloo", lambda v: v["placer"] / v["torch gloo"], at_most=0.4),
            # 2 (n - 1) / n is 1 for two processes: the bound is the time of a copy.
            Ratio("of the bound", lambda v: v["placer"] / v["a copy"], at_most=1.5),
        ),
    ),
    "wire": Case(
        "W3, 1 server and 1 worker, TCP, 1 Gbit/s each way",
        "ms",
        wire,
        (
            Ratio(
                "of max(wire, compute)",
                lambda v: v["placer"] / max(v["wire"], v["one JAX process"]),
                at_most=1.2,
            ),
            Ratio(
                "of both ways in turn + compute",
                lambda v: v["placer"] / (2 * v["wire"] + v["one JAX process"]),
            ),
        ),
    ),
}


def report(name: str, rounds: list[Measured]) -> dict[str, object]:
    """Print the medians of a case, and its ratios with their targets."""
    case = CASES[name]
    print(f"\n{name}: {case.what}")
    for system in rounds[0]:
        values = [each[system] for each in rounds]
        low, middle, high = min(values), statistics.median(values), max(values)
        print(f"  {system:32}{middle:10,.1f} {case.unit}  ({low:,.1f} to {high:,.1f})")
    ratios = {}
    for ratio in case.ratios:
        values = [ratio.of(each) for each in rounds]
        middle, reached = (
            statistics.median(values),
            ratio.reached(statistics.median(values)),
        )
        said = {True: "yes", False: "NO", None: ""}[reached]
        print(
            f"  {ratio.name:32}{middle:10.2f}x ({min(values):.2f} to {max(values):.2f})"
            f"  {ratio.target():8}{said}",
            flush=True,
        )
        ratios[ratio.name] = {
            "median": middle,
            "rounds": values,
            "target": ratio.target(),
            "reached": reached,
        }
    return {"unit": case.unit, "rounds": rounds, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the environment of the peers")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--setup", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.setup:
        set_up(arguments.folder)
        return
    names = arguments.cases or list(CASES)
    if unknown := set(names) - set(CASES):
        parser.error(f"no case {', '.join(sorted(unknown))}: {', '.join(CASES)}")
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments.folder.absolute(), Path(folder))
        copy_specs(bench.folder)
        for name in names:
            rounds = [CASES[name].measure(bench) for _ in range(arguments.rounds)]
            results[name] = report(name, rounds)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
