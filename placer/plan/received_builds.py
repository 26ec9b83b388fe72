"""Stores builds sent to this machine in the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from placer.errors import BuildError, PlacerError
from placer.plan.folder import is_inside
from placer.plan.plan import Plan, read_plan
from placer.plan.write import write_build
from placer.system.caches.folder import usable_folder, user_cache

MAX_KEPT: Final = 20
"""How many builds the cache keeps."""
_HINT: Final = "set PLACER_CACHE to another folder for placer's files on this machine"


def keep_build(files: Mapping[str, bytes], digest: str) -> Path:
    """Write a build to the user's cache unless it exists, and return its folder.

    Args:
        files: the content of each file by path.
        digest: the digest of the plan that was sent.

    Raises:
        BuildError: the files do not match the digest.
        PlacerError: the cache cannot be written.
    """
    for path in files:
        if not is_inside(path):
            raise BuildError(f"'{path}' is outside of the build that was sent")
    content = hashlib.sha256(msgspec.msgpack.encode(files)).hexdigest()
    with _locked(_builds()) as builds:
        folder = builds / content[:32]
        try:
            plan = read_plan(folder)
            os.utime(folder)
        except BuildError:  # the build is new, or an earlier write was interrupted
            _prune(builds)
            plan = _write(folder, files)
    if plan.digest != digest:
        raise BuildError(
            f"the build in '{folder}' is not the one that was sent: its digest is"
            f" {plan.digest}, not {digest}"
        )
    return folder


def _write(folder: Path, files: Mapping[str, bytes]) -> Plan:
    try:
        write_build(folder, files)
    except BuildError as error:
        raise BuildError(error.message, hint=_HINT) from error
    return read_plan(folder)


def _builds() -> Path:
    """Return the cache folder of builds."""
    temporary = Path(tempfile.gettempdir()) / f"placer-{os.getuid()}"
    for base in (user_cache(), temporary):
        # A user who can rename the parent folder could replace the builds.
        if (found := usable_folder(base)) and (
            found := usable_folder(found / "builds")
        ):
            return found
    raise PlacerError("found no usable folder for the received build", hint=_HINT)


@contextmanager
def _locked(builds: Path) -> Iterator[Path]:
    """Lock the folder of builds: nodes on one machine start at the same time."""
    try:
        lock = os.open(builds / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise PlacerError(
            f"cannot write to '{builds}': {error.strerror}", hint=_HINT
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield builds
    finally:
        os.close(lock)


def _prune(builds: Path) -> None:
    """Remove the least recently used builds; never raise."""
    # Running nodes are safe: they read their build when they start.
    used: list[tuple[float, Path]] = []
    for folder in builds.iterdir():
        with suppress(OSError):
            if folder.is_dir():
                used.append((folder.stat().st_mtime, folder))
    for _, folder in sorted(used, reverse=True)[MAX_KEPT - 1 :]:
        shutil.rmtree(folder, ignore_errors=True)
