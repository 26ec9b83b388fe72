"""A folder of checkpoints: writing one, listing them, removing old ones.

A checkpoint is written to a hidden folder, `.step-000120.RUN.tmp`. Every node that stores
parameters writes and syncs its own file there. Then the control node writes the manifest,
syncs it and the folder, renames the folder to `step-000120`, and syncs the folder of
checkpoints. So after a crash there is either a complete checkpoint or a hidden folder,
which is never read, and which the next run removes.

One run at a time writes to a folder: its control node holds a lock on it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt

from placer.checkpoint.manifest import (
    CHUNK,
    FILE,
    Manifest,
    Stored,
    encode_manifest,
    read_manifest,
)
from placer.checkpoint.tensor_file import pieces_of_file, write_pieces
from placer.errors import CheckpointError

BEST: Final = "best"
"""The name of the link to the checkpoint with the best evaluation."""

_TEMPORARY = re.compile(r"\.step-[0-9-]+\.[0-9a-z]+\.tmp|\.run-[0-9a-f]+\.tmp")
_NAME = re.compile(r"step-[0-9]+(-[0-9]+)?")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create a folder of checkpoints, lock it, and remove what a crash has left.

    Raises CheckpointError if it cannot be created, or if another run has locked it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise CheckpointError(
            f"checkpoints cannot be written to '{folder}': {error.strerror}"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(
                f"another run writes checkpoints to '{folder}'",
                hint="name another folder, or wait until that run has ended",
            ) from None
        except OSError as error:  # a file system without locks
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
                raise
        for entry in folder.iterdir():
            if not _TEMPORARY.fullmatch(entry.name):
                continue
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
        yield
    finally:
        os.close(descriptor)


def temporary_folder(folder: Path, step: int, run: str) -> Path:
    """Return the folder to which a run writes the checkpoint of a step."""
    return folder / f".step-{step:06d}.{run}.tmp"


def write_tensors(
    temporary: Path, name: str, tensors: Mapping[str, npt.NDArray[Any]]
) -> Stored:
    """Write a file of a checkpoint, so that it is on the disk when this returns.

    Creates the temporary folder if no other node has. The checksums are computed while
    the file is written. Raises OSError.
    """
    pieces = pieces_of_file(tensors)
    with ThreadPoolExecutor(1, "placer checksums") as pool:
        stored = pool.submit(describe_file, pieces)
        write_file(temporary, name, pieces)
        return stored.result()


def write_file(temporary: Path, name: str, pieces: Iterable[memoryview]) -> None:
    """Write a file of a checkpoint from its bytes, as `write_tensors`."""
    temporary.mkdir(exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    descriptor = os.open(temporary / name, flags, 0o666)
    try:
        write_pieces(descriptor, pieces)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def describe_file(pieces: Sequence[memoryview]) -> Stored:
    """Return the size and the checksums of a file that consists of these pieces."""
    return Stored(sum(map(len, pieces)), compute_checksums(pieces))


def compute_checksums(pieces: Sequence[memoryview]) -> tuple[int, ...]:
    """Return the CRC-32 of each `CHUNK` bytes of the joined pieces."""
    checksums, at, checksum = [], 0, 0
    for piece in pieces:
        while piece:
            part = piece[: CHUNK - at]
            checksum = zlib.crc32(part, checksum)
            at += len(part)
            piece = piece[len(part) :]
            if at == CHUNK:
                checksums.append(checksum)
                at = checksum = 0
    if at:
        checksums.append(checksum)
    return tuple(checksums)


def commit(folder: Path, temporary: Path, manifest: Manifest) -> Path:
    """Write the manifest, and give a checkpoint its name; return its folder.

    All files of the checkpoint must be on the disk. Raises OSError.
    """
    content = encode_manifest(manifest)
    write_file(temporary, FILE, [memoryview(content)])
    _sync(temporary)
    name, number = f"step-{manifest.progress.step:06d}", 1
    target = folder / name
    # A checkpoint of the same step may be that of another run from an earlier step.
    while target.exists() or target.is_symlink():
        number += 1
        target = folder / f"{name}-{number}"
    temporary.rename(target)
    _sync(folder)
    return target


def discard(temporary: Path) -> None:
    """Remove a checkpoint that is not complete."""
    shutil.rmtree(temporary, ignore_errors=True)


def set_best(folder: Path, checkpoint: Path) -> None:
    """Let the link `best` name a checkpoint. Raises OSError."""
    link = folder / BEST
    if link.exists() and not link.is_symlink():
        return  # a file or folder of the user's
    temporary = folder / f".{BEST}.tmp"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(checkpoint.name)
    temporary.replace(link)


def remove_old(folder: Path, keep: int) -> None:
    """Remove all checkpoints but the last `keep` and the one that is linked as best.

    A checkpoint loses its name before its files are removed, so that a crash leaves
    none that is not complete. Raises OSError, and CheckpointError if the folder cannot
    be read.
    """
    best = (folder / BEST).resolve()
    for path, _ in list_checkpoints(folder)[keep:]:
        if path.resolve() == best:
            continue
        hidden = path.with_name(f".{path.name}.old.tmp")
        path.rename(hidden)
        shutil.rmtree(hidden)


def list_checkpoints(folder: Path) -> list[tuple[Path, Manifest]]:
    """Return the checkpoints of a folder whose manifests can be read, last one first.

    Raises CheckpointError if the folder cannot be read.
    """
    found = []
    for path in _named_checkpoints(folder):
        with suppress(CheckpointError):
            found.append((path, read_manifest(path)))
    return sorted(found, key=lambda each: -each[1].sequence)


def broken_checkpoints(folder: Path) -> Iterator[tuple[Path, CheckpointError]]:
    """Yield the checkpoints of a folder whose manifests cannot be read, and why."""
    for path in _named_checkpoints(folder):
        try:
            read_manifest(path)
        except CheckpointError as error:
            yield path, error


def _named_checkpoints(folder: Path) -> list[Path]:
    """Return the paths in a folder that have the name of a checkpoint, sorted."""
    try:
        return sorted(e for e in folder.iterdir() if _NAME.fullmatch(e.name))
    except OSError as error:
        raise CheckpointError(f"cannot read '{folder}': {error.strerror}") from error


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
