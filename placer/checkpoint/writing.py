"""Writes a checkpoint atomically.

A checkpoint is written to a hidden folder, `.step-000120.RUN.tmp`. Every node that stores
parameters writes and syncs its own file there. Then the control node writes and syncs the
manifest and the folder, renames the folder to `step-000120`, and syncs the folder of
checkpoints. A crash therefore leaves either a complete checkpoint or a hidden folder.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import ml_dtypes  # noqa: F401  (adds bfloat16 to numpy)
import numpy as np
import numpy.typing as npt

from placer.checkpoint.manifest import CHUNK, FILE, Manifest, Stored
from placer.checkpoint.manifest_file import encode_manifest
from placer.checkpoint.own_checksums import checksums_metadata
from placer.checkpoint.tensor_file import make_header
from placer.errors import CheckpointError
from placer.system.files.atomic import sync_folder

Array = npt.NDArray[Any]

_WRITE: Final = 4 << 20


def temporary_folder(folder: Path, step: int, run: str) -> Path:
    """Return the hidden folder to which a run writes the checkpoint of a step."""
    return folder / f".step-{step:06d}.{run}.tmp"


def write_tensors(
    temporary: Path, name: str, tensors: Mapping[str, npt.NDArray[Any]]
) -> Stored:
    """Write tensors to a file of a checkpoint, and sync the file to disk.

    Creates the temporary folder if necessary. Checksums are computed while the file is
    written.

    Raises OSError if the file cannot be written.
    """
    pieces = pieces_of_file(tensors)
    with ThreadPoolExecutor(1, "placer checksums") as pool:
        stored = pool.submit(describe_file, pieces)
        write_file(temporary, name, pieces)
        return stored.result()


def write_file(temporary: Path, name: str, pieces: Iterable[memoryview]) -> None:
    """Write bytes to a file of a checkpoint, and sync the file to disk; may raise OSError."""
    temporary.mkdir(exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    descriptor = os.open(temporary / name, flags, 0o666)
    try:
        write_pieces(descriptor, pieces)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_stream(
    temporary: Path, name: str, groups: Iterable[Sequence[memoryview]]
) -> Stored:
    """Write groups of bytes to a file of a checkpoint, and sync the file to disk.

    A group must not change until the next group is requested. May raise OSError.
    """
    temporary.mkdir(exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    descriptor = os.open(temporary / name, flags, 0o666)
    try:
        stored = copy_stream(descriptor, groups)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return stored


def copy_stream(descriptor: int, groups: Iterable[Sequence[memoryview]]) -> Stored:
    """Write groups of bytes to an open file; return the size and the checksums.

    Another thread computes the checksums while the file is written. May raise OSError.
    """
    checksums = _Checksums()
    with ThreadPoolExecutor(1, "placer checksums") as pool:
        for group in groups:
            computed = pool.submit(checksums.add, group)
            write_pieces(descriptor, group)
            computed.result()
    return checksums.stored()


def spool(groups: Iterable[Sequence[memoryview]]) -> tuple[Stored, memoryview]:
    """Write groups of bytes to a temporary file; return its size, checksums and bytes."""
    with tempfile.TemporaryFile() as file:
        stored = copy_stream(file.fileno(), groups)
        if not stored.nbytes:
            return stored, memoryview(b"")
        content = mmap.mmap(file.fileno(), stored.nbytes, access=mmap.ACCESS_READ)
    return stored, memoryview(content)


def map_file(path: Path) -> memoryview:
    """Return the bytes of a file, which is mapped into memory; may raise OSError."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def describe_file(pieces: Sequence[memoryview]) -> Stored:
    """Return the size and the checksums of a file that consists of these pieces."""
    return Stored(sum(map(len, pieces)), compute_checksums(pieces))


def compute_checksums(pieces: Sequence[memoryview]) -> tuple[int, ...]:
    """Return the CRC-32 of each `CHUNK` bytes of the joined pieces."""
    checksums = _Checksums()
    checksums.add(pieces)
    return checksums.stored().checksums


class _Checksums:
    def __init__(self) -> None:
        self._complete: list[int] = []
        self._at = self._checksum = 0

    def add(self, pieces: Iterable[memoryview]) -> None:
        for piece in pieces:
            while piece:
                part = piece[: CHUNK - self._at]
                self._checksum = zlib.crc32(part, self._checksum)
                self._at += len(part)
                piece = piece[len(part) :]
                if self._at == CHUNK:
                    self._complete.append(self._checksum)
                    self._at = self._checksum = 0

    def stored(self) -> Stored:
        last = (self._checksum,) if self._at else ()
        nbytes = len(self._complete) * CHUNK + self._at
        return Stored(nbytes, (*self._complete, *last))


def commit(folder: Path, temporary: Path, manifest: Manifest) -> Path:
    """Write the manifest, rename the folder to its final name, and return its path.

    All files of the checkpoint must already be on disk.

    Raises OSError if the manifest cannot be written or the folder cannot be renamed, and
    CheckpointError if a file is missing: on a file system without locks, another process that
    began to use the folder may have removed it.
    """
    if missing := [name for name in manifest.files if not (temporary / name).exists()]:
        raise CheckpointError(
            f"{missing[0]} was removed before the checkpoint was complete"
        )
    content = encode_manifest(manifest)
    write_file(temporary, FILE, [memoryview(content)])
    sync_folder(temporary)
    name, number = f"step-{manifest.progress.step:06d}", 1
    target = folder / name
    # The name is taken if the run resumed from an earlier step and saved this step before.
    while target.exists() or target.is_symlink():
        number += 1
        target = folder / f"{name}-{number}"
    temporary.rename(target)
    sync_folder(folder)
    return target


def discard(temporary: Path) -> None:
    """Remove the temporary folder of an incomplete checkpoint."""
    shutil.rmtree(temporary, ignore_errors=True)


def pieces_of_file(tensors: Mapping[str, Array]) -> list[memoryview]:
    """Return the bytes of a safetensors file, as views of C-contiguous arrays.

    The same tensors always produce the same bytes.
    """
    types = {name: (str(each.dtype), each.shape) for name, each in tensors.items()}
    header, names = make_header(types)
    flat = (np.ascontiguousarray(tensors[name]).reshape(-1) for name in names)
    return [memoryview(header), *(each.view(np.uint8).data for each in flat)]


def pieces_with_checksums(tensors: Mapping[str, Array]) -> list[memoryview]:
    """Return the bytes of a safetensors file with checksums in its metadata."""
    plain, *values = pieces_of_file(tensors)
    metadata = checksums_metadata(
        json.loads(bytes(plain[8:])), compute_checksums(values)
    )
    types = {name: (str(each.dtype), each.shape) for name, each in tensors.items()}
    header, _ = make_header(types, metadata)
    return [memoryview(header), *values]


def write_pieces(descriptor: int, pieces: Iterable[memoryview]) -> None:
    """Write all bytes to an open file; raise OSError if that fails."""
    for piece in pieces:
        for part in cut(piece, _WRITE):
            while part:
                part = part[os.write(descriptor, part) :]


def cut(piece: memoryview, size: int) -> Iterator[memoryview]:
    """Yield parts of `size` bytes of a view; the last part may be shorter."""
    for low in range(0, len(piece), size):
        yield piece[low : low + size]
