"""The tensors of a safetensors file, as its header says: no value is read."""

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
"""The words of the format (github.com/huggingface/safetensors) for dtypes."""

LONGEST = 100_000_000
"""Bytes of a header, as the format bounds it."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: its values lie at byte `at` of the file, in C order."""

    dtype: str
    shape: tuple[int, ...]
    at: int


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name; OSError, or ValueError for what is no such file."""
    with open_regular(path) as file:
        return tensors_of(file, os.fstat(file.fileno()).st_size)


def tensors_of(file: BinaryIO, size: int) -> dict[str, Tensor]:
    """The tensors of a file of so many bytes, which is read from its beginning.
    ValueError for what is no safetensors file."""
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= min(LONGEST, size - 8):
        raise ValueError("it has no header of safetensors")
    header = _header(file.read(length))
    begin = 8 + length
    return {
        name: _tensor(name, entry, begin, size)
        for name, entry in header.items()
        if name != "__metadata__"
    }


class _Entry(msgspec.Struct):
    """What a header says of a tensor; the format's own checks are in `_tensor`."""

    dtype: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    data_offsets: tuple[int, int]


def _header(text: bytes) -> dict[str, msgspec.Raw]:
    try:
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (RecursionError, ValueError) as error:  # msgspec's own are ValueErrors
        raise ValueError(f"its header is no mapping: {error}") from error


def _tensor(name: str, text: msgspec.Raw, begin: int, size: int) -> Tensor:
    try:
        entry = msgspec.json.decode(text, type=_Entry)
        dtype = DTYPES[entry.dtype]
    except (KeyError, RecursionError, ValueError) as error:
        raise ValueError(f"its header does not describe '{name}': {error}") from error
    first, last = entry.data_offsets
    if last - first != prod(entry.shape) * ITEM_BYTES[dtype] or not 0 <= first <= last:
        raise ValueError(f"'{name}' does not have as many bytes as its shape")
    if begin + last > size:
        raise ValueError(f"it ends before '{name}' does")
    return Tensor(dtype, entry.shape, begin + first)
