"""The headers of safetensors files: which tensors a file has, and where they are.

The package `safetensors` reads and writes whole tensors, and its writer leaves a
temporary file behind if the process is killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Final

from placer.checkpoint.safetensors import DTYPES
from placer.place.types import ITEM_BYTES
from placer.system.files.regular import open_regular

MAX_HEADER: Final = 100 << 20
"""The largest header that is read, in bytes: that of the format."""
_METADATA: Final = "__metadata__"
_MAX_RANK: Final = 32
_DTYPE_WORDS = {dtype: word for word, dtype in DTYPES.items()}


def make_header(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    metadata: Mapping[str, str] | None = None,
    *,
    in_order: bool = False,
) -> tuple[bytes, list[str]]:
    """Return the header of a safetensors file, and the names of its tensors in the order
    in which their bytes follow it.

    `tensors` has the dtype and the shape of each. The same tensors result in the same
    header: they are ordered by the size of their dtype, then by name, unless they are
    `in_order`.
    """

    def order(name: str) -> tuple[int, str, str]:
        dtype, _ = tensors[name]
        return -ITEM_BYTES[dtype], _DTYPE_WORDS[dtype], name

    header: dict[str, Any] = {}
    if metadata:
        header[_METADATA] = dict(metadata)
    at = 0
    names = [*tensors] if in_order else sorted(tensors, key=order)
    for name in names:
        dtype, shape = tensors[name]
        end = at + ITEM_BYTES[dtype] * prod(shape)
        header[name] = {
            "dtype": _DTYPE_WORDS[dtype],
            "shape": shape,
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, names


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: its dtype and shape, and where its bytes are."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a file: its entries as they are in JSON, its tensors by name, where
    their bytes begin, the size of the file, and its metadata, which are texts by name."""

    entries: dict[str, Any]
    tensors: dict[str, StoredTensor]
    start: int
    size: int
    metadata: dict[str, str]


def read_header(path: Path) -> Header:
    """Return the header of a safetensors file.

    Raises ValueError for a file that is not valid, and OSError.
    """
    with open_regular(path) as file:
        return parse_header(file, os.fstat(file.fileno()).st_size)


def parse_header(file: BinaryIO, size: int) -> Header:
    """Return the header of an open file of `size` bytes. Raises ValueError as
    `read_header`."""
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(MAX_HEADER, size - 8):
        raise ValueError("it has no safetensors header")
    try:
        header = json.loads(file.read(length))
    except RecursionError as error:
        raise ValueError("its header is too deep") from error
    if not isinstance(header, dict):
        raise ValueError("its header is not a mapping")
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(
        isinstance(text, str) for text in metadata.values()
    ):
        raise ValueError("its metadata are not texts by name")
    start = 8 + length
    tensors = {name: _stored(name, each, start) for name, each in header.items()}
    _check_complete(tensors.values(), start, size)
    return Header(header, tensors, start, size, metadata)


def _stored(name: str, entry: Any, data: int) -> StoredTensor:
    try:
        dtype = DTYPES[entry["dtype"]]
        shape = tuple(map(_size, entry["shape"]))
        low, high = map(_size, entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its entry of '{name}' is not valid") from error
    # numpy has no array of more, not even an empty one.
    if (
        len(shape) > _MAX_RANK
        or ITEM_BYTES[dtype] * prod(max(n, 1) for n in shape) >= 1 << 63
    ):
        raise ValueError(f"its entry of '{name}' is not the shape of an array")
    nbytes = ITEM_BYTES[dtype] * prod(shape)
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
