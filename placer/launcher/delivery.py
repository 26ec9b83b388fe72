"""The data that a launcher sends to a node on another machine: the key of the run and the
build."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from placer.channel.keys import RunKey
from placer.errors import BuildError, PlacerError
from placer.plan.folder import read_file
from placer.plan.plan import FILE, SOURCES, Plan, read_sources
from placer.plan.received_builds import keep_build

MAX_BYTES: Final = 1 << 30
"""The largest size of a delivery in bytes."""


class Delivery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The data for a node on another machine.

    Attributes:
        secret: the secret key of the run.
        digest: the digest of the plan of the build.
        files: the content of each file of the build, by path.
    """

    secret: bytes
    digest: str
    files: dict[str, bytes]

    def __repr__(self) -> str:
        return f"<Delivery of the build {self.digest}>"  # must not show the secret


def write_delivery(build: Path, plan: Plan, key: RunKey) -> bytes:
    """Return the bytes that deliver a build and the key of its run.

    Format: a line with the length of the rest, then msgpack.

    Raises:
        BuildError: if the build has more than `MAX_BYTES`.
    """
    files = build_files(build, plan)
    content = msgspec.msgpack.encode(Delivery(key.secret, plan.digest, files))
    if len(content) > MAX_BYTES:
        raise BuildError(
            f"'{build}' has {len(content):,} bytes, which is too large to send "
            "to other machines"
        )
    return b"%d\n%b" % (len(content), content)


def build_files(build: Path, plan: Plan) -> dict[str, bytes]:
    """Return the content of each file of a build, by path. The spec has its absolute
    path, because another machine may have the same file. Raises BuildError if the build
    was edited."""
    sources = read_sources(build)
    spec = str((build / sources.spec).resolve())
    moved = msgspec.json.encode(msgspec.structs.replace(sources, spec=spec))
    files = {SOURCES: moved, FILE: read_file(build, FILE)}
    for path, digest in plan.files.items():
        files[path] = read_file(build, path, digest)
    return files


def read_delivery(fd: int) -> Delivery:
    """Read exactly one delivery from a descriptor. Raises PlacerError if the delivery
    is missing or incomplete."""
    with open(fd, "rb", buffering=0, closefd=False) as file:
        line = file.readline(16)
        is_length = line.endswith(b"\n") and line[:-1].isdigit()
        if not is_length or not 0 < int(line) <= MAX_BYTES:
            raise _no_build()
        content = bytearray()
        while rest := int(line) - len(content):
            part = file.read(rest)
            if not part:
                raise PlacerError("standard input ended before the end of the build")
            content += part
    try:
        return msgspec.msgpack.decode(content, type=Delivery)
    except ValueError:  # Errors of msgspec could quote the secret.
        raise _no_build() from None


def _no_build() -> PlacerError:
    return PlacerError(
        "standard input does not contain a build",
        hint="use `placer launch BUILD --hosts FILE`, which starts nodes this way",
    )


def unpack(delivery: Delivery) -> Path:
    """Write the delivered build to the user's cache, if it is missing; return its folder.

    Raises the errors of `keep_build`.
    """
    return keep_build(delivery.files, delivery.digest)
