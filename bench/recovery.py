"""Measures how soon a run with `--restarts` trains again after SIGKILL, and how soon by hand.

For each workload, one run has a SIGKILL for each of its kinds of nodes, in turns. Beside it, the
same failure ends a run, which then continues with `--resume`; so a person would do it who waits
for nothing. Seconds after the signal, as the launcher receives the events of the nodes:

- *noticed*: all other nodes have left the attempt, or by hand: the launcher has ended.
- *started*: the new process has reported its first state.
- *joined*: all nodes have joined the attempt.
- *loaded*: all nodes have loaded the checkpoint.
- *warm*: all nodes have compiled their functions.
- *again*: the first step has ended.
- *beyond*: a step has ended that is later than all steps before the signal.

The ratio is *again* of the run with `--restarts`, relative to *again* by hand.

    python bench/recovery.py FOLDER                 # all workloads, 3 rounds: 10 minutes
    python bench/recovery.py FOLDER w3 --rounds 1
    python bench/recovery.py FOLDER digits --json recovery.json

`digits` has two workers and two servers, `w1` two workers and one server, `w3` one of each with
the 100 MB of bench/specs/dense.yaml.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from mode_builds import BUILDS, copy_specs

import placer
from placer.errors import RunError
from placer.launcher import supervise
from placer.runtime.control.events import (
    COMPILING,
    INITIALIZING,
    PREPARED,
    CheckpointSaved,
    Event,
    Left,
    Start,
    State,
    Step,
)

SPECS = Path(__file__).parents[1] / "specs"
KILLS = {
    "digits": ("worker:1", "ps:0", "worker:0"),
    "w1": ("worker:1", "ps:0", "worker:0"),
    "w3": ("worker:0", "ps:0"),
}
"""The processes that are killed in each workload; `worker:0` is the control node."""
EPOCHS = {"digits": 5_000, "w1": 40, "w3": 5_000}
"""More epochs than a run can do while its processes are killed."""
EVERY = "2s"
"""The interval of checkpoints."""
AFTER = 1.0
"""Seconds from a checkpoint to the signal."""
RESTARTS = 3
STATES = {INITIALIZING: "joined", COMPILING: "loaded", PREPARED: "warm"}
"""The moment at which the last node has reported a state."""
MOMENTS = ("noticed", "started", *STATES.values(), "again", "beyond")


class Done(Exception):  # noqa: N818 - an event, not an error
    """All moments of a run are known."""


@dataclass
class Failure:
    """A process that was killed.

    Attributes:
        step: the last step that began before the signal.
        process: the killed process.
        at: the time of the signal.
        moments: the time of each moment.
        states: when each node has reported a state, since it has left the attempt.
        has_begun: whether the next attempt has begun to train.
    """

    node: str
    step: int
    process: int
    at: float
    moments: dict[str, float] = field(default_factory=dict)
    states: dict[str, dict[str, float]] = field(default_factory=dict)
    has_begun: bool = False

    def note(self, event: Event, now: float) -> None:
        """Note the moments of an event."""
        match event:
            case Left() if not event.root:
                self.moments["noticed"] = now
                for times in self.states.values():
                    times.pop(event.node, None)
            case State():
                if event.node == self.node and event.process != self.process:
                    self.moments.setdefault("started", now)
                if event.state in STATES:
                    times = self.states.setdefault(event.state, {})
                    times.setdefault(event.node, now)
            case Start():
                self.has_begun = True
            case Step() if not self.has_begun:  # sent before the signal
                self.step = max(self.step, event.step)
            case Step():
                self.moments.setdefault("again", now)
                if event.step > self.step:
                    self.moments.setdefault("beyond", now)

    def seconds(self) -> dict[str, float]:
        """Return the seconds from the signal to each moment."""
        last = {STATES[s]: max(times.values()) for s, times in self.states.items()}
        return {name: at - self.at for name, at in {**self.moments, **last}.items()}


@dataclass
class Killer:
    """Kills processes of a run, each some time after a checkpoint.

    Attributes:
        nodes: the processes to kill, in order.
        failures: the processes that were killed.
        processes: the number of each node's process.
        saved: the time of the last checkpoint since the last failure was over; 0 without one.
    """

    nodes: Sequence[str]
    failures: list[Failure] = field(default_factory=list)
    processes: dict[str, int] = field(default_factory=dict)
    saved: float = 0.0

    def note(self, event: Event) -> None:
        """Note an event of a node, and kill a process if it is time."""
        now = time.monotonic()
        is_behind = self.failures and "beyond" not in self.failures[-1].moments
        if is_behind:
            self.failures[-1].note(event, now)
        match event:
            case State() if event.process:
                self.processes[event.node] = event.process
            case CheckpointSaved() if not is_behind:
                self.saved = self.saved or now
            case Step() if self.saved and now - self.saved > AFTER:
                if len(self.failures) == len(self.nodes):
                    raise Done
                node = self.nodes[len(self.failures)]
                process, self.saved = self.processes[node], 0.0
                failure = Failure(node, event.step, process, time.monotonic())
                os.kill(process, signal.SIGKILL)
                self.failures.append(failure)


def record(killer: Killer) -> None:
    """Make a run in this process tell `killer` each event as the launcher reads it. The
    launcher hides repeated steps from `watch`."""
    read = supervise.read_event

    def read_and_note(node: str, line: bytes) -> Event:
        event = read(node, line)
        killer.note(event)
        return event

    supervise.read_event = read_and_note


def run_killed(build: Path, kept: Path, nodes: Sequence[str], restarts: int) -> None:
    """Run a build, kill its nodes, and print what followed."""
    killer = Killer(nodes)
    record(killer)
    options = {"restarts": restarts} if restarts else {}
    try:
        placer.launch(
            build,
            watch=lambda event: None,
            return_params=False,
            checkpoint=kept,
            checkpoint_every=EVERY,
            **options,
        )
    except Done:
        found = [(each.node, each.seconds()) for each in killer.failures]
    except RunError:
        if restarts or not killer.failures:
            raise
        (failure,) = killer.failures
        found = [(failure.step, failure.at)]
    print(json.dumps(found))


def run_resumed(build: Path, kept: Path, step: int) -> None:
    """Continue a run; print when its first step ended, and the first one after `step`."""
    failure = Failure("", step, 0, 0.0)

    def note(event: Event) -> None:
        failure.note(event, time.monotonic())
        if "beyond" in failure.moments:
            raise Done

    killer = Killer(())
    killer.note = note  # type: ignore[method-assign]
    record(killer)
    try:
        placer.launch(
            build,
            watch=lambda event: None,
            return_params=False,
            resume=kept,
            checkpoint=kept,
            checkpoint_every=EVERY,
        )
    except Done:
        print(json.dumps(failure.seconds()))


def run_alone(*arguments: object) -> list[tuple[str, dict[str, float]]]:
    """Call this script in a process of its own, and return what it has printed."""
    command = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def by_hand(build: Path, kept: Path, node: str) -> dict[str, float]:
    """Kill a node, wait for the end of the run, and continue it."""
    shutil.rmtree(kept, ignore_errors=True)
    ((step, at),) = run_alone(kept, "--build", build, "--kill", node)
    ended = time.monotonic()
    found = run_alone(kept, "--build", build, "--resumed", step)
    return {"noticed": ended - at} | {name: each - at for name, each in found.items()}


def compile_workload(name: str, folder: Path) -> Path:
    """Compile the build of a workload."""
    specs, build = folder / "specs", folder / name
    epochs = {"train.epochs": EPOCHS[name]}
    if name == "digits":
        placer.compile(SPECS / "digits.yaml", build, overrides=epochs)
        return build
    copy_specs(specs)
    made = BUILDS["w1_sync" if name == "w1" else "wire"]
    counts = {"worker": made.workers, "ps": made.servers}
    placer.compile(specs / made.spec, build, nodes=counts, overrides=epochs)
    return build


def show(name: str, found: dict[str, dict[str, list[dict[str, float]]]]) -> None:
    """Print the medians of a workload, and the ratio of each node."""
    for node, ways in found.items():
        medians = {}
        for way, rounds in ways.items():
            medians[way] = {
                moment: median(each[moment] for each in rounds)
                for moment in MOMENTS
                if all(moment in each for each in rounds)
            }
            texts = [
                f"{medians[way][moment]:9.2f}" if moment in medians[way] else f"{'':9}"
                for moment in MOMENTS
            ]
            most = max(each["again"] for each in rounds)
            least = min(each["again"] for each in rounds)
            texts.append(f"   {least:.2f} to {most:.2f}")
            print(f"{name:8}{node:10}{way:10}{''.join(texts)}", flush=True)
        ratio = medians["restarts"]["again"] / medians["by hand"]["again"]
        print(f"{name:8}{node:10}{'ratio':10}{ratio:54.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("workloads", nargs="*", default=[*KILLS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--build", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--kill", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--restarts", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--resumed", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.resumed is not None:
        run_resumed(args.build, args.folder, args.resumed)
        return
    if args.kill:
        run_killed(args.build, args.folder, args.kill, args.restarts)
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    kept = args.folder / "kept"
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; medians in seconds")
    print(f"{'':28}{''.join(f'{m:>9}' for m in MOMENTS)}   again, all rounds")
    all_found = {}
    with tempfile.TemporaryDirectory() as name:
        for workload in args.workloads:
            build, nodes = compile_workload(workload, Path(name)), KILLS[workload]
            found = {node: {"restarts": [], "by hand": []} for node in nodes}
            for _ in range(args.rounds):
                shutil.rmtree(kept, ignore_errors=True)
                options = "--build", build, "--restarts", RESTARTS, "--kill", *nodes
                for node, moments in run_alone(kept, *options):
                    found[node]["restarts"].append(moments)
                for node in nodes:
                    found[node]["by hand"].append(by_hand(build, kept, node))
            show(workload, found)
            all_found[workload] = found
    shutil.rmtree(kept, ignore_errors=True)
    if args.json:
        args.json.write_text(json.dumps(all_found, indent=1) + "\n")


if __name__ == "__main__":
    main()
