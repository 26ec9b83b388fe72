"""What a launcher sends to a node on another machine: the key of the run and the build."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from placer.build.folder import is_inside, read_file
from placer.build.plan import FILE, SOURCES, Plan, read_plan, read_sources
from placer.build.write import write_build
from placer.channel.keys import Key
from placer.errors import BuildError, PlacerError
from placer.memory.caches import usable_folder, user_cache

MAX_BYTES: Final = 1 << 30
"""Bytes of a delivery at most."""
MAX_KEPT: Final = 20
"""The number of delivered builds that stay in the user's cache."""


class Delivery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The secret of the run in hexadecimal, the digest of the build's plan, and the text
    of each of its files by path."""

    secret: str
    digest: str
    files: dict[str, str]

    def __repr__(self) -> str:
        return f"<Delivery of the build {self.digest}>"  # without the secret

    @property
    def key(self) -> Key:
        return Key(bytes.fromhex(self.secret))


def write_delivery(build: Path, plan: Plan, key: Key) -> bytes:
    """Return the bytes that deliver a build and the key of its run: a line with the
    length of the rest, which is JSON.

    The spec of the build is named by its absolute path, which the other machine may have
    too.
    """
    sources = read_sources(build)
    spec = str((build / sources.spec).resolve())
    moved = msgspec.json.encode(msgspec.structs.replace(sources, spec=spec))
    files = {SOURCES: moved, FILE: read_file(build, FILE)}
    for path, digest in plan.files.items():
        files[path] = read_file(build, path, digest)
    texts = {path: content.decode() for path, content in files.items()}
    delivery = Delivery(key.secret.hex(), plan.digest, texts)
    content = msgspec.json.encode(delivery)
    return b"%d\n%b" % (len(content), content)


def read_delivery(fd: int) -> Delivery:
    """Read a delivery from a descriptor, and no more. Raises PlacerError if there is
    none."""
    try:
        with open(fd, "rb", buffering=0, closefd=False) as file:
            nbytes = int(file.readline(16))
            content = bytearray()
            while nbytes <= MAX_BYTES and len(content) < nbytes:
                part = file.read(nbytes - len(content))
                if not part:
                    break
                content += part
        # msgspec raises ValueErrors.
        return msgspec.json.decode(content, type=Delivery)
    except ValueError:  # it could quote the secret
        raise PlacerError(
            "standard input has no build",
            hint="`placer launch BUILD --hosts FILE` starts nodes like this",
        ) from None


def unpack(delivery: Delivery) -> Path:
    """Write the delivered build to the user's cache, unless it is there, and return its
    folder.

    Raises BuildError if it is not the build that was sent.
    """
    for path in delivery.files:
        if not is_inside(path):
            raise BuildError(f"'{path}' is outside of the build that was sent")
    files = {path: text.encode() for path, text in delivery.files.items()}
    digest = hashlib.sha256(msgspec.json.encode(delivery.files)).hexdigest()
    with _locked(_builds()) as builds:
        folder = builds / digest[:32]
        try:
            plan = read_plan(folder)
            os.utime(folder)
        except BuildError:  # it is new, or was not completely written
            _prune(builds)
            write_build(folder, files)
            plan = read_plan(folder)
    if plan.digest != delivery.digest:
        raise BuildError(
            f"the build in '{folder}' is not the one that was sent: its digest is"
            f" {plan.digest}, not {delivery.digest}"
        )
    return folder


def _builds() -> Path:
    """Return the folder of delivered builds."""
    cache = user_cache()
    temporary = Path(tempfile.gettempdir()) / f"placer-{os.getuid()}"
    for base in (cache, temporary):
        if found := usable_folder(base and base / "builds"):
            return found
    raise PlacerError(
        "there is no folder for the build", hint="name one with PLACER_CACHE"
    )


@contextmanager
def _locked(builds: Path) -> Iterator[Path]:
    """Lock the folder of builds: nodes of one machine start at the same time."""
    lock = os.open(builds / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
