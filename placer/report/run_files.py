"""Reads the files that a run keeps in its folder."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from placer.errors import PlacerError
from placer.system.files.nearest_path import path_hint

Kind = TypeVar("Kind")

COMMAND: Final = "command.json"
"""The file with the command, the settings, the versions and the machine of a run."""
HISTORY: Final = "history.jsonl"
"""The file with one JSON line per step."""
EVENTS: Final = "events.jsonl"
"""The file with one JSON line per event. The launcher locks it during the run."""
RESULT: Final = "result.json"
"""The file with the result of a run, also of a failed or interrupted one."""

FINISHED: Final = "finished"
FAILED: Final = "failed"
INTERRUPTED: Final = "interrupted"
RUNNING: Final = "running"
KILLED: Final = "killed"
"""State of a run whose launcher ended without writing a result."""


class Continuation(msgspec.Struct, frozen=True):
    """The command that continued a run, and its start in seconds since 1970."""

    command: str
    started: float


class Command(msgspec.Struct, frozen=True):
    """The content of `command.json`.

    Attributes:
        name: the name of the model.
        command: the command line.
        started: the time of the start, in seconds since 1970.
        spec: the path of the spec.
        set: the values of `--set`, by key.
        settings: the settings of the run that can be compared with other runs.
        options: the options of the run that differ from their defaults.
        versions: the versions of placer, Python and important packages.
        machine: the name, system and cores of the machine.
        build: the path of the build.
        checkpoints: the folder of the run's checkpoints; None if it saves none.
        continued: the last commands that continued the run.
    """

    name: str
    command: str
    started: float
    spec: str
    set: dict[str, Any]
    settings: dict[str, Any]
    options: dict[str, Any]
    versions: dict[str, str]
    machine: dict[str, Any]
    build: str = ""
    checkpoints: str | None = None
    continued: tuple[Continuation, ...] = ()


class RunEnd(msgspec.Struct, frozen=True):
    """The fields of `result.json` that every run has.

    Attributes:
        ended: "finished", "failed" or "interrupted"; "running" and "killed" are for runs
            without the file.
        error: the root cause of a failure, or the message of an interruption.
        seconds: the time from the start of the first step to the end of the last one.
        steps: the number of training steps.
        metrics: the metrics of the last epoch, or of the last step of an unfinished run.
        eval: the metrics of the last evaluation.
        samples_per_second: rows of the global batch per second.
    """

    ended: str
    error: str | None = None
    seconds: float = 0.0
    steps: int = 0
    metrics: dict[str, float | None] = {}
    eval: dict[str, float | None] = {}
    samples_per_second: float | None = 0.0


class Run(msgspec.Struct, frozen=True):
    """A run that was read from its folder."""

    folder: Path
    command: Command
    end: RunEnd

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings and options of the run. The values of `--set` take precedence."""
        command = self.command
        return {**command.settings, **command.options, **command.set}


def find_runs(folder: Path) -> list[Run]:
    """Return the runs in a folder, oldest first. `folder` may be the folder of one run.

    Raises:
        PlacerError: if the folder contains no run, or a file of a run is damaged.
    """
    if (folder / COMMAND).is_file():
        return [_read_run(folder)]
    if not folder.is_dir():
        raise PlacerError(
            f"the folder '{folder}' does not exist", hint=path_hint(folder, Path.is_dir)
        )
    runs = [_read_run(each) for each in folder.iterdir() if (each / COMMAND).is_file()]
    if not runs:
        raise PlacerError(
            f"the folder '{folder}' contains no runs",
            hint="name a folder of runs, such as runs, or the folder of one run",
        )
    return sorted(runs, key=lambda run: (run.command.started, run.folder.name))


def _read_run(folder: Path) -> Run:
    command = read_command(folder)
    if (folder / RESULT).is_file():
        return Run(folder, command, _read(folder / RESULT, RunEnd))
    return Run(folder, command, _unfinished(folder))


def read_command(folder: Path) -> Command:
    """Return the content of `command.json`. Raises PlacerError if it is damaged."""
    return _read(folder / COMMAND, Command)


def _read(file: Path, kind: type[Kind]) -> Kind:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise PlacerError(
            f"cannot read '{file}': {error}",
            hint=f"remove the file, or move the run '{file.parent}' to another folder",
        ) from error


def _unfinished(folder: Path) -> RunEnd:
    """Return the facts of a run without a result, from the lines of its history."""
    last: dict[str, Any] = {}
    evaluation: dict[str, float | None] = {}
    for line in read_lines(folder / HISTORY):
        last, evaluation = line, line.get("eval", evaluation)
    return RunEnd(
        RUNNING if _is_locked(folder / EVENTS) else KILLED,
        seconds=last.get("seconds", 0.0),
        steps=last.get("step", 0),
        metrics=last.get("metrics", {}),
        eval=evaluation,
        samples_per_second=last.get("samples_per_second"),
    )


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file with one per line. A last line that a killed
    launcher did not complete is skipped."""
    if not file.is_file():
        return
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)


def _is_locked(file: Path) -> bool:
    """Return True if the launcher of the run holds the lock of the file."""
    if not file.is_file():
        return False
    descriptor = os.open(file, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
