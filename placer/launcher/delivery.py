"""What a launcher sends to a node on another machine: the secret of the run, the build."""

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

from placer.build.folder import is_inside, read_file
from placer.build.plan import FILE, SOURCES, Plan, read_plan, read_sources
from placer.build.write import write_build
from placer.channel.keys import RunKey
from placer.errors import BuildError, PlacerError
from placer.memory.caches import usable_folder, user_cache

MAX_BYTES: Final = 1 << 30
"""Bytes of a delivery at most."""
MAX_KEPT: Final = 20
"""The number of delivered builds that stay in the user's cache."""
_HINT: Final = "PLACER_CACHE names another folder for placer's files on this machine"


class Delivery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The secret of the run, the digest of the build's plan, and the content of each of
    its files by path."""

    secret: bytes
    digest: str
    files: dict[str, bytes]

    def __repr__(self) -> str:
        return f"<Delivery of the build {self.digest}>"  # without the secret


def write_delivery(build: Path, plan: Plan, key: RunKey) -> bytes:
    """Return the bytes that deliver a build and the key of its run: a line with the
    length of the rest, which is msgpack.

    Raises BuildError for a build of more than `MAX_BYTES`.
    """
    files = build_files(build, plan)
    content = msgspec.msgpack.encode(Delivery(key.secret, plan.digest, files))
    if len(content) > MAX_BYTES:
        raise BuildError(
            f"'{build}' has {len(content):,} bytes, too many to send to other machines"
        )
    return b"%d\n%b" % (len(content), content)


def build_files(build: Path, plan: Plan) -> dict[str, bytes]:
    """Return the content of each file of a build by its path.

    The spec of the build is named by its absolute path, which another machine may have
    too. Raises BuildError for a build that was edited.
    """
    sources = read_sources(build)
    spec = str((build / sources.spec).resolve())
    moved = msgspec.json.encode(msgspec.structs.replace(sources, spec=spec))
    files = {SOURCES: moved, FILE: read_file(build, FILE)}
    for path, digest in plan.files.items():
        files[path] = read_file(build, path, digest)
    return files


def read_delivery(fd: int) -> Delivery:
    """Read a delivery from a descriptor, and no more. Raises PlacerError if there is
    none, or a part of one."""
    with open(fd, "rb", buffering=0, closefd=False) as file:
        line = file.readline(16)
        is_length = line.endswith(b"\n") and line[:-1].isdigit()
        if not is_length or not 0 < int(line) <= MAX_BYTES:
            raise _no_build()
        content = bytearray()
        while rest := int(line) - len(content):
            part = file.read(rest)
            if not part:
                raise PlacerError("standard input has ended before all of the build")
            content += part
    try:
        return msgspec.msgpack.decode(content, type=Delivery)
    except ValueError:  # msgspec's errors, which could quote the secret
        raise _no_build() from None


def _no_build() -> PlacerError:
    return PlacerError(
        "standard input has no build",
        hint="`placer launch BUILD --hosts FILE` starts nodes like this",
    )


def unpack(delivery: Delivery) -> Path:
    """Write the delivered build to the user's cache, unless it is there, and return its
    folder.

    Raises BuildError if it is not the build that was sent, PlacerError if it cannot be
    written.
    """
    for path in delivery.files:
        if not is_inside(path):
            raise BuildError(f"'{path}' is outside of the build that was sent")
    digest = hashlib.sha256(msgspec.msgpack.encode(delivery.files)).hexdigest()
    with _locked(_builds()) as builds:
        folder = builds / digest[:32]
        try:
            plan = read_plan(folder)
            os.utime(folder)
        except BuildError:  # it is new, or was not completely written
            _prune(builds)
            plan = _write(folder, delivery.files)
    if plan.digest != delivery.digest:
        raise BuildError(
            f"the build in '{folder}' is not the one that was sent: its digest is"
            f" {plan.digest}, not {delivery.digest}"
        )
    return folder


def _write(folder: Path, files: Mapping[str, bytes]) -> Plan:
    try:
        write_build(folder, files)
    except BuildError as error:
        raise BuildError(error.message, hint=_HINT) from error
    return read_plan(folder)


def _builds() -> Path:
    """Return the folder of delivered builds."""
    temporary = Path(tempfile.gettempdir()) / f"placer-{os.getuid()}"
    for base in (user_cache(), temporary):
        # Whoever can rename the folder above it could replace the builds.
        if (found := usable_folder(base)) and (
            found := usable_folder(found / "builds")
        ):
            return found
    raise PlacerError("no folder for the build can be used", hint=_HINT)


@contextmanager
def _locked(builds: Path) -> Iterator[Path]:
    """Lock the folder of builds: nodes of one machine start at the same time."""
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
    """Remove the builds that were least recently used; never raise. A node has read its
    build when it has started."""
    used: list[tuple[float, Path]] = []
    for folder in builds.iterdir():
        with suppress(OSError):
            if folder.is_dir():
                used.append((folder.stat().st_mtime, folder))
    for _, folder in sorted(used, reverse=True)[MAX_KEPT - 1 :]:
        shutil.rmtree(folder, ignore_errors=True)
