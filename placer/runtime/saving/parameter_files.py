"""Reads and writes files of whole parameters, in the safetensors format."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (adds bfloat16 to numpy)
import numpy as np

from placer.checkpoint.chunked_file import ChunkedFile, Part
from placer.checkpoint.own_checksums import checked_file
from placer.checkpoint.tensor_file import StoredTensor, read_header
from placer.checkpoint.writing import pieces_with_checksums
from placer.errors import DataError, PlacerError
from placer.place.types import ITEM_BYTES, TensorType
from placer.plan.parameter_differences import find_differences
from placer.plan.settings.training.slicing import Block
from placer.system.files.atomic import atomic_file, mode_of
from placer.system.files.nearest_path import path_hint


def save(path: Path, parameters: Mapping[str, np.ndarray]) -> None:
    """Write parameters to a file atomically: readers never see an incomplete file.

    The same parameters always produce the same bytes. The file contains checksums. An
    existing file keeps its mode, and a symbolic link is followed.

    Args:
        path: the file.
        parameters: whole parameters, by name.

    Raises:
        DataError: if the file cannot be written, or `path` is not a regular file.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise DataError(
            f"parameters cannot be written to {path}: it is not a regular file"
        )
    try:
        with atomic_file(path, mode_of(path)) as file:
            # Not with the package safetensors: if killed, it leaves a temporary file behind.
            for piece in pieces_with_checksums(parameters):
                file.write(piece)
    except OSError as error:
        raise DataError(
            f"parameters cannot be written to {path}: {error.strerror}",
            hint="name a file in a folder that exists and has room",
        ) from error


@contextmanager
def file_of_parameters(
    params: str | os.PathLike[str] | Mapping[str, Any], argument: str = "params"
) -> Iterator[Path]:
    """Yield the path of a file with parameters, given a path or a dict of arrays.

    Arrays are written to a temporary file, which is removed at the end. Errors about this file
    name it 'params'; other messages name `argument`. Raises PlacerError if `params` is neither
    a path nor a dict of arrays.
    """
    if isinstance(params, str | os.PathLike):
        yield Path(params)
        return
    arrays = arrays_of(params, argument)
    with tempfile.TemporaryDirectory(prefix="placer-") as folder:
        file = Path(folder) / "params"
        save(file, arrays)
        try:
            yield file
        except DataError as error:
            message = error.message.replace(str(file), "'params'")
            raise type(error)(message, span=error.span, hint=error.hint) from error


def arrays_of(params: Any, argument: str = "params") -> dict[str, np.ndarray]:
    """Return a dict of arrays as NumPy arrays. Raises PlacerError for anything else."""
    if not isinstance(params, Mapping):
        raise PlacerError(
            f"'{argument}' is a {type(params).__name__}, not a path or a dict of arrays",
            hint="pass result.params, the file of save_params, or a checkpoint",
        )
    arrays = {name: np.asarray(value) for name, value in params.items()}
    for name, array in arrays.items():
        if not isinstance(name, str) or str(array.dtype) not in ITEM_BYTES:
            raise PlacerError(
                f"'{argument}' contains {name!r}: {array.dtype}, which is not a parameter",
                hint="pass a dict from parameter names to arrays of numbers, such as"
                " result.params",
            )
    return arrays


class ParameterFile:
    """A file of parameters. The constructor reads only the header.

    Raises DataError if the file cannot be read, or its header is damaged.

    Attributes:
        tensors: the parameters in the file, by name.
    """

    def __init__(self, path: Path) -> None:
        with _errors_of_file(path):
            header = read_header(path)
            self._chunks: ChunkedFile = checked_file(path, header)
        self.tensors: dict[str, StoredTensor] = header.tensors

    def read(self, blocks: Sequence[Block]) -> list[np.ndarray]:
        """Return the elements of each block as a flat array.

        Raises DataError if the file cannot be read, or does not match its checksums.
        """
        parts, arrays = [], []
        for block in blocks:
            tensor = self.tensors[block.parameter]
            out = np.empty(block.numel, tensor.dtype)
            start = tensor.offset + block.start * out.itemsize
            parts.append(Part(start, out.view(np.uint8).data))
            arrays.append(out)
        with _errors_of_file(self._chunks.path):
            self._chunks.read(parts)
        return arrays


def load(path: Path) -> dict[str, np.ndarray]:
    """Return the parameters of a file by name.

    Raises DataError if the file cannot be read, or does not match its checksums.
    """
    file = ParameterFile(path)
    shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
    blocks = [
        Block(name, name, 0, prod(shape), shape) for name, shape in shapes.items()
    ]
    arrays = zip(shapes.items(), file.read(blocks), strict=True)
    return {name: array.reshape(shape) for (name, shape), array in arrays}


@contextmanager
def _errors_of_file(path: Path) -> Iterator[None]:
    """Return a context manager that turns read errors into DataError."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(
            f"the parameter file {path} does not exist",
            hint=path_hint(path) or "write one with --save-params",
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read as parameters: {error}",
            hint="use a safetensors file, such as --save-params writes",
        ) from error


def check(stored: Mapping[str, TensorType], declared: Mapping[str, TensorType]) -> None:
    """Check that stored parameters match the model.

    Args:
        stored: the types of the parameters in a file or checkpoint, by name.
        declared: the types of the model's parameters, by name.

    Raises:
        DataError: if a parameter is missing, is not in the model, or has another shape or
            dtype. The message lists the first ten of them.
    """
    shown = [
        {name: f"{each.dtype}{list(each.shape)}" for name, each in types.items()}
        for types in (stored, declared)
    ]
    problems = find_differences(*shown)
    if problems:
        raise DataError(
            "the parameters do not fit the model: " + "; ".join(problems),
            hint="use a file that --save-params wrote for this model, or a checkpoint of"
            " this model",
        )
