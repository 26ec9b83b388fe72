"""Creates the folder of a run, such as `runs/NAME-1`, with its build."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from placer.compiler.driver import CompiledBuild
from placer.errors import PlacerError
from placer.launcher.checks import check_launch
from placer.launcher.data_check import check_data
from placer.launcher.run_command import command_of
from placer.launcher.run_record import RunRecord
from placer.launcher.supervise import Watch
from placer.plan.plan import OF_RUN, RUNS, Plan
from placer.plan.write import write_build
from placer.report.run_files import COMMAND, read_command
from placer.runtime.control.options import Options

if TYPE_CHECKING:
    from placer.compiler.frontend.python.overrides import Overrides


@dataclass(frozen=True)
class NewRun:
    """A run that has not started, in its new folder.

    Attributes:
        build: the build folder.
        plan: the plan of the build.
        options: the options of the run, with a folder for its checkpoints.
        note: a function that must be called with each event of the run.
    """

    build: Path
    plan: Plan
    options: Options
    note: Watch


@contextmanager
def new_run(
    compiled: CompiledBuild,
    options: Options,
    out: Path | None = None,
    *,
    overrides: Overrides | None = None,
    command: str = "",
) -> Iterator[NewRun]:
    """Return a context that creates a new run with its folder and its build, and that
    records the run in the folder.

    If the run cannot start, or the block raises before the first step is done, the folder
    is removed. A folder that already existed, or that contains other files, is kept.

    Args:
        compiled: the build.
        options: the options of the run.
        out: the folder of the run; it must be empty if it exists. Default: `runs/NAME-N`
            in the working folder, where N is 1 more than the largest number of a run of
            this model.
        overrides: the values of `--set`, for the record.
        command: the command line for the record. Default: that of this process.

    Raises:
        DataError, SpecErrors: a data source does not fit.
        PlacerError: the folder, or a file that an option names, cannot be used.
    """
    check_data(compiled.plan, compiled.folder, compiled.data_spans, code=False)
    created: list[Path] = []
    record: RunRecord | None = None
    build = _create_run_folder(compiled.plan.name, out, created) / OF_RUN
    try:
        write_build(build, compiled.files_in(build))
        plan, options = check_launch(build, options)
        facts = command_of(build, plan, options, overrides=overrides, command=command)
        with RunRecord(lambda: build.parent, facts, options.history) as record:
            yield NewRun(build, plan, options, record.note)
    except BaseException:
        if record is None or not record.has_trained:
            _remove(build, created)
        raise


def recorded_launch(
    build: Path, plan: Plan, options: Options, *, command: str = ""
) -> RunRecord:
    """Return the record of a launch of an existing build.

    The folder `NAME-N` of the run is in `_runs_of` the build. A run that continues from a
    checkpoint uses the folder of the run that saved the checkpoint, if that folder
    exists. A new folder is created at the first step.
    """
    runs = _runs_of(build)

    def open_folder() -> Path:
        if options.resume is not None and (
            earlier := _run_of_checkpoint(runs, options.resume)
        ):
            return earlier
        return _create_numbered(runs, plan.name, [])

    facts = command_of(build, plan, options, command=command)
    return RunRecord(open_folder, facts, options.history)


def _runs_of(build: Path) -> Path:
    """Return the folder for the runs of an existing build.

    It is the folder `runs` next to the build. For a build in the folder of a run, it is
    the folder `runs` that contains that run, or that is next to it. If the place is not
    writable, it is `runs` in the working folder.
    """
    place = build.resolve().parent
    if (place / COMMAND).is_file():
        place = place.parent
    if not os.access(place, os.W_OK | os.X_OK):
        return RUNS
    return place if place.name == RUNS.name else place / RUNS


def _run_of_checkpoint(runs: Path, resume: Path) -> Path | None:
    """Return the newest run in `runs` that saved the checkpoint `resume`, if any."""
    # `resume` is a folder of checkpoints, or a checkpoint in such a folder.
    saved = {str(resume.resolve()), str(resume.resolve().parent)}
    if not runs.is_dir():
        return None
    found = [
        (command.started, folder)
        for folder in runs.iterdir()
        if (folder / COMMAND).is_file()
        and (command := read_command(folder)).checkpoints in saved
    ]
    return max(found)[1] if found else None


def _remove(build: Path, created: Sequence[Path]) -> None:
    """Remove a build, and the folders that were created for it if they are empty then."""
    with suppress(OSError):  # The user may have removed them.
        if {*build.parent.iterdir()} - {build}:
            return
    shutil.rmtree(build, ignore_errors=True)
    for folder in reversed(created):
        with suppress(OSError):  # The folder contains other files.
            folder.rmdir()


def _create_run_folder(name: str, out: Path | None, created: list[Path]) -> Path:
    """Create the folder of a new run; append new folders to `created`, outer ones first."""
    try:
        if out is None:
            return _create_numbered(RUNS, name, created)
        _create(out, created)
    except OSError as error:
        raise PlacerError(
            f"cannot create the folder of the run '{out or RUNS}': {error.strerror}",
            hint="choose another folder: --out DIR (out=DIR)",
        ) from error
    if any(out.iterdir()):
        raise PlacerError(
            f"the folder '{out}' is not empty; a new run would mix its files "
            "with the others",
            hint="choose a new or empty folder, or omit --out (out=…) to get a "
            "numbered folder",
        )
    return out


def _create(folder: Path, created: list[Path]) -> None:
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    created += reversed(new)


def _create_numbered(runs: Path, name: str, created: list[Path]) -> Path:
    _create(runs, created)
    of_this_model = re.compile(rf"{re.escape(name)}-([0-9]{{1,9}})")
    matches = (of_this_model.fullmatch(each.name) for each in runs.iterdir())
    number = max((int(match[1]) for match in matches if match), default=0)
    while True:
        number += 1
        folder = runs / f"{name}-{number}"
        try:
            folder.mkdir(mode=0o755)
        except FileExistsError:  # Another run has just taken this number.
            continue
        created.append(folder)
        return folder
