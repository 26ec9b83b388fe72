"""Locks a folder of checkpoints, lists the checkpoints, and removes old ones.

Only one run at a time writes to a folder: its control node holds a lock. Incomplete
checkpoints after a crash have hidden names and are never read. The next run removes them.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from socket import gethostname
from typing import BinaryIO, Final

from msgspec.structs import replace

from placer.checkpoint.manifest import FILE, Manifest, Watched
from placer.checkpoint.manifest_file import read_manifest
from placer.errors import CheckpointError
from placer.system.files.atomic import sync_folder
from placer.system.files.locks import file_locked, lock_owner

BEST: Final = "best"
"""The name of the link to the checkpoint with the best evaluation."""
CLAIM: Final = ".claim"
"""The file that the command of a stream locks, in the folder of checkpoints."""
DAMAGED: Final = "damaged-"
"""The beginning of the name of a checkpoint that was set aside."""

_BEST_TEMPORARY = f".{BEST}.tmp"
_TEMPORARY = re.compile(
    r"\.step-[0-9-]+\.[0-9a-z]+\.tmp|\.run-[0-9a-f]+\.tmp|" + re.escape(_BEST_TEMPORARY)
)
_NAME = re.compile(r"step-[0-9]+(-[0-9]+)?")
_FILE_OF_NODE = re.compile(r"[a-z][a-z0-9_]*-[0-9]+(\.rows)?\.safetensors")


class InUseError(CheckpointError):
    """Another run has locked the folder of checkpoints.

    Attributes:
        folder: the folder.
    """

    exit_status = 1

    def __init__(self, folder: Path, owner: int | None) -> None:
        """Name the process `owner`, if it is known."""
        process = f": process {owner} on {gethostname()}" if owner else ""
        super().__init__(
            f"another run writes checkpoints to '{folder}'{process}",
            hint="name another folder, or wait for the other run to end",
        )
        self.folder = folder


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Create a folder of checkpoints, and claim it for a command, before a run locks it.

    Raises:
        InUseError: if another command has claimed the folder, or another run has locked it.
        CheckpointError: if the folder cannot be created.
    """
    with ExitStack() as exits:
        with _creation_errors(folder):
            _create(folder)
            claim = exits.enter_context(_open_claim(folder / CLAIM))
            exits.enter_context(_locked(claim.fileno(), folder, 0.0))
        with opened_folder(folder) as descriptor, _locked(descriptor, folder, 0.0):
            pass
        yield


def _open_claim(path: Path) -> BinaryIO:
    """Open the file of a claim. Another user may have created it, which can only be read then: a
    lock does not write it."""
    try:
        return path.open("ab")
    except PermissionError:
        if not path.exists():
            raise
        return path.open("rb")


@contextmanager
def _creation_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"checkpoints cannot be written to '{folder}': {error.strerror}"
        ) from error


@contextmanager
def opened_folder(folder: Path) -> Iterator[int]:
    """Open a folder, and yield its descriptor."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def locked(folder: Path, *, wait: float = 0.0) -> Iterator[bool]:
    """Create and lock a folder of checkpoints, and remove incomplete checkpoints.

    Args:
        folder: the folder.
        wait: the longest time to wait for another process that has locked the folder, in
            seconds.

    Yields:
        False if the file system has no locks.

    Raises:
        CheckpointError: if the folder cannot be created, or another run has locked it.
    """
    with _creation_errors(folder):
        _create(folder)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with _locked(descriptor, folder, wait) as has_locks:
            for entry in folder.iterdir():
                if not _TEMPORARY.fullmatch(entry.name):
                    continue
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink(missing_ok=True)
            yield has_locks
    finally:
        os.close(descriptor)


@contextmanager
def _locked(descriptor: int, folder: Path, wait: float) -> Iterator[bool]:
    with ExitStack() as exits:
        try:
            has_locks = exits.enter_context(file_locked(descriptor, wait=wait))
        except BlockingIOError:
            raise InUseError(folder, lock_owner(descriptor)) from None
        yield has_locks


def _create(folder: Path) -> None:
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_folder(each.parent)


def check_continues(folder: Path, resumed: Path | None) -> None:
    """Raise CheckpointError if a folder contains checkpoints of another run than `resumed`.

    This run would remove those checkpoints as its own old checkpoints.
    """
    if has_none(folder):
        return
    if is_continued(folder, resumed):
        return
    raise CheckpointError(
        f"'{folder}' contains the checkpoints of another run",
        hint="name another folder, or continue that run with --resume",
    )


def is_continued(folder: Path, resumed: Path | None) -> bool:
    """Whether `resumed` is `folder` itself or a checkpoint in it."""
    if resumed is None:
        return False
    return folder in (resumed.resolve(), resumed.resolve().parent)


def has_none(folder: Path) -> bool:
    """Whether a folder contains no checkpoints or does not exist."""
    return not folder.is_dir() or not _named_checkpoints(folder)


def check_best_is_free(folder: Path) -> None:
    """Raise CheckpointError if the name `best` is taken in a folder of checkpoints.

    A link to a checkpoint of the folder is allowed: the run replaces such a link.
    """
    link = folder / BEST
    if not os.path.lexists(link) or _linked(link):
        return
    raise CheckpointError(
        f"'{link}' is not a link to a checkpoint of this folder, but the run needs this"
        " name for the link to its best checkpoint",
        hint="rename the file, or name another folder of checkpoints",
    )


def set_best(folder: Path, checkpoint: Path) -> None:
    """Point the link `best` to a checkpoint. May raise OSError.

    Raises CheckpointError if `best` exists and is not a link to a checkpoint.
    """
    check_best_is_free(folder)
    temporary = folder / _BEST_TEMPORARY
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(checkpoint.name)
    temporary.replace(folder / BEST)


def link_best(folder: Path, best: Watched) -> None:
    """Point the link `best` to the checkpoint of an evaluation, if that checkpoint exists.

    The link may be missing after a crash. Raises the errors of `set_best`.
    """
    if (path := checkpoint_of(best, list_checkpoints(folder))) is not None:
        set_best(folder, path)


def best_checkpoint(
    folder: Path, listed: Sequence[tuple[Path, Manifest]]
) -> Path | None:
    """Return the best checkpoint of a folder; None without a best evaluation.

    This is the target of the link `best`. On file systems without links, it is the
    checkpoint of the best evaluation in the newest manifest.

    Args:
        listed: the checkpoints of the folder, newest first.
    """
    linked = _linked(folder / BEST)
    for path, _ in listed:
        if path.name == linked:
            return path
    found = (each.progress.best for _, each in listed)
    best = next((each for each in found if each is not None), None)
    return None if best is None else checkpoint_of(best, listed)


def _linked(link: Path) -> str:
    target = os.readlink(link) if link.is_symlink() else ""
    return target if _NAME.fullmatch(target) else ""


def checkpoint_of(
    best: Watched, listed: Sequence[tuple[Path, Manifest]]
) -> Path | None:
    """Return the checkpoint with this best evaluation; None if it is not in `listed`."""
    for path, manifest in listed:
        found = manifest.progress.best
        if manifest.progress.step == best.step and found == replace(best, since=0):
            return path
    return None


def remove_old(folder: Path, keep: int) -> None:
    """Remove all checkpoints except the newest `keep` and the best one.

    A checkpoint is renamed before its files are removed. A crash therefore never leaves an
    incomplete checkpoint under its final name. Raises OSError, and CheckpointError if the
    folder cannot be read.
    """
    listed = list_checkpoints(folder)
    best = best_checkpoint(folder, listed)
    for path, _ in listed[keep:]:
        if path == best:
            continue
        hidden = path.with_name(f".{path.name}.old.tmp")
        path.rename(hidden)
        shutil.rmtree(hidden)


def set_aside(paths: Iterable[Path]) -> list[Path]:
    """Rename damaged checkpoints, so that they are not listed any more. Return their new paths,
    in the same order. Raises CheckpointError if one cannot be renamed."""
    found = []
    for path in paths:
        name = f"{DAMAGED}{path.name}"
        names = chain([name], (f"{name}-{i}" for i in count(2)))
        new = next(each for each in map(path.with_name, names) if not each.exists())
        try:
            path.rename(new)
        except OSError as error:
            raise CheckpointError(
                f"cannot rename '{path}' to '{new}': {error.strerror}"
            ) from error
        found.append(new)
    return found


def list_checkpoints(folder: Path) -> list[tuple[Path, Manifest]]:
    """Return the checkpoints of a folder with readable manifests, newest first.

    Raises CheckpointError if the folder cannot be read.
    """
    found = []
    for path in _named_checkpoints(folder):
        with suppress(CheckpointError):
            found.append((path, read_manifest(path)))
    return sorted(found, key=lambda each: -each[1].sequence)


def broken_checkpoints(folder: Path) -> Iterator[tuple[Path, CheckpointError]]:
    """Yield the checkpoints of a folder with unreadable manifests, and the errors."""
    for path in _named_checkpoints(folder):
        try:
            read_manifest(path)
        except CheckpointError as error:
            yield path, error


def incomplete_checkpoint(folder: Path) -> CheckpointError | None:
    """Return an error if a folder is a checkpoint without a manifest, else None.

    Raises CheckpointError if the folder cannot be read.
    """
    if _named_checkpoints(folder) or (folder / FILE).exists():
        return None
    is_named = _NAME.fullmatch(folder.name) or _TEMPORARY.fullmatch(folder.name)
    if not is_named and not any(_FILE_OF_NODE.fullmatch(e.name) for e in _list(folder)):
        return None
    return CheckpointError(
        f"'{folder}' is an incomplete checkpoint: it has no {FILE}, which is written"
        " last",
        hint="name another checkpoint, or name the folder of checkpoints to use its"
        " newest complete one",
    )


def _named_checkpoints(folder: Path) -> list[Path]:
    return sorted(e for e in _list(folder) if _NAME.fullmatch(e.name))


def _list(folder: Path) -> list[Path]:
    try:
        return [*folder.iterdir()]
    except OSError as error:
        raise CheckpointError(f"cannot read '{folder}': {error.strerror}") from error
