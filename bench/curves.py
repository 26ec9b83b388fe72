"""Trains `digits` and `seed_ctr` in each mode, and draws how the evaluation improves.

Two workers (four with backup workers), and servers where the mode has some, are processes of
this machine. Each mode is trained from five seeds (of the initial values and of the order of
rows). All have the hyperparameters of specs/digits_async.yaml and specs/seed_ctr.yaml, but for the
learning rate of modes in which each push is an update of its own: see `Mode`. A curve is the median
over the seeds at each evaluation, over the steps and over the bytes that all nodes have sent (those
of the run, in proportion to the steps). modes.py measures how fast steps are.

    python bench/curves.py measure curves.json
    python bench/curves.py measure curves.json --modes async     # replaces only these
    python bench/curves.py draw curves.json docs/pictures

`draw` writes the pictures, and prints a table for each spec.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from line_chart import Panel, chart

import placer

ROOT = Path(__file__).parent.parent
OPTIMIZER = "train.optimizer"
WORKERS, SEEDS = 2, 5
DIGITS, CTR = 0.98, 0.01
Overrides = dict[str, object]


@dataclass(frozen=True)
class Mode:
    """What a mode sets in a spec.

    With `at_workers` the optimizer is at the workers, and without `servers` nothing else is
    there; `settings` are others of the optimizer. Unless an update takes the gradients of all
    workers, each push is an update of its own (`by_push`), and Adam makes it as large as one by
    the gradients of all: the rate is divided by the number of workers, or of all their
    `threads`.
    """

    title: str
    update: object = "sync"
    at_workers: bool = False
    servers: bool = True
    by_push: bool = False
    workers: int = WORKERS
    threads: int = 0
    settings: Overrides = field(default_factory=dict)

    def overrides(self, servers: int, rate: Callable[[float], object]) -> Overrides:
        nodes = {"worker": {"count": self.workers}}
        if self.servers:
            nodes["ps"] = {"count": servers}
        place = "/node:worker/cpu" if self.at_workers else "/node:ps/cpu"
        pushing = self.threads or self.workers
        others = {f"{OPTIMIZER}.{key}": value for key, value in self.settings.items()}
        return {
            "nodes": nodes,
            f"{OPTIMIZER}.place": place,
            f"{OPTIMIZER}.update": self.update,
            f"{OPTIMIZER}.learning_rate": rate(1 / pushing if self.by_push else 1),
            **({"train.threads": self.threads} if self.threads else {}),
            **others,
        }


SUM_AT_SERVERS: Overrides = {"sum": "/node:ps/cpu"}
OUTER = {"op": "nesterov", "learning_rate": 0.7, "momentum": 0.5}
MODES = {
    "sync": Mode("sync"),
    "sum": Mode("sync, servers only sum", at_workers=True, settings=SUM_AT_SERVERS),
    "all_reduce": Mode("all-reduce", at_workers=True, servers=False),
    "shard_state": Mode(
        "all-reduce, shard_state",
        at_workers=True,
        servers=False,
        settings={"shard_state": True},
    ),
    "backup": Mode("backup 1 of 4", {"sync": {"backup": 1}}, workers=4),
    "half_async": Mode("half_async", "half_async", by_push=True),
    "async": Mode("async", "async", by_push=True),
    "async_4": Mode(
        "async, max_staleness 4", {"async": {"max_staleness": 4}}, by_push=True
    ),
    "async_sum": Mode(
        "async, servers only sum", "async", at_workers=True, settings=SUM_AT_SERVERS
    ),
    "async_peers": Mode(
        "async, no server",
        {"async": {"max_staleness": 4}},
        at_workers=True,
        servers=False,
    ),
    "threads": Mode("sync, two threads each", threads=2 * WORKERS),
    "threads_async": Mode(
        "async, two threads each", "async", by_push=True, threads=2 * WORKERS
    ),
    "geo": Mode("geo, every 10", {"geo": {"every": 10}}),
    "diloco": Mode("geo, every 10, outer", {"geo": {"every": 10, "outer": OUTER}}),
}


@dataclass(frozen=True)
class Training:
    """A spec, the metric of its evaluations, and how a chart shows it."""

    spec: str
    servers: int
    metric: str
    y: str
    bounds: tuple[float, float]
    goal: float | None
    rate: Callable[[float], object]
    """The learning rate, times a factor."""
    settings: Overrides = field(default_factory=dict)
    slower: frozenset[str] = frozenset()
    """Modes whose rate is divided by the number of workers, too."""


TRAININGS = {
    "digits": Training(
        "digits_async.yaml",
        2,
        "accuracy",
        "accuracy of the evaluation",
        (0.9, 1),
        0.98,
        lambda factor: {"cosine": {"init": 4e-3 * factor, "steps": 880}},
        {"data.train.batch": 64},
    ),
    "seed_ctr": Training(
        "seed_ctr.yaml",
        1,
        "loss",
        "loss of the evaluation",
        (0.3, 0.7),
        None,
        lambda factor: 1e-4 * factor,
        slower=frozenset({"geo"}),
    ),
}


def train(training: Training, mode: Mode, seed: int, folder: Path) -> dict[str, object]:
    """Return the evaluations of a run, with their steps, and its bytes."""
    overrides = {
        **training.settings,
        **mode.overrides(training.servers, training.rate),
        "seed": seed,
        "data.train.seed": seed,
    }
    build = folder / "build"
    placer.compile(ROOT / "specs" / training.spec, build, overrides=overrides)
    result = placer.launch(build, progress=False)
    lines = [line for line in result.history if line.get("eval")]
    return {
        "steps": [line["step"] for line in lines],
        "values": [line["eval"][training.metric] for line in lines],
        "bytes_sent": sum(result.bytes_sent.values()),
    }


def measure(path: Path, trainings: Sequence[str], modes: Sequence[str]) -> None:
    """Train, and keep what `path` has of other modes; it is written after each mode."""
    measured = json.loads(path.read_text()) if path.exists() else {}
    for name in trainings:
        for mode in modes:
            runs, training, chosen = [], TRAININGS[name], MODES[mode]
            if mode in training.slower:
                chosen = replace(chosen, by_push=True)
            for seed in range(SEEDS):
                with tempfile.TemporaryDirectory() as folder:
                    runs.append(train(training, chosen, seed, Path(folder)))
            measured.setdefault(name, {})[mode] = runs
            path.write_text(json.dumps(measured))
            finals = ", ".join(f"{run['values'][-1]:.4f}" for run in runs)
            print(f"{name} {mode}: {finals}", flush=True)


def middle(rows: Iterable[Sequence[float]]) -> list[float]:
    """Return the median over the runs at each evaluation."""
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def draw(measured: Mapping[str, Mapping[str, list[dict]]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, of_modes in measured.items():
        training = TRAININGS[name]
        by_step, by_bytes = {}, {}
        for mode, runs in of_modes.items():
            title, values = MODES[mode].title, middle(run["values"] for run in runs)
            steps = middle(run["steps"] for run in runs)
            sent = statistics.median(run["bytes_sent"] for run in runs) / 1e6
            megabytes = [sent * step / steps[-1] for step in steps]
            by_step[title] = list(zip(steps, values, strict=True))
            by_bytes[title] = list(zip(megabytes, values, strict=True))
        panels = [
            Panel("steps", by_step),
            Panel("MB sent by all nodes", by_bytes, logarithmic=True),
        ]
        title = f"{name}: median of {SEEDS} seeds"
        svg = chart(title, training.y, training.bounds, training.goal, panels)
        (folder / f"{name}.svg").write_text(svg)


def table(name: str, of_modes: Mapping[str, list[dict]]) -> str:
    """Return the rows of a table: does each mode reach what it must?"""
    goal = TRAININGS[name].goal
    must = f"at most {CTR:.0%} above `sync`" if goal is None else f">= {goal}"
    lines = [
        f"| mode | {TRAININGS[name].metric}: median | lowest to highest | {must} | MB"
        " sent in a step |",
        "| --- | --- | --- | --- | --- |",
    ]
    for mode, runs in of_modes.items():
        ends = [run["values"][-1] for run in runs]
        if goal is None:
            sync = [run["values"][-1] for run in of_modes["sync"]]
            pairs = zip(ends, sync, strict=True)
            good = sum(loss <= (1 + CTR) * other for loss, other in pairs)
        else:
            good = sum(end >= goal for end in ends)
        per_step = statistics.median(r["bytes_sent"] / r["steps"][-1] for r in runs)
        lines.append(
            f"| {MODES[mode].title} | {statistics.median(ends):.4f} | {min(ends):.4f} to"
            f" {max(ends):.4f} | {good} of {len(runs)} | {per_step / 1e6:.3f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("file", type=Path)
    measuring.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    measuring.add_argument(
        "--trainings", nargs="+", choices=TRAININGS, default=list(TRAININGS)
    )
    drawing = commands.add_parser("draw")
    drawing.add_argument("file", type=Path)
    drawing.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "measure":
        measure(arguments.file, arguments.trainings, arguments.modes)
        return
    measured = json.loads(arguments.file.read_text())
    draw(measured, arguments.folder)
    for name, of_modes in measured.items():
        print(f"\n{name}\n{table(name, of_modes)}")


if __name__ == "__main__":
    main()
