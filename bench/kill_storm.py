"""Kills the processes of a run again and again, and compares the run with an undisturbed one.

Half of the kills wait for a process that reports a certain state, such as a load or a
compilation; the others come at any time. One kill of ten takes a second process. Parameters
and history must be equal, bit for bit. A run has kills for the given seconds, then stops, and is
continued to its end without kills; the other run has as many steps. An asynchronous run has a fixed number of steps, and is compared with
the replay of its recorded order. The processes that live on must not grow: their threads and descriptors are
counted in each attempt, and their memory is measured.

    python bench/kill_storm.py FOLDER                       # all cases, over two hours
    python bench/kill_storm.py FOLDER digits --seconds 180 --gap 3 12 --seed 1

The status is 1 where a run differs, or where a process has grown.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from recovery import record
from soak import Sample, sample

import placer
from placer.runtime.control import events
from placer.runtime.control.events import Event, NodeWarning, Recovered, State, Step

SPECS = Path(__file__).parents[1] / "specs"
RESTARTS = 50
CALIBRATION = 300
"""The steps of a run from which follows how many steps an asynchronous one has."""
SHARE = 0.5
"""The share of the seconds of a storm in which an asynchronous run without it would do its
steps."""
MORE_STEPS = 200
"""The steps of a stopped run after its storm."""
NO_END = 10**9
"""The number of steps of a run that is stopped."""
PATIENCE = 6.0
"""Seconds that a kill waits for its state. A run without failures has only few states."""
GROWN = 1.05
"""The largest growth of the memory of a process, relative to that in its second attempt."""
SETTLED = 16.0
"""MiB by which the memory of a process may vary. Most of it comes in its first attempts."""
RATE = 1e-4
"""A constant learning rate: schedules of the specs end at 0, and then no step trains."""
STATES = (
    events.CONNECTING,
    events.INITIALIZING,
    events.READING,
    events.COMPARING,
    events.LOADING,
    events.COMPILING,
    events.PREPARED,
    events.RUNNING,
    "evaluating",
)


@dataclass(frozen=True)
class Case:
    """A run to disturb.

    Attributes:
        spec: the text of the spec.
        settings: the settings that are changed.
        every: the interval of checkpoints.
        is_ordered: whether the result depends on the order of messages.
    """

    spec: str
    settings: Mapping[str, object]
    every: str = "5s"
    is_ordered: bool = False


def cases() -> dict[str, Case]:
    """Return the cases by their names."""
    texts = {path.stem: path.read_text() for path in SPECS.glob("*.yaml")}
    pipeline = texts["transformer_pipeline"].replace("worker: {count: 2}", _WORKERS)
    pipeline = pipeline.replace("/node:worker:1/", "/node:worker:2/")
    for op, stage in (("norm2", 1), ("norm4", 3)):
        first = f"      - {{name: {op},"
        assert first in pipeline, op
        place = f"  - place: /node:worker:{stage}/cpu\n    ops:\n"
        pipeline = pipeline.replace(first, place + first)
    rates = {
        "digits": ("train.optimizer.0",),
        "four_stages": ("train.optimizer",),
        "wide_deep_sparse": ("train.optimizer.1", "train.optimizer.2"),
        "digits_hybrid": ("train.optimizer.0", "train.optimizer.1"),
        "digits_diloco": ("train.optimizer.0",),
        "digits_async": ("train.optimizer.0",),
        "digits_geo": ("train.optimizer.0",),
    }
    settings: dict[str, dict[str, object]] = {
        name: {"train.epochs": 100_000}
        | {f"{optimizer}.learning_rate": RATE for optimizer in optimizers}
        for name, optimizers in rates.items()
    }
    settings["digits_hybrid"]["train.optimizer.0.update"] = "sync"
    found = {
        name: Case(
            pipeline if name == "four_stages" else texts[name],
            each,
            is_ordered=name in ("digits_async", "digits_geo"),
        )
        for name, each in settings.items()
    }
    return found | {"digits_auto": replace(found["digits"], every="auto")}


_WORKERS = "worker: {count: 4}"


@dataclass
class Storm:
    """Kills processes of a run.

    Attributes:
        choose: the source of random numbers.
        gap: the shortest and the longest time between two kills, in seconds.
        processes: the number of each node's process.
        next_at: the time of the next kill.
        aim: the state and the node of the next kill, if it waits for them.
        is_aimed: whether the next kill waits for a state.
        has_tried: whether a process was killed so that others reach the state.
        killed: how many kills there were in each state.
        attempt: the number of recoveries.
        samples: of each process, its samples in each attempt.
    """

    choose: random.Random
    gap: tuple[float, float]
    processes: dict[str, int] = field(default_factory=dict)
    next_at: float = 0.0
    aim: tuple[str, str] | None = None
    is_aimed: bool = False
    has_tried: bool = False
    killed: Counter[str] = field(default_factory=Counter)
    attempt: int = 0
    samples: dict[tuple[str, int], dict[int, Sample]] = field(default_factory=dict)
    sampled_at: float = 0.0
    furthest: int = 0

    def note(self, event: Event) -> None:
        """Note an event of a node, and kill a process if it is time."""
        now = time.monotonic()
        if isinstance(event, State) and event.process:
            self.processes[event.node] = event.process
        if isinstance(event, Step):
            self._sample(event, now)
        if not self.next_at:
            if isinstance(event, Step):
                self._plan(now)
            return
        if now < self.next_at:
            return
        if self.aim is None:
            if isinstance(event, Step | State):
                self._kill(self.choose.choice([*self.processes]), "any")
                if self.choose.random() < 0.1:
                    self._kill(self.choose.choice([*self.processes]), "second")
                self._plan(now)
        elif isinstance(event, State) and (event.state, event.node) == self.aim:
            self._kill(event.node, event.state)
            self._plan(now)
        elif now > self.next_at + PATIENCE:
            self._kill(self.choose.choice([*self.processes]), "any")
            if self.has_tried:
                self._plan(now)
            else:  # the recovery from this kill may have the state
                self.next_at, self.has_tried = now, True

    def _plan(self, now: float) -> None:
        self.next_at = now + self.choose.uniform(*self.gap)
        self.is_aimed, self.has_tried = not self.is_aimed, False
        state = self.choose.choice(STATES)
        node = self.choose.choice(sorted(self.processes))
        self.aim = (state, node) if self.is_aimed else None

    def _kill(self, node: str, what: str) -> None:
        try:
            os.kill(self.processes[node], signal.SIGKILL)
        except ProcessLookupError:
            return
        self.killed[what] += 1

    def _sample(self, event: Step, now: float) -> None:
        """Take samples of all processes once a second, when steps are done first."""
        is_first, self.furthest = (
            event.step > self.furthest,
            max(event.step, self.furthest),
        )
        if not is_first or now - self.sampled_at < 1.0:
            return
        self.sampled_at = now
        for node, process in self.processes.items():
            try:
                found = sample(process, event.step)
            except (FileNotFoundError, ProcessLookupError, KeyError):
                continue
            attempts = self.samples.setdefault((node, process), {})
            before = attempts.get(self.attempt, found)
            attempts[self.attempt] = Sample(
                event.step,
                found.memory,
                min(before.descriptors, found.descriptors),
                min(before.threads, found.threads),
            )

    def grown(self) -> bool:
        """Print the samples of all processes that lived through several attempts; return
        True if one has grown."""
        has_grown = False
        for (node, process), attempts in self.samples.items():
            kept = [*attempts.values()]
            if len(kept) < 4:
                continue
            first, last = kept[1], kept[-1]
            # A short attempt may have only samples from the writing of a checkpoint.
            lasting = kept[-2:]
            grown = (
                min(s.descriptors for s in lasting)
                > max(s.descriptors for s in kept[:3])
                or min(s.threads for s in lasting) > max(s.threads for s in kept[:3])
                or last.memory > max(GROWN * first.memory, first.memory + SETTLED)
            )
            has_grown |= grown
            texts = [f"{s.memory:.0f}/{s.descriptors}/{s.threads}" for s in kept]
            mark = "  GROWN" if grown else ""
            print(f"  {node} {process}: {' '.join(texts)}{mark}", flush=True)
        return has_grown


class StopAfter:
    """Stops a run after some seconds of training."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._begun = seconds, 0.0

    def on_step(self, record: placer.Record) -> object:
        now = time.monotonic()
        self._begun = self._begun or now
        return placer.STOP if now - self._begun > self._seconds else None


def run(
    build: Path,
    folder: Path,
    steps: int,
    storm: Storm | None,
    case: Case,
    seconds: float = 0.0,
) -> dict[str, Any]:
    """Run a build for a number of steps, or stop it after some seconds and continue it for a few
    steps. Return its history and the bytes of its last checkpoint, or of its parameters if it has no fixed order."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    read = events_read()
    if storm is not None:
        record(storm)

    def watch(event: Event) -> None:
        if isinstance(event, Recovered) and storm is not None:
            storm.attempt += 1
        if isinstance(event, Recovered | NodeWarning):
            print(f"  {time.monotonic() - begin:6.1f} {event}", flush=True)

    begin = time.monotonic()
    options: dict[str, Any] = {
        "watch": watch,
        "return_params": False,
        "save_params": folder / "parameters.safetensors",
        "checkpoint": folder / "kept",
        "history": folder / "history.jsonl",
        "logs": folder / "logs",
    }
    order = folder.parent / "order"
    if storm is not None:
        options |= {"restarts": RESTARTS, "checkpoint_every": case.every}
    if case.is_ordered:
        options["replay_order" if storm is None else "record_order"] = order
    stop = [StopAfter(seconds)] if seconds else []
    try:
        result = placer.launch(build, steps=steps, callbacks=stop, **options)
    finally:
        events_read(read)
    restarts = len(result.restarts)
    if seconds:
        options |= {"steps": result.steps + MORE_STEPS, "resume": folder / "kept"}
        result = placer.launch(build, **options)
    lines = (folder / "history.jsonl").read_text().splitlines()
    history = [json.loads(line) for line in lines]
    for line in history:
        line.pop("seconds", None)
    files = {}
    if not case.is_ordered:  # the replay saves at other positions of the order
        last = folder / "kept" / f"step-{result.steps:06}"
        files = {
            path.name: path.read_bytes()
            for path in last.iterdir()
            if path.name != "manifest.json"
        }
        assert files, last
    files["parameters"] = (folder / "parameters.safetensors").read_bytes()
    return {
        "history": history,
        "files": files,
        "seconds": time.monotonic() - begin,
        "steps": result.steps,
        "restarts": restarts,
    }


def events_read(value: Any = None) -> Any:
    """Return or restore the function with which the launcher reads events."""
    from placer.launcher import supervise

    if value is not None:
        supervise.read_event = value
    return supervise.read_event


def _steps(build: Path, seconds: float) -> int:
    """Return the number of steps that a run does in its share of some seconds."""
    times: list[float] = []
    placer.launch(
        build,
        steps=CALIBRATION,
        return_params=False,
        watch=lambda e: times.append(e.seconds) if isinstance(e, Step) else None,
    )
    return max(CALIBRATION, int(CALIBRATION / times[-1] * seconds * SHARE))


def disturb(name: str, case: Case, args: argparse.Namespace) -> bool:
    """Run a case with and without kills; return True if all is as it must be."""
    folder = args.folder / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(SPECS, folder / "specs")
    spec = folder / "specs" / "storm.yaml"
    spec.write_text(case.spec)
    build = folder / "build"
    placer.compile(spec, build, overrides=case.settings)
    begin = time.monotonic()
    storm = Storm(random.Random(args.seed), tuple(args.gap))
    steps, stops_after = NO_END, args.seconds
    if case.is_ordered:
        steps, stops_after = _steps(build, args.seconds), 0.0
    print(f"{name}: seed {args.seed}", flush=True)
    disturbed = run(build, folder / "storm", steps, storm, case, stops_after)
    plain = run(build, folder / "plain", disturbed["steps"], None, case)
    differ = [
        file
        for file, found in plain["files"].items()
        if disturbed["files"].get(file) != found
    ]
    is_same = plain["history"] == disturbed["history"] and not differ
    has_grown = storm.grown()
    verdict = "equal" if is_same else f"DIFFERENT: {differ or 'history'}"
    print(
        f"{name}: {disturbed['steps']} steps, {sum(storm.killed.values())} kills,"
        f" {disturbed['restarts']} restarts in {disturbed['seconds']:.0f} s ({plain['seconds']:.0f} s without);"
        f" {verdict}"
        f" ({time.monotonic() - begin:.0f} s in all)\n  {dict(storm.killed)}",
        flush=True,
    )
    return is_same and not has_grown


def main() -> int:
    known = cases()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("cases", nargs="*", default=[*known])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--gap", type=float, nargs=2, default=(3.0, 30.0))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    kept = [disturb(name, known[name], args) for name in args.cases]
    return int(not all(kept))


if __name__ == "__main__":
    sys.exit(main())
