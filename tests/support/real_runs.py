"""Starts real processes with the command line, and observes them from outside."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TextIO

import placer
from placer.channel.keys import new_key, write_key
from placer.channel.ports import free_endpoints
from placer.compiler.driver import compile
from placer.place.node_kinds import NodeId
from placer.plan.plan import read_plan
from placer.plan.table_text import table_lines

ROOT = Path(placer.__file__).parents[1]
TIMEOUT = 150.0
"""The longest that a test waits for a run, in seconds, before it kills the run."""
END_TIMEOUT = 20.0
"""Seconds within which all processes must end after any failure."""
MANY_STEPS = "--steps=1000000"

GENERATOR_READER = """\
import sys


def train():
    for i in range(64):
        {at_row}
        yield {{"x": [i % 3, i % 5, i % 7, 1.0], "y": float(i % 11)}}
"""

INDEXED_READER = """\
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
"""A reader whose rows are read by index during the steps; row 17 raises."""

SMALL_SPEC = """\
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


def compile_small(
    folder: Path,
    *,
    workers: int = 1,
    size: int = 8,
    rate: float = 0.01,
    at_row: str = "pass",
    rows: str | None = None,
) -> Path:
    """Compile a small model and return the build folder.

    Its reader is the module `rows`, or one that runs the code `at_row` before it yields
    row `i`.
    """
    (folder / "rows.py").write_text(rows or GENERATOR_READER.format(at_row=at_row))
    spec = folder / "small.yaml"
    spec.write_text(SMALL_SPEC.format(workers=workers, size=size, rate=rate))
    compile(spec, folder / "build")
    return folder / "build"


def process_environment() -> dict[str, str]:
    """Return an environment in which a process imports this placer, installed or
    not."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)}


def placer_command(*arguments: object) -> list[str]:
    return [sys.executable, "-P", "-m", "placer.command", *map(str, arguments)]


@dataclass
class CommandResult:
    """The exit status and the output of a process that has ended."""

    status: int
    out: str
    err: str

    @property
    def last_message(self) -> str:
        """The last message on stderr: a line, and the indented lines after it."""
        lines = self.err.rstrip("\n").splitlines()
        heads = [i for i, line in enumerate(lines) if not line.startswith(" ")]
        return "\n".join(lines[heads[-1] :]) if heads else ""


def run_command(*arguments: object, within: float = TIMEOUT) -> CommandResult:
    """Run a command of placer until it ends."""
    done = subprocess.run(
        placer_command(*arguments),
        env=process_environment(),
        capture_output=True,
        text=True,
        timeout=within,
    )
    return CommandResult(done.returncode, done.stdout, done.stderr)


@dataclass
class RunningCommand:
    """A running process; `stderr_lines` has the lines that were read so far."""

    process: subprocess.Popen[str]
    out: list[str] = field(default_factory=list)
    stderr_lines: list[str] = field(default_factory=list)
    stderr_queue: SimpleQueue[str] = field(default_factory=SimpleQueue)
    """Lines that were not waited for yet; an empty one at the end."""
    readers: list[Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        for stream, consume in (
            (self.process.stdout, self.out.append),
            (self.process.stderr, self.stderr_queue.put),
        ):
            self.readers.append(Thread(target=_drain, args=(stream, consume)))
            self.readers[-1].start()

    def wait_for_line(self, start: str) -> str:
        """Wait for a line on stderr that starts with `start`, and return it."""
        while True:
            line = ""
            with suppress(Empty):
                line = self.stderr_queue.get(timeout=TIMEOUT)
            if not line:
                raise AssertionError(f"no '{start}' in {self.stderr_lines}")
            self.stderr_lines.append(line)
            if line.startswith(start):
                return line

    def wait(self, within: float = TIMEOUT) -> CommandResult:
        """Wait until the process has ended and its output is closed."""
        try:
            status = self.process.wait(within)
        except subprocess.TimeoutExpired:
            told = "".join([*self.stderr_lines, *self._new_lines()][-40:])
            raise AssertionError(f"still runs after {within} s:\n{told}") from None
        for reader in self.readers:
            reader.join()
        self.stderr_lines += self._new_lines()
        return CommandResult(status, "".join(self.out), "".join(self.stderr_lines))

    def _new_lines(self) -> list[str]:
        """Take the lines on stderr that were not read so far."""
        lines = []
        while not self.stderr_queue.empty():
            lines.append(self.stderr_queue.get())
        return lines

    def kill(self) -> None:
        """Kill the process and close its output."""
        self.process.kill()
        self.wait()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def _drain(stream: TextIO, consume: Callable[[str], object]) -> None:
    """Call `consume` with each line, and with an empty one at the end."""
    for line in stream:
        consume(line)
    consume("")


@contextmanager
def running_command(line: Sequence[str]) -> Iterator[RunningCommand]:
    """Start a process; kill it at the end of the context if it still runs."""
    run = RunningCommand(
        subprocess.Popen(
            line,
            env=process_environment(),
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
    """Return the command line `placer launch BUILD --json …`."""
    logs = build.parent / "logs"
    return placer_command("launch", build, "--json", "--logs", logs, *options)


def running_launch(
    build: Path, *options: object
) -> AbstractContextManager[RunningCommand]:
    """Start `placer launch BUILD --json …`."""
    return running_command(launch_command(build, *options))


def launch(build: Path, *options: object) -> CommandResult:
    """Run `placer launch BUILD --json …` until it ends."""
    with running_launch(build, *options) as run:
        return run.wait()


def program_of(build: Path, node: str) -> str:
    """Return the path of the program of a node."""
    return str(build / NodeId(node).stem / "program.py")


def shown_tables(build: Path, node: str) -> str:
    """Return what a node that was started by hand prints first: the tables of a server."""
    plan = read_plan(build)
    lines = table_lines(plan, plan.node(node)) if node.startswith("ps:") else ()
    return "".join(f"{line}\n" for line in lines)


@contextmanager
def nodes_by_hand(
    build: Path, *options: object, programs: bool = False
) -> Iterator[dict[str, RunningCommand]]:
    """Start all processes of a build by hand.

    The command is `placer run BUILD --node NODE`, or with `programs` it is
    `python build/worker-0/program.py`.
    """
    nodes = [*read_plan(build).processes]
    endpoints = free_endpoints(nodes)
    listed = ",".join(f"{node}={address}" for node, address in endpoints.items())
    with ExitStack() as contexts:
        folder = Path(contexts.enter_context(TemporaryDirectory()))
        write_key(folder / "key", new_key())
        words = ["--endpoints", listed, f"--key={folder / 'key'}", *map(str, options)]
        yield {
            node: contexts.enter_context(
                running_command(
                    [sys.executable, program_of(build, node), *words]
                    if programs
                    else placer_command("run", build, "--node", node, *words)
                )
            )
            for node in nodes
        }


@contextmanager
def first_step_waiter(history: Path) -> Iterator[Callable[[], None]]:
    """Create a pipe for `--history`; yield a function that waits for the first step."""
    os.mkfifo(history)
    # Non-blocking: a blocking open would wait here for the writer.
    end = os.open(history, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(end) as stream, ExitStack() as exits:

        def wait() -> None:
            assert select.select([end], [], [], TIMEOUT)[0], "there was no step"
            os.set_blocking(end, True)
            assert json.loads(stream.readline())["step"] == 1
            # Read the rest too, so that the writer does not block on a full pipe.
            rest = Thread(target=_drain, args=(stream, lambda line: None))
            rest.start()
            exits.callback(rest.join)

        yield wait


def node_processes(build: Path) -> dict[str, int]:
    """Return the ids of all processes that run nodes of a build, by node."""
    ids = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            words = _command_line(entry)
            if str(build) in words and "--node" in words:
                ids[words[words.index("--node") + 1]] = int(entry.name)
    return ids


def processes_of(build: Path) -> set[int]:
    """Return the ids of all processes of runs of a build: launchers, nodes, and those
    that are about to become nodes."""
    return {
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and str(build) in _command_line(entry)
    }


def wait_for_exit(processes: Iterable[int]) -> None:
    """Wait until processes have ended."""
    for process in processes:
        with suppress(ProcessLookupError):
            end = os.pidfd_open(process)
            try:
                assert select.select([end], [], [], TIMEOUT)[0], process
            finally:
                os.close(end)


def _command_line(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []
