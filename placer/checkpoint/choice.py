"""Which checkpoints a path names: one, or those of a folder of checkpoints."""

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
from placer.system.files.nearest_path import path_hint

Warn = Callable[[str], None]
"""Receives why a checkpoint is not taken."""


def is_checkpoint(named: Path) -> bool:
    """Whether a path is that of one checkpoint, or a link to it such as `best`."""
    return (named / FILE).exists()


def is_first_start(own: Path, named: Path) -> bool:
    """Whether a run that is to continue from `named` starts instead: that is the folder
    to which it saves its own checkpoints, and there are none yet.

    Raises CheckpointError for a folder that cannot be read.
    """
    if named.resolve() != own or not has_none(own):
        return False
    return not own.is_dir() or incomplete_checkpoint(own) is None


def candidates(named: Path, warn: Warn) -> Iterator[Checkpoint]:
    """Yield the checkpoints to try: the named one, or those of a folder, last first.

    Raises CheckpointError if there is none left.
    """
    if not named.is_dir():
        raise CheckpointError(
            f"there is no folder '{named}'", hint=path_hint(named, Path.is_dir)
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
            warn(f"{error.message}; an earlier one is taken")
    raise CheckpointError(
        f"'{named}' has no checkpoint that can be read",
        hint="placer checkpoints DIR lists and verifies them",
    )


def check_has_some(named: Path) -> None:
    """Raise CheckpointError if a path is a folder that is no checkpoint and has none."""
    if is_checkpoint(named) or not has_none(named):
        return
    raise incomplete_checkpoint(named) or no_checkpoints(named)


def no_checkpoints(folder: Path) -> CheckpointError:
    """Return the error of a folder without checkpoints. If it is the folder of a run, the
    hint names that of its checkpoints."""
    inner = folder / "checkpoints"
    has_some = inner.is_dir() and not has_none(inner)
    return CheckpointError(
        f"'{folder}' has no checkpoints",
        hint=f"did you mean '{inner}'?"
        if has_some
        else "placer train SPEC --checkpoint DIR saves some",
    )


def without_digest(checkpoint: Path) -> str:
    """Return what a user has to know of a checkpoint whose manifest has no digest."""
    return (
        f"'{checkpoint}' is of an older placer: its manifest has no digest, so that a"
        " change in it is not found"
    )


def _opened(folder: Path, warn: Warn) -> Checkpoint:
    checkpoint = Checkpoint(folder.resolve())
    if not checkpoint.manifest.digest:
        warn(without_digest(checkpoint.folder))
    return checkpoint


def last_good(named: Path, warn: Warn) -> Checkpoint:
    """Return the named checkpoint, or the last one of a folder that is not damaged.

    All checksums of a checkpoint of a folder are verified, so that every process that
    sees the folder takes the same one. Raises CheckpointError if there is none.
    """
    if is_checkpoint(named):
        return _opened(named, warn)
    for checkpoint in candidates(named, warn):
        try:
            checkpoint.verify()
        except CheckpointError as error:
            warn(f"{error.message}; an earlier one is taken")
        else:
            return checkpoint
    raise AssertionError("candidates ends with an error")
