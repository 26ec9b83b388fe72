"""Locks a folder of publications, lists the publications, and removes old ones."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import gethostname
from typing import Final

from placer.checkpoint.writing import write_file
from placer.errors import CheckpointError
from placer.publishing.manifest import FILE, Publication, encode, read_publication
from placer.system.files.atomic import sync_folder
from placer.system.files.locks import file_locked, lock_owner

_NAME: Final = re.compile(r"(?:base|delta)-([0-9]{6,18})")
_TEMPORARY: Final = re.compile(r"\.(publication|run|code)-[0-9a-z.-]+\.tmp")


@contextmanager
def publishing_locked(folder: Path, *, wait: float = 0.0) -> Iterator[bool]:
    """Create and lock a folder of publications, and remove incomplete publications.

    Args:
        folder: the folder.
        wait: the longest time to wait for another process that has locked it, in seconds.

    Yields:
        False if the file system has no locks.

    Raises:
        CheckpointError: if the folder cannot be created, or another run has locked it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise CheckpointError(
            f"publications cannot be written to '{folder}': {error.strerror}"
        ) from error
    try:
        with _locked(descriptor, folder, wait) as has_locks:
            for entry in folder.iterdir():
                if _TEMPORARY.fullmatch(entry.name):
                    _remove(entry)
            yield has_locks
    finally:
        os.close(descriptor)


@contextmanager
def _locked(descriptor: int, folder: Path, wait: float) -> Iterator[bool]:
    with ExitStack() as exits:
        try:
            has_locks = exits.enter_context(file_locked(descriptor, wait=wait))
        except BlockingIOError:
            owner = lock_owner(descriptor)
            process = f": process {owner} on {gethostname()}" if owner else ""
            raise CheckpointError(
                f"another run publishes to '{folder}'{process}",
                hint="name another folder, or wait for the other run to end",
            ) from None
        yield has_locks


def list_publications(folder: Path) -> list[Publication]:
    """Return the publications of a folder, in the order of their numbers.

    Raises CheckpointError if a manifest is damaged, or two have the same number.
    """
    found: dict[int, Publication] = {}
    for entry in folder.iterdir():
        match = _NAME.fullmatch(entry.name)
        if match is None or not (entry / FILE).exists():
            continue
        publication = read_publication(entry)
        if publication.number in found:
            raise CheckpointError(
                f"'{folder}' has two publications with number {publication.number}",
                hint="move one of them away, and those after it",
            )
        found[publication.number] = publication
    return [found[number] for number in sorted(found)]


def temporary_folder(folder: Path, number: int, run: str) -> Path:
    """Return the hidden folder to which a run writes a publication."""
    return folder / f".publication-{number:06d}.{run}.tmp"


def commit(folder: Path, temporary: Path, publication: Publication) -> Path:
    """Write the manifest, rename the folder to its final name, and return its path.

    All files must already be on disk. Raises OSError if the manifest cannot be written or the
    folder cannot be renamed, and CheckpointError if a file is missing.
    """
    for name in publication.files:
        if not (temporary / name).exists():
            raise CheckpointError(
                f"{name} was removed before the publication was complete"
            )
    write_file(temporary, FILE, [memoryview(encode(publication))])
    sync_folder(temporary)
    target = folder / publication.folder
    temporary.rename(target)
    sync_folder(folder)
    return target


def remove_old(folder: Path, keep: int) -> None:
    """Keep the newest `keep` bases, and the publications after the oldest of them."""
    listed = list_publications(folder)
    bases = [each.number for each in listed if each.is_base]
    if len(bases) <= keep:
        return
    first = bases[-keep]
    # Deltas first: a reader that has their base may still find the newest base.
    for each in reversed(listed):
        if each.number < first:
            _remove(folder / each.folder)


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        hidden = entry.with_name(f".publication-{entry.name.lstrip('.')}.tmp")
        if not entry.name.startswith("."):
            entry.rename(hidden)  # readers see it whole or not at all
            entry = hidden
        shutil.rmtree(entry, ignore_errors=True)
    else:
        entry.unlink(missing_ok=True)
