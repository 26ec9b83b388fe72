"""Reads and writes the headers of safetensors files.

The package `safetensors` is not used here, because it reads and writes only whole tensors.
If killed, its writer also leaves a temporary file behind.
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
"""The largest header in bytes. The format has the same limit."""
_METADATA: Final = "__metadata__"
_MAX_RANK: Final = 32
_DTYPE_WORDS = {dtype: word for word, dtype in DTYPES.items()}


def make_header(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    metadata: Mapping[str, str] | None = None,
    *,
    in_order: bool = False,
) -> tuple[bytes, list[str]]:
    """Make the header of a safetensors file.

    The same tensors always produce the same header.

    Args:
        tensors: the dtype and the shape of each tensor, by name.
        metadata: the metadata of the file.
        in_order: keep the order of `tensors`. By default they are sorted by the size of
            their dtype, then by name.

    Returns:
        The header, and the names of the tensors in the order of their data.
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
    """A tensor in a file.

    Attributes:
        dtype: the dtype.
        shape: the shape.
        offset: the position of the first byte in the file.
        nbytes: the number of bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a safetensors file.

    Attributes:
        entries: the entries of the tensors as decoded from JSON.
        tensors: the tensors by name.
        start: the position of the first tensor's data in the file.
        size: the size of the file in bytes.
        metadata: the metadata, strings by name.
    """

    entries: dict[str, Any]
    tensors: dict[str, StoredTensor]
    start: int
    size: int
    metadata: dict[str, str]


def read_header(path: Path) -> Header:
    """Read the header of a safetensors file.

    Raises:
        ValueError: if the file is not valid.
        OSError: if the file cannot be read.
    """
    with open_regular(path) as file:
        return parse_header(file, os.fstat(file.fileno()).st_size)


def parse_header(file: BinaryIO, size: int) -> Header:
    """Read the header of an open safetensors file of `size` bytes.

    Raises:
        ValueError: if the file is not valid.
    """
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(MAX_HEADER, size - 8):
        raise ValueError("it has no safetensors header")
    try:
        header = json.loads(file.read(length))
    except RecursionError as error:
        raise ValueError("its header is nested too deeply") from error
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(
        isinstance(text, str) for text in metadata.values()
    ):
        raise ValueError("its metadata are not strings by name")
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
        raise ValueError(f"the header entry of '{name}' is not valid") from error
    # numpy rejects larger shapes even for empty arrays.
    if (
        len(shape) > _MAX_RANK
        or ITEM_BYTES[dtype] * prod(max(n, 1) for n in shape) >= 1 << 63
    ):
        raise ValueError(f"the header entry of '{name}' has an invalid shape")
    nbytes = ITEM_BYTES[dtype] * prod(shape)
    if high - low != nbytes:
        raise ValueError(f"the header entry of '{name}' has a wrong number of bytes")
    return StoredTensor(dtype, shape, data + low, nbytes)


def _size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def _check_complete(tensors: Iterable[StoredTensor], at: int, size: int) -> None:
    """Check that the tensors fill the rest of the file without gaps."""
    for tensor in sorted(tensors, key=lambda each: (each.offset, each.nbytes)):
        if tensor.offset != at:
            raise ValueError("its tensors overlap or have gaps between them")
        at += tensor.nbytes
    if at != size:
        raise ValueError(f"it has {size} bytes, but its header needs {at}")
