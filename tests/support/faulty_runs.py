"""Runs with `--restarts` whose processes fail at chosen points, and what came of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import placer
from placer.plan.plan import FILE, read_plan, sha256, to_json, with_digest
from placer.runtime.control.events import Event, NodeWarning
from support.checkpointed import build, lines, spec

PLANTED = Path(__file__).with_name("planted_faults.py")


@dataclass(frozen=True)
class Fault:
    """A fault of a run.

    Attributes:
        node: the node that reaches the point.
        point: such as `state compiling`, `step 3, call 2: receive` or `before settle`; the
            first point that begins so.
        act: a signal such as `SIGKILL`, `freeze SECONDS`, `raise TEXT`, or `spoil FACTOR`,
            which multiplies what a node records. A process that is frozen without a number
            of seconds does not continue.
        to: the nodes to which it is done, by default to the node. Also `fork server`, `guard`
            and `launcher`.
        always: whether it is done each time, and not only the first time.
    """

    node: str
    point: str
    act: str = "SIGKILL"
    to: tuple[str, ...] = ()
    always: bool = False


class Seen(placer.Callback):
    """Collects the steps, evaluations and epochs that a callback receives."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.evaluations: list[int] = []

    def on_step(self, record: placer.Record) -> object:
        self.steps.append(record.step)
        return None

    def on_evaluation(self, record: placer.Record) -> object:
        self.evaluations.append(record.step)
        return None


@dataclass
class Run:
    """A run that has ended.

    Attributes:
        result: its result, unless it failed.
        events: its events.
        seen: the calls of a callback.
        params, history: the contents of its files.
        points: the points that each node has reached, each once, in order.
        undone: the faults that have not happened.
    """

    result: placer.Result | None = None
    events: list[Event] = field(default_factory=list)
    seen: Seen = field(default_factory=Seen)
    params: bytes = b""
    history: list[dict[str, Any]] = field(default_factory=list)
    points: dict[str, list[str]] = field(default_factory=dict)
    undone: list[Fault] = field(default_factory=list)

    @property
    def warnings(self) -> list[str]:
        return [e.message for e in self.events if isinstance(e, NodeWarning)]

    @property
    def restarts(self) -> list[str]:
        assert self.result is not None
        return [each.what for each in self.result.restarts]


@dataclass(frozen=True)
class Faulty:
    """A build whose programs plant faults."""

    build: Path
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.build.parent / f"{self.build.name}-faults"

    @property
    def files(self) -> Path:
        return self.folder / "files"

    def prepare(self, faults: Iterable[Fault] = ()) -> None:
        """Plant faults for the next run, and remove the files of the last one."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.files.mkdir(parents=True)
        (self.folder / "points").touch()
        self.plant(faults)

    def plant(self, faults: Iterable[Fault]) -> None:
        """Plant faults for a run that continues the last one."""
        for done in self.folder.glob("done-*"):
            done.unlink()
        listed = [{"id": i, **vars(each)} for i, each in enumerate(faults)]
        (self.folder / "faults.json").write_text(json.dumps(listed))

    def run(self, *faults: Fault, **options: Any) -> Run:
        """Run the build anew, with faults."""
        self.prepare(faults)
        return self.go_on(**options)

    def go_on(self, run: Run | None = None, **options: Any) -> Run:
        """Run the build with the faults and files of its folder. `run` may collect what
        happens before an error."""
        run = Run() if run is None else run
        chosen = {
            "restarts": 3,
            "checkpoint": self.files / "checkpoints",
            "checkpoint_every": 1,
            "history": self.files / "history",
            "save_params": self.files / "params",
            "callbacks": [run.seen],
            "watch": run.events.append,
            "logs": self.folder / "logs",
            **self.options,
            **options,
        }
        try:
            run.result = placer.launch(self.build, **chosen)
        finally:
            self._collect(run)
        return run

    def _collect(self, run: Run) -> None:
        """Read the files of a run, which the next run overwrites."""
        if (params := self.files / "params").exists():
            run.params = params.read_bytes()
        if (history := self.files / "history").exists():
            run.history = lines(history)
        reached = (self.folder / "points").read_text().splitlines()
        for node, point in dict.fromkeys(tuple(line.split("\t")) for line in reached):
            run.points.setdefault(node, []).append(point)
        faults = json.loads((self.folder / "faults.json").read_text())
        run.undone = [
            Fault(each["node"], each["point"])
            for each in faults
            if not (self.folder / f"done-{each['id']}").exists()
        ]


def make_faulty(build: Path, **options: Any) -> Faulty:
    """Let the programs of a build plant faults; `options` are those of its runs."""
    faulty = Faulty(build, options)
    plan = read_plan(build)
    files = dict(plan.files)
    for name in {node.program for node in plan.nodes}:
        program = build / name
        names = f"{{'FOLDER': {str(faulty.folder)!r}}}"
        text = program.read_text() + (
            f"\nimport runpy\n\nrunpy.run_path({str(PLANTED)!r}, {names})\n"
        )
        program.write_text(text)
        files[name] = sha256(text.encode())
    (build / FILE).write_text(to_json(with_digest(replace(plan, files=files))))
    return faulty


def check_undisturbed(run: Run, whole: Run, restarts: int | None) -> None:
    """Check that a run with faults has the bits of a run without, and tells each restart.
    Failures before all nodes train again are one restart; None does not count them."""
    assert run.result is not None
    assert whole.result is not None
    assert run.params == whole.params != b""
    assert run.history == whole.history != []
    steps = [line["step"] for line in whole.history]
    assert run.seen.steps == steps
    assert run.seen.evaluations == whole.seen.evaluations
    assert not run.undone
    assert restarts in (None, len(run.restarts)), run.restarts
    assert run.result.metrics == whole.result.metrics
    assert run.result.eval == whole.result.eval
    assert not [each for each in run.warnings if "metrics than before" in each]


def calls_of(points: Sequence[str], where: str) -> list[str]:
    """Return the points of the calls at a position, such as `step 3`."""
    return [point for point in points if point.startswith(f"{where}, call ")]


def small_spec(**changes: Any) -> dict[str, Any]:
    """Return a spec of two workers and two servers, with draws, a schedule, a short last
    batch and clipping: 24 steps, evaluated after every sixth."""
    model = spec(**changes)
    (scope,) = model["graph"]
    kept = ("h", "d", "o", "logit", "loss")
    scope["ops"] = [op for op in scope["ops"] if op["name"] in kept]
    scope["ops"][1]["in"] = "h"
    model["train"]["metrics"] = ["loss"]
    return model


def make_small(folder: Path, **options: Any) -> Faulty:
    """Compile `small_spec` for runs with faults."""
    return make_faulty(build(folder, small_spec(), "small"), **options)
