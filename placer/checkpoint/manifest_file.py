"""Writing and reading manifest.json, which has a digest of itself."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, Final

import msgspec

from placer.checkpoint.manifest import FILE, VERSION, Manifest
from placer.checkpoint.manifest_check import check_manifest, check_values
from placer.errors import CheckpointError
from placer.files.regular import read_regular

_MAX_BYTES: Final = 1 << 28
_WITHOUT_DIGEST: Final = b'\n "digest": ""'
_DIGEST: Final = re.compile(rb'\n "digest": "[^"\n]*"')


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the content of manifest.json, with its digest."""
    bare = msgspec.structs.replace(manifest, digest="")
    return sign(msgspec.json.format(msgspec.json.encode(bare), indent=1) + b"\n")


def sign(content: bytes) -> bytes:
    """Return the content of a manifest with the digest of its other bytes.

    The digest is that of bytes, not of fields: it stays valid if a later version of
    placer adds a field. Raises ValueError for a content without the line of the digest.
    """
    bare, count = _DIGEST.subn(_WITHOUT_DIGEST, content)
    if count != 1:
        raise ValueError("it does not have one line with its digest")
    digest = hashlib.sha256(bare).hexdigest().encode()
    return bare.replace(_WITHOUT_DIGEST, _WITHOUT_DIGEST[:-1] + digest + b'"')


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint.

    Raises CheckpointError if the folder is not a checkpoint that this version of placer
    reads, or if its manifest was changed or is damaged.
    """
    file = folder / FILE
    try:
        content = read_regular(file, _MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(
            f"'{folder}' is not a checkpoint: it has no {FILE}"
        ) from error
    except OSError as error:
        raise CheckpointError(f"'{file}' cannot be read: {error.strerror}") from error
    try:
        head: Any = msgspec.json.decode(content)
        version = head.get("version") if isinstance(head, dict) else None
        if isinstance(version, int) and version > VERSION:
            raise CheckpointError(
                f"'{folder}' has version {version} of the checkpoint format, this"
                f" placer {VERSION} and older",
                hint="use the version of placer that wrote it, or a later one",
            )
        is_signed = version != 1 or "digest" in head
        if is_signed and sign(content) != content:
            raise ValueError("it does not have its digest")
        check_values(head)
        manifest = msgspec.convert(head, Manifest)
        check_manifest(manifest)
    except (ValueError, RecursionError) as error:  # msgspec raises ValueErrors
        raise CheckpointError(f"'{file}' is damaged: {error}") from error
    return manifest


def unsigned_warning(folder: Path, manifest: Manifest) -> str:
    """Return the warning for a manifest of version 1; empty for one with a digest."""
    if manifest.digest:
        return ""
    return (
        f"'{folder / FILE}' has no digest, because placer {manifest.placer} wrote it:"
        " its numbers, such as those of steps and updates, are not verified"
    )
