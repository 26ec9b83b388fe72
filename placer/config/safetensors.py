"""Reading the headers of safetensors files: the tensors, without their values."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from placer.files.regular import open_regular
from placer.types import ITEM_BYTES

DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
}
"""The names of dtypes in the format (github.com/huggingface/safetensors)."""

MAX_HEADER_BYTES = 100_000_000
"""The largest size of a header, in bytes, as the format defines it."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor: its values start at byte `offset` of the file, in C order."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


def read_tensors(path: Path) -> dict[str, TensorEntry]:
    """Return the tensors of a file, by name.

    Raises ValueError for a file that is not a valid safetensors file, and OSError.
    """
    with open_regular(path) as file:
        return parse_tensors(file, os.fstat(file.fileno()).st_size)


def parse_tensors(file: BinaryIO, size: int) -> dict[str, TensorEntry]:
    """Return the tensors of an open file of `size` bytes, by name.

    Reads from the current position, the start of the file. Raises ValueError if it is
    not a valid safetensors file.
    """
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= min(MAX_HEADER_BYTES, size - 8):
        raise ValueError("it has no safetensors header")
    header = _parse_header(file.read(length))
    start = 8 + length
    return {
        name: _parse_tensor(name, entry, start, size)
        for name, entry in header.items()
        if name != "__metadata__"
    }


class _Entry(msgspec.Struct):
    """The header's entry of a tensor; `_parse_tensor` checks its consistency."""

    dtype: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    data_offsets: tuple[int, int]


def _parse_header(text: bytes) -> dict[str, msgspec.Raw]:
    try:
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (RecursionError, ValueError) as error:  # msgspec raises ValueErrors
        raise ValueError(f"its header is not a mapping: {error}") from error


def _parse_tensor(name: str, text: msgspec.Raw, start: int, size: int) -> TensorEntry:
    try:
        entry = msgspec.json.decode(text, type=_Entry)
        dtype = DTYPES[entry.dtype]
    except (KeyError, RecursionError, ValueError) as error:
        raise ValueError(f"its header does not describe '{name}': {error}") from error
    first, last = entry.data_offsets
    if last - first != prod(entry.shape) * ITEM_BYTES[dtype] or not 0 <= first <= last:
        raise ValueError(f"'{name}' does not have the number of bytes of its shape")
    if start + last > size:
        raise ValueError(f"it ends before the end of '{name}'")
    return TensorEntry(dtype, entry.shape, start + first)
