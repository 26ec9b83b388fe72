"""Finds the checkpoints that a path names: one checkpoint, or a folder of checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from placer.checkpoint.folder import (
    broken_checkpoints,
    has_none,
    incomplete_checkpoint,
    list_checkpoints,
)
from placer.checkpoint.manifest import FILE
from placer.checkpoint.reading import Checkpoint
from placer.errors import CheckpointError
from placer.plan.plan import RUNS
from placer.system.files.nearest_path import path_hint

IN_RUN = "checkpoints"
"""The name of the folder of checkpoints in the folder of a run."""

Warn = Callable[[str], None]
"""A function that is called with the reason why a checkpoint is skipped."""


def is_checkpoint(named: Path) -> bool:
    """Whether a path names one checkpoint, possibly by a link such as `best`."""
    return (named / FILE).exists()


def is_first_start(own: Path, named: Path) -> bool:
    """Whether a resumed run starts anew, because it names its own folder, which is still empty.

    Raises CheckpointError if the folder cannot be read.
    """
    if named.resolve() != own or not has_none(own):
        return False
    return not own.is_dir() or incomplete_checkpoint(own) is None


def candidates(named: Path, warn: Warn) -> Iterator[Checkpoint]:
    """Yield the checkpoints to try: the named checkpoint, or all of a folder, newest first.

    Raises CheckpointError if no more checkpoints are left.
    """
    if not named.is_dir():
        raise CheckpointError(
            f"the folder '{named}' does not exist", hint=checkpoints_hint(named)
        )
    if is_checkpoint(named):
        yield _opened(named, warn)
        return
    if (incomplete := incomplete_checkpoint(named)) is not None:
        raise incomplete
    broken, listed = [*broken_checkpoints(named)], list_checkpoints(named)
    if not broken and not listed:
        raise no_checkpoints(named)
    for _, error in broken:
        warn(error.message)
    for path, _ in listed:
        try:
            yield _opened(path, warn)
        except CheckpointError as error:
            warn(f"{error.message}; trying an earlier checkpoint")
    raise CheckpointError(
        f"'{named}' has no readable checkpoint",
        hint="list and verify the checkpoints with: placer checkpoints DIR",
    )


def checkpoints_hint(path: str | Path) -> str | None:
    """Return a hint for a missing folder: the nearest folder, or a run's checkpoints."""
    return path_hint(path, Path.is_dir) or path_hint(
        path, _has_checkpoints, (RUNS,), lambda run: str(Path(run, IN_RUN))
    )


def _has_checkpoints(run: Path) -> bool:
    folder = run / IN_RUN
    return folder.is_dir() and not has_none(folder)


def check_has_some(named: Path) -> None:
    """Raise CheckpointError if a path names neither a checkpoint nor a folder with some."""
    if is_checkpoint(named) or not has_none(named):
        return
    raise incomplete_checkpoint(named) or no_checkpoints(named)


def no_checkpoints(folder: Path) -> CheckpointError:
    """Return the error for a folder without checkpoints.

    If it is the folder of a run, the hint names the run's folder of checkpoints.
    """
    return CheckpointError(
        f"'{folder}' has no checkpoints",
        hint=f"did you mean '{folder / IN_RUN}'?"
        if _has_checkpoints(folder)
        else "save checkpoints with: placer train SPEC --checkpoint DIR",
    )


def without_digest(checkpoint: Path) -> str:
    """Return the warning about a checkpoint whose manifest has no digest."""
    return (
        f"'{checkpoint}' was saved by an older placer: its manifest has no digest, so"
        " changes of the manifest cannot be detected"
    )


def _opened(folder: Path, warn: Warn) -> Checkpoint:
    checkpoint = Checkpoint(folder.resolve())
    if not checkpoint.manifest.digest:
        warn(without_digest(checkpoint.folder))
    return checkpoint


def last_good(named: Path, warn: Warn) -> Checkpoint:
    """Return the named checkpoint, or the newest intact checkpoint of a folder.

    In a folder, all checksums are verified. All processes with access to the folder
    therefore choose the same checkpoint.

    Raises CheckpointError if no intact checkpoint exists.
    """
    if is_checkpoint(named):
        return _opened(named, warn)
    for checkpoint in candidates(named, warn):
        try:
            checkpoint.verify()
        except CheckpointError as error:
            warn(f"{error.message}; trying an earlier checkpoint")
        else:
            return checkpoint
    raise AssertionError("candidates ends with an error")
