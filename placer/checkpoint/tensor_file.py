"""Writing safetensors files, and the positions of the tensors in them.

The package `safetensors` writes whole files of arrays that are all in memory, and leaves
a temporary file behind if the process is killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ml_dtypes  # noqa: F401  (numpy knows bfloat16 by it)
import numpy as np
import numpy.typing as npt

from placer.config.safetensors import DTYPES
from placer.files.regular import open_regular

Array = npt.NDArray[Any]

MAX_HEADER: Final = 100 << 20
"""The largest header that is read, in bytes: that of the format."""
_WRITE: Final = 4 << 20
_DTYPE_WORDS = {dtype: word for word, dtype in DTYPES.items()}


def pieces_of_file(
    tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> list[memoryview]:
    """Return the bytes of a safetensors file, as views of C-contiguous arrays.

    The same tensors result in the same bytes: they are ordered by the size of their
    dtype, then by name.
    """

    def order(name: str) -> tuple[int, str, str]:
        dtype = tensors[name].dtype
        return -dtype.itemsize, _DTYPE_WORDS[str(dtype)], name

    header: dict[str, Any] = {}
    if metadata:
        header["__metadata__"] = dict(metadata)
    views, at = [], 0
    for name in sorted(tensors, key=order):
        array = tensors[name]
        flat = np.ascontiguousarray(array).reshape(-1)
        header[name] = {
            "dtype": _DTYPE_WORDS[str(array.dtype)],
            "shape": array.shape,
            "data_offsets": [at, at + flat.nbytes],
        }
        at += flat.nbytes
        views.append(flat.view(np.uint8).data)
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [memoryview(len(text).to_bytes(8, "little") + text), *views]


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


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: its dtype and shape, and where its bytes are."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file by name, without reading them.

    Raises ValueError for a file that is not valid, and OSError.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(MAX_HEADER, size - 8):
            raise ValueError("it has no safetensors header")
        try:
            header = json.loads(file.read(length))
        except RecursionError as error:
            raise ValueError("its header is too deep") from error
    if not isinstance(header, dict):
        raise ValueError("its header is not a mapping")
    header.pop("__metadata__", None)
    tensors = {name: _stored(name, each, 8 + length) for name, each in header.items()}
    _check_complete(tensors.values(), 8 + length, size)
    return tensors


def _stored(name: str, entry: Any, data: int) -> StoredTensor:
    try:
        dtype = DTYPES[entry["dtype"]]
        shape = tuple(map(_size, entry["shape"]))
        low, high = map(_size, entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its entry of '{name}' is not valid") from error
    nbytes = np.dtype(dtype).itemsize
    for size in shape:
        nbytes *= size
    if high - low != nbytes:
        raise ValueError(f"its entry of '{name}' has the wrong number of bytes")
    return StoredTensor(dtype, shape, data + low, nbytes)


def _size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def _check_complete(tensors: Iterable[StoredTensor], at: int, size: int) -> None:
    """Check that tensors follow each other without gaps up to the end of the file."""
    for tensor in sorted(tensors, key=lambda each: (each.offset, each.nbytes)):
        if tensor.offset != at:
            raise ValueError("its tensors overlap or have gaps between them")
        at += tensor.nbytes
    if at != size:
        raise ValueError(f"it has {size} bytes, and its header needs {at}")
