"""Finds the run that saved a checkpoint, so that a resumed run continues its files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from placer.checkpoint.choice import is_checkpoint
from placer.errors import PlacerError
from placer.report.run_files import Command, is_run, is_running, read_command


def run_of_checkpoint(resume: Path, name: str, runs: Path) -> Path | None:
    """Return the folder of the run that saved a checkpoint, or None.

    It is the run folder that contains the checkpoint. For a checkpoint outside of all run
    folders, it is the newest run in `runs` with this folder of checkpoints. A run that is
    still running, or a run of another model, is not continued.

    Args:
        resume: a checkpoint or a folder of checkpoints.
        name: the name of the model.
        runs: the folder of runs.

    Raises:
        PlacerError: a run folder contains the checkpoint, but its `command.json` or its
            events cannot be read.
    """
    path = resume.resolve()
    # `checkpoints/step-000100` and `checkpoints` are inside the folder of the run.
    nearest = [folder for folder in (path, *path.parents[:2]) if is_run(folder)]
    found = [(read_command(folder), folder) for folder in nearest[:1]]
    if not found:
        saved = {str(path), str(path.parent)}
        found = [each for each in _commands(runs) if each[0].checkpoints in saved]
    of_model = [
        (command.started, folder)
        for command, folder in found
        if command.name == name and not is_running(folder)
    ]
    return max(of_model)[1] if of_model else None


def checkpoints_in_run(resume: Path | None) -> Path | None:
    """Return the folder of checkpoints that `--resume` names if it is in the folder of a run."""
    if resume is None:
        return None
    path = resume.resolve()
    folder = path.parent if is_checkpoint(path) else path
    return folder if is_run(folder.parent) else None


def _commands(runs: Path) -> Iterator[tuple[Command, Path]]:
    """Yield the readable commands in a folder of runs."""
    if runs.is_dir():
        for folder in runs.iterdir():
            # A damaged run cannot be continued.
            with suppress(PlacerError):
                if is_run(folder):
                    yield read_command(folder), folder
