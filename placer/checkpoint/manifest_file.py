"""Writes and reads manifest.json, which contains a digest of its other fields."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

import msgspec

from placer.checkpoint.manifest import FILE, VERSION, Manifest
from placer.checkpoint.manifest_check import check_manifest
from placer.errors import CheckpointError
from placer.system.files.regular import read_regular

_MAX_BYTES: Final = 1 << 28


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the content of manifest.json, including the digest."""
    content = msgspec.json.decode(msgspec.json.encode(manifest))
    content["digest"] = digest_of(content)
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


def digest_of(content: dict[str, Any]) -> str:
    """Return the digest of a manifest: the SHA-256 of all fields except `digest`.

    Fields of other versions count as well.
    """
    rest = {name: value for name, value in content.items() if name != "digest"}
    return hashlib.sha256(msgspec.json.encode(rest)).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint.

    Raises:
        CheckpointError: if the folder is not a checkpoint, needs a newer version of placer,
            or has a damaged manifest.
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
                f"'{folder}' has version {version} of the checkpoint format, but this"
                f" placer reads only versions up to {VERSION}",
                hint="use the version of placer that wrote the checkpoint, or a later one",
            )
        manifest = msgspec.convert(head, Manifest)
        if manifest.digest != ("" if manifest.version == 1 else digest_of(head)):
            raise ValueError("it was changed after it was written: its digest differs")
        check_manifest(manifest)
    except (ValueError, RecursionError) as error:  # msgspec raises ValueErrors
        raise CheckpointError(f"'{file}' is damaged: {error}") from error
    return manifest
