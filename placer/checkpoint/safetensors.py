"""Opens safetensors files and reads the types of their tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, deserialize, safe_open

from placer.place.types import TensorType
from placer.system.files.regular import check_regular

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
"""The dtypes by their names in the format (github.com/huggingface/safetensors)."""


@contextmanager
def open_tensors(path: Path) -> Iterator[tuple[dict[str, TensorType], Any]]:
    """Open a safetensors file.

    Yields:
        The types of the tensors by name, and the open file. The file is a
        `safetensors.safe_open` of numpy arrays. Import `ml_dtypes` before you read
        bfloat16 from it.

    Raises:
        ValueError: if the file or an array is not valid, or a dtype is not in `DTYPES`.
        OSError: if the file cannot be read.
    """
    check_regular(path)
    try:
        with safe_open(path, framework="np") as file:
            views = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            types = {
                name: _type(name, view.get_dtype(), view.get_shape())
                for name, view in views.items()
            }
            yield types, file
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def parse_types(content: bytes) -> dict[str, TensorType]:
    """Return the types of the tensors in the content of a safetensors file, by name.

    Raises:
        ValueError: if the content is not valid, or a dtype is not in `DTYPES`.
    """
    try:
        tensors = deserialize(content)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    return {name: _type(name, each["dtype"], each["shape"]) for name, each in tensors}


def _type(name: str, word: str, shape: list[int]) -> TensorType:
    if word not in DTYPES:
        raise ValueError(f"'{name}' has the unsupported dtype {word}")
    return TensorType(DTYPES[word], tuple(shape))
