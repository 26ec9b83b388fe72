"""Defines the manifest of a publication, which is written last."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from placer.checkpoint.manifest import Stored
from placer.errors import CheckpointError
from placer.plan.settings.fields import Count, Size
from placer.system.files.regular import read_regular

VERSION: Final = 1
FILE: Final = "manifest.json"
PARAMETERS: Final = "params.safetensors"
_MAX_BYTES: Final = 1 << 26
_END: Final = b'"digest": ""\n}\n'
FileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(?!\n)$")]
"""The name of a file of a publication."""


class PublishedTable(Struct, frozen=True):
    """The part of a sparse table in a publication.

    Attributes:
        dim: the number of values of a row.
        dtype: the dtype of the rows.
        files: the files of rows: `key` and `row`.
        removed_files: the files of removed keys: `key`.
        rows: the number of rows of all files.
        removed: the number of removed keys.
    """

    dim: Count
    dtype: str
    files: tuple[FileName, ...]
    removed_files: tuple[FileName, ...]
    rows: Size
    removed: Size


def merged(parts: Iterable[PublishedTable]) -> PublishedTable:
    """Return a table whose parts several nodes have written."""
    first, *others = parts
    for each in others:
        first = PublishedTable(
            first.dim,
            first.dtype,
            (*first.files, *each.files),
            (*first.removed_files, *each.removed_files),
            first.rows + each.rows,
            first.removed + each.removed,
        )
    return first


class Publication(Struct, frozen=True, kw_only=True):
    """The content of manifest.json.

    Attributes:
        version: the version of the format.
        number: the number of the publication, from 1. It has no gaps.
        id: a random text.
        before: the number of the publication before; None for the first one.
        before_id: its id; empty for the first one.
        base: the number of its base; its own number if it is a base.
        step: the step of the run.
        epoch: the epoch or pass of the step.
        newest: the time of the newest event that was trained, in seconds since 1970; None if
            the model has no times.
        written: the time of writing, in seconds since 1970.
        code: the SHA-256 of `code.json`.
        tables: the sparse tables, by name.
        files: all files.
        digest: the SHA-256 of the text of the manifest, with an empty digest.
    """

    number: Count
    id: str
    before: Count | None
    before_id: str
    base: Count
    step: Size
    epoch: Size
    newest: float | None
    written: float
    code: str
    tables: dict[str, PublishedTable]
    files: dict[FileName, Stored]
    version: Count = VERSION
    digest: str = ""

    @property
    def is_base(self) -> bool:
        """Whether the publication has all rows."""
        return self.base == self.number

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{'base' if self.is_base else 'delta'}-{self.number:06d}"


def encode(publication: Publication) -> bytes:
    """Return the content of manifest.json. The digest is that of the text without it."""
    plain = msgspec.json.encode(msgspec.structs.replace(publication, digest=""))
    text = msgspec.json.format(plain, indent=1) + b"\n"
    head, end = text[: -len(_END)], text[-len(_END) :]
    assert end == _END
    digest = hashlib.sha256(text).hexdigest().encode()
    return head + _END.replace(b'""', b'"' + digest + b'"')


def read_publication(folder: Path) -> Publication:
    """Read the manifest of a publication.

    Raises CheckpointError if it cannot be read, is damaged, or needs a newer version of placer.
    """
    file = folder / FILE
    try:
        text = read_regular(file, _MAX_BYTES)
        content: Any = msgspec.json.decode(text)
        version = content.get("version") if isinstance(content, dict) else None
        if isinstance(version, int) and version > VERSION:
            raise CheckpointError(
                f"'{folder}' has version {version} of the format of publications, but"
                f" this placer reads only versions up to {VERSION}",
                hint="use the version of placer that wrote it, or a later one",
            )
        publication = msgspec.convert(content, Publication)
        if encode(publication) != text:
            raise ValueError("it was changed after it was written: its digest differs")
        if publication.folder != folder.name:
            raise ValueError(f"it is the manifest of {publication.folder}")
    except OSError as error:
        raise CheckpointError(f"'{file}' cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # msgspec raises ValueErrors
        raise CheckpointError(f"'{file}' is damaged: {error}") from error
    return publication
