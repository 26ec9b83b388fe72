"""Writing a checkpoint.

A checkpoint is written to a hidden folder, `.step-000120.RUN.tmp`. Every node that stores
parameters writes and syncs its own file there. Then the control node writes the manifest,
syncs it and the folder, renames the folder to `step-000120`, and syncs the folder of
checkpoints. So after a crash there is either a complete checkpoint or a hidden folder.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import ml_dtypes  # noqa: F401  (numpy knows bfloat16 by it)
import numpy as np
import numpy.typing as npt

from placer.checkpoint.manifest import CHUNK, FILE, Manifest, Stored, encode_manifest
from placer.checkpoint.tensor_file import make_header

Array = npt.NDArray[Any]

_WRITE: Final = 4 << 20


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


def pieces_of_file(
    tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> list[memoryview]:
    """Return the bytes of a safetensors file, as views of C-contiguous arrays.

    The same tensors result in the same bytes.
    """
    types = {name: (str(each.dtype), each.shape) for name, each in tensors.items()}
    header, names = make_header(types, metadata)
    flat = (np.ascontiguousarray(tensors[name]).reshape(-1) for name in names)
    return [memoryview(header), *(each.view(np.uint8).data for each in flat)]


def write_pieces(descriptor: int, pieces: Iterable[memoryview]) -> None:
    """Write all bytes to an open file; raises OSError."""
    for piece in pieces:
        for part in cut(piece, _WRITE):
            while part:
                part = part[os.write(descriptor, part) :]


def cut(piece: memoryview, size: int) -> Iterator[memoryview]:
    """Yield a view in parts of `size` bytes; the last one may be shorter."""
    for low in range(0, len(piece), size):
        yield piece[low : low + size]


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
