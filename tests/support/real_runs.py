"""Runs of real processes, started by the command line, watched from outside."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TextIO

import placer
from placer.build.plan import read_plan
from placer.compiler import compile
from placer.launcher.ports import free_endpoints

ROOT = Path(placer.__file__).parents[1]
ENOUGH = 150.0
"""Seconds after which a run that a test waits for is taken for stuck, and killed."""
SOON = 20.0
"""Seconds within which all processes have ended, whatever failed."""
FOR_EVER = "--steps=1000000"

ROWS = """\
import sys


def train():
    for i in range(64):
        {at_row}
        yield {{"x": [i % 3, i % 5, i % 7, 1.0], "y": float(i % 11)}}
"""

ASKED = """\
class Patients:
    def __len__(self):
        return 64

    def __getitem__(self, i):
        if i == 17:
            raise ValueError("no such patient")
        return {"x": [i % 3, i % 5, i % 7, 1.0], "y": float(i % 11)}


def train():
    return Patients()
"""
"""A reader whose rows are asked for in the steps: one of them raises."""

SMALL = """\
name: small
nodes:
  worker: {{count: {workers}}}
  ps: {{count: 1}}
inputs:
  x: float32[batch, 4]
  y: float32[batch]
data:
  train: {{source: "python:rows:train", batch: 8, shuffle: true, seed: 3}}
graph:
  - place: /node:worker/cpu
    ops:
      - {{name: h1, op: fc, in: x, size: {size}, activation: tanh}}
      - {{name: out, op: fc, in: h1, size: 1}}
      - {{name: prediction, op: reshape, in: out, shape: [batch]}}
      - {{name: loss, op: mean_squared_error, in: [prediction, y]}}
train:
  minimize: loss
  epochs: 1
  metrics: [loss]
  optimizer: {{op: sgd, learning_rate: {rate}, place: /node:ps/cpu}}
"""


def small(
    folder: Path,
    *,
    workers: int = 1,
    size: int = 8,
    rate: float = 0.01,
    at_row: str = "pass",
    rows: str | None = None,
) -> Path:
    """A build of a small model; its reader does `at_row` before it yields row `i`, or
    is the module `rows`."""
    (folder / "rows.py").write_text(rows or ROWS.format(at_row=at_row))
    spec = folder / "small.yaml"
    spec.write_text(SMALL.format(workers=workers, size=size, rate=rate))
    compile(spec, folder / "build")
    return folder / "build"


def environment() -> dict[str, str]:
    """In which a process finds this placer, installed or not."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)}


def placer_command(*arguments: object) -> list[str]:
    return [sys.executable, "-P", "-m", "placer.command", *map(str, arguments)]


@dataclass
class Ended:
    """How a process ended and all that it said."""

    status: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """The last message on stderr: its first line, and those set in below it."""
        lines = self.err.rstrip("\n").splitlines()
        heads = [i for i, line in enumerate(lines) if not line.startswith(" ")]
        return "\n".join(lines[heads[-1] :]) if heads else ""


def command(*arguments: object, within: float = ENOUGH) -> Ended:
    """Run a command of placer to its end."""
    done = subprocess.run(
        placer_command(*arguments),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=within,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


@dataclass
class Started:
    """A process that runs; `said` is what was taken of its stderr so far."""

    process: subprocess.Popen[str]
    out: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    lines: SimpleQueue[str] = field(default_factory=SimpleQueue)
    readers: list[Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        for stream, take in (
            (self.process.stdout, self.out.append),
            (self.process.stderr, self.lines.put),
        ):
            self.readers.append(Thread(target=_drain, args=(stream, take)))
            self.readers[-1].start()

    def until(self, start: str) -> str:
        """Wait until it says a line on stderr that begins so."""
        while True:
            try:
                self.said.append(self.lines.get(timeout=ENOUGH))
            except Empty:
                raise AssertionError(f"no '{start}' in {self.said}") from None
            if self.said[-1].startswith(start):
                return self.said[-1]

    def end(self, within: float = ENOUGH) -> Ended:
        """Wait for its end, and for whoever else holds its output."""
        status = self.process.wait(within)
        for reader in self.readers:
            reader.join()
        while not self.lines.empty():
            self.said.append(self.lines.get())
        return Ended(status, "".join(self.out), "".join(self.said))

    def kill(self) -> None:
        """Whatever it does."""
        self.process.kill()
        self.end()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def _drain(stream: TextIO, take: Callable[[str], None]) -> None:
    for line in stream:
        take(line)


@contextmanager
def started(line: Sequence[str]) -> Iterator[Started]:
    """A process; it is killed if it runs when the test is over."""
    run = Started(
        subprocess.Popen(
            line,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    )
    try:
        yield run
    finally:
        run.kill()


def launch_command(build: Path, *options: object) -> list[str]:
    """`placer launch BUILD --json …`"""
    logs = build.parent / "logs"
    return placer_command("launch", build, "--json", "--logs", logs, *options)


def launched(build: Path, *options: object) -> AbstractContextManager[Started]:
    """`placer launch BUILD --json …`, running."""
    return started(launch_command(build, *options))


def launch(build: Path, *options: object) -> Ended:
    """`placer launch BUILD --json …`, to its end."""
    with launched(build, *options) as run:
        return run.end()


def program_of(build: Path, node: str) -> str:
    """What a person starts a node by."""
    return str(build / node.replace(":", "-") / "program.py")


@contextmanager
def by_hand(
    build: Path, *options: object, programs: bool = False
) -> Iterator[dict[str, Started]]:
    """All nodes of a build, each started as a person would start it: by `placer run`,
    or with `programs` by `python build/worker-0/program.py`."""
    nodes = read_plan(build).nodes
    endpoints = free_endpoints([node.name for node in nodes])
    listed = ",".join(f"{node}={address}" for node, address in endpoints.items())
    given = ["--endpoints", listed, *map(str, options)]
    with ExitStack() as opened:
        yield {
            node.name: opened.enter_context(
                started(
                    [sys.executable, program_of(build, node.name), *given]
                    if programs
                    else placer_command("run", build, "--node", node.name, *given)
                )
            )
            for node in nodes
        }


@contextmanager
def first_line(history: Path) -> Iterator[Callable[[], None]]:
    """A `--history` file of a run to come; call it to wait for the first step's line."""
    os.mkfifo(history)
    # Not to wait here for a writer; until it comes there is nothing to select.
    end = os.open(history, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(end) as stream, ExitStack() as opened:

        def wait() -> None:
            assert select.select([end], [], [], ENOUGH)[0], "no step was made"
            os.set_blocking(end, True)
            assert json.loads(stream.readline())["step"] == 1
            # Nobody is to wait for the rest to be read.
            rest = Thread(target=_drain, args=(stream, lambda line: None))
            rest.start()
            opened.callback(rest.join)

        yield wait


def processes(build: Path) -> dict[str, int]:
    """The processes that run nodes of a build, wherever they were started from."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            words = _words(entry)
            if str(build) in words and "--node" in words:
                found[words[words.index("--node") + 1]] = int(entry.name)
    return found


def _words(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []
