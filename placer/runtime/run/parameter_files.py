"""Files of whole parameters by name, in safetensors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from placer.config.safetensors import DTYPES, read_tensors
from placer.errors import DataError, did_you_mean
from placer.files.atomic import whole_file

_WORDS = {dtype: word for word, dtype in DTYPES.items()}


def save(path: Path, parameters: Mapping[str, np.ndarray]) -> None:
    """Write the parameters, all or nothing: a reader never sees half a file.

    The same parameters give the same bytes. A file that is there keeps its mode, and one
    that a link leads to is written. DataError where the file cannot be written, or what
    is there is no file.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise DataError(f"parameters cannot be written to {path}: it is not a file")
    try:
        with whole_file(path, _mode(path)) as file:
            _write(file, parameters)
    except OSError as error:
        raise DataError(
            f"parameters cannot be written to {path}: {error.strerror}",
            hint="name a file in a folder that exists and has room",
        ) from error


def _write(file: BinaryIO, parameters: Mapping[str, np.ndarray]) -> None:
    """The safetensors format: the header's length, the header in JSON, all bytes.

    (`safetensors.numpy.save_file` writes through a temporary file of its own, which
    stays when the process is killed.)
    """

    def order(name: str) -> tuple[int, str, str]:
        dtype = parameters[name].dtype
        return -dtype.itemsize, _WORDS[str(dtype)], name

    ordered = {
        name: np.ascontiguousarray(parameters[name]).reshape(-1)
        for name in sorted(parameters, key=order)
    }
    header, at = {}, 0
    for name, flat in ordered.items():
        header[name] = {
            "dtype": _WORDS[str(flat.dtype)],
            "shape": parameters[name].shape,
            "data_offsets": [at, at + flat.nbytes],
        }
        at += flat.nbytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for flat in ordered.values():
        file.write(flat.view(np.uint8).data)


def _mode(path: Path) -> int:
    """The mode of a file that is there, else that of any new file."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask


def load(path: Path) -> dict[str, np.ndarray]:
    """The parameters of a file by name; DataError where it cannot be read."""
    try:
        read_tensors(path)  # which knows the dtypes that there are
        return dict(load_file(path))
    except FileNotFoundError:
        raise DataError(
            f"there is no parameter file {path}",
            hint="write one with --save-params",
        ) from None
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(
            f"{path} cannot be read as parameters: {error}",
            hint="a parameter file is safetensors, as --save-params writes it",
        ) from error


def check(
    found: Mapping[str, np.ndarray],
    declared: Mapping[str, tuple[tuple[int, ...], str]],
) -> None:
    """DataError unless a file's parameters are just those declared.

    `declared` gives each parameter's shape and dtype. The message names every
    parameter that is missing, not declared, or of another shape or dtype.
    """
    problems = []
    for name in sorted({*found, *declared}):
        if name not in found:
            problems.append(f"parameter {name} is missing")
        elif name not in declared:
            hint = did_you_mean(name, set(declared) - set(found) or declared)
            problems.append(f"parameter {name} is not in the model; {hint}")
        else:
            array, (shape, dtype) = found[name], declared[name]
            if (array.shape, str(array.dtype)) != (tuple(shape), dtype):
                problems.append(
                    f"parameter {name} is {array.dtype}{list(array.shape)},"
                    f" the model has {dtype}{list(shape)}"
                )
    if problems:
        raise DataError(
            "the parameters do not fit the model: " + "; ".join(problems),
            hint="use a file that the same model saved with --save-params",
        )
