"""Files of whole parameters by name, in the safetensors format."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (numpy knows bfloat16 by it)
import numpy as np

from placer.checkpoint.chunked_file import ChunkedFile, Part
from placer.checkpoint.own_checksums import checked_file
from placer.checkpoint.tensor_file import StoredTensor, read_header
from placer.checkpoint.writing import pieces_with_checksums
from placer.errors import DataError, PlacerError, did_you_mean
from placer.place.types import ITEM_BYTES, TensorType
from placer.plan.settings.training.slicing import Block
from placer.system.files.atomic import atomic_file, mode_of
from placer.system.files.nearest_path import path_hint


def save(path: Path, parameters: Mapping[str, np.ndarray]) -> None:
    """Write parameters to a file, atomically: a reader never sees a part of a file.

    The same parameters result in the same bytes. The file has checksums of itself. An existing file keeps its mode, and a
    link is followed.

    Args:
        path: the file.
        parameters: whole parameters, by name.

    Raises:
        DataError: if the file cannot be written, or `path` is not a regular file.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise DataError(f"parameters cannot be written to {path}: it is not a file")
    try:
        with atomic_file(path, mode_of(path)) as file:
            # The package safetensors leaves a temporary file behind if it is killed.
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
    """Yield the path of parameters: the one that is given, or that of a file with the
    arrays of a dict, which is removed at the end. Errors name it 'params'.

    `argument` is the name of the argument that gives them, for messages.

    Raises PlacerError for anything else, and for a dict of anything else.
    """
    if isinstance(params, str | os.PathLike):
        yield Path(params)
        return
    if not isinstance(params, Mapping):
        raise PlacerError(
            f"'{argument}' is a {type(params).__name__}, not a path or a dict of arrays",
            hint="give result.params, the file of save_params, or a checkpoint",
        )
    arrays = {name: np.asarray(value) for name, value in params.items()}
    for name, array in arrays.items():
        if not isinstance(name, str) or str(array.dtype) not in ITEM_BYTES:
            raise PlacerError(
                f"'{argument}' has {name!r}: {array.dtype}, which is not a parameter",
                hint="give arrays of numbers by the names of parameters, such as"
                " result.params",
            )
    with tempfile.TemporaryDirectory(prefix="placer-") as folder:
        file = Path(folder) / "params"
        save(file, arrays)
        try:
            yield file
        except DataError as error:
            message = error.message.replace(str(file), "'params'")
            raise type(error)(message, span=error.span, hint=error.hint) from error


class ParameterFile:
    """A file of parameters whose header has been read.

    `tensors` says which parameters it has. Raises DataError if it cannot be read, or is
    damaged as far as that shows without its values.
    """

    def __init__(self, path: Path) -> None:
        with _errors_of_file(path):
            header = read_header(path)
            self._chunks: ChunkedFile = checked_file(path, header)
        self.tensors: dict[str, StoredTensor] = header.tensors

    def read(self, blocks: Sequence[Block]) -> list[np.ndarray]:
        """Return the elements of blocks of parameters, flat.

        Raises DataError if the file cannot be read, or its checksums show a change.
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
    """Return the parameters of a file by name; DataError if it cannot be read, or if its
    checksums show a change."""
    file = ParameterFile(path)
    shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
    blocks = [
        Block(name, name, 0, prod(shape), shape) for name, shape in shapes.items()
    ]
    arrays = zip(shapes.items(), file.read(blocks), strict=True)
    return {name: array.reshape(shape) for (name, shape), array in arrays}


@contextmanager
def _errors_of_file(path: Path) -> Iterator[None]:
    """Return a context in which a file is read; it raises DataError if that fails."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(
            f"there is no parameter file {path}",
            hint=path_hint(path) or "write one with --save-params",
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read as parameters: {error}",
            hint="a parameter file is safetensors, as --save-params writes it",
        ) from error


def check(stored: Mapping[str, TensorType], declared: Mapping[str, TensorType]) -> None:
    """Check that the parameters of a file or checkpoint are those of the model.

    Args:
        stored: the types of its parameters, by name.
        declared: those of the parameters of the model.

    Raises:
        DataError: naming every parameter that is missing, that is not in the model, or
            that has another shape or dtype.
    """
    problems = []
    for name in sorted({*stored, *declared}):
        if name not in stored:
            problems.append(f"parameter {name} is missing")
        elif name not in declared:
            hint = did_you_mean(name, set(declared) - set(stored) or declared)
            problems.append(f"parameter {name} is not in the model; {hint}")
        elif stored[name] != declared[name]:
            found, wanted = stored[name], declared[name]
            problems.append(
                f"parameter {name} is {found.dtype}{list(found.shape)},"
                f" the model has {wanted.dtype}{list(wanted.shape)}"
            )
    if problems:
        raise DataError(
            "the parameters do not fit the model: " + "; ".join(problems),
            hint="use a file that the same model saved with --save-params, or a"
            " checkpoint of it",
        )
