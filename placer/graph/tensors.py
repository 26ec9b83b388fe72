"""The tensors of a safetensors file, as its header says: no value is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from placer.graph.types import ITEM_BYTES

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
    with path.open("rb") as file:
        return tensors_of(file, path.stat().st_size)


def tensors_of(file: BinaryIO, size: int) -> dict[str, Tensor]:
    """The tensors of a file of so many bytes, which is read from its beginning.
    ValueError for what is no safetensors file."""
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= min(LONGEST, size - 8):
        raise ValueError("it has no header of safetensors")
    header = json.loads(file.read(length))
    if not isinstance(header, Mapping):
        raise ValueError("its header is no mapping")
    begin = 8 + length
    return {
        name: _tensor(name, said, begin, size)
        for name, said in header.items()
        if name != "__metadata__"
    }


def _tensor(name: str, said: Any, begin: int, size: int) -> Tensor:
    try:
        dtype, shape = DTYPES[said["dtype"]], tuple(map(int, said["shape"]))
        first, last = map(int, said["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"its header says nothing that is known of '{name}'"
        ) from error
    if last - first != prod(shape) * ITEM_BYTES[dtype] or not 0 <= first <= last:
        raise ValueError(f"'{name}' does not have as many bytes as its shape")
    if begin + last > size:
        raise ValueError(f"it ends before '{name}' does")
    return Tensor(dtype, shape, begin + first)
