"""Files with initial values: `init: {file: weights.safetensors}`, or a checkpoint."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path

from placer.checkpoint.choice import candidates, last_good
from placer.checkpoint.own_checksums import check_content
from placer.checkpoint.safetensors import open_tensors, parse_types
from placer.checkpoint.tensor_file import make_header, parse_header
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.model import Model
from placer.errors import (
    BuildError,
    CheckpointError,
    CheckpointWarning,
    DataError,
    did_you_mean,
)
from placer.place.types import TensorType
from placer.plan.settings.mistake import Mistake
from placer.plan.settings.training.initializers import (
    Init,
    file_in_build,
    file_of,
    is_checkpoint,
)
from placer.system.callsite import warn_at_caller
from placer.system.files.regular import open_regular


class WeightFiles:
    """The files with initial values in the folder of a spec or in memory.

    Reads the header of each file once.

    Args:
        contents: Files in memory, by name.
    """

    def __init__(self, folder: Path, contents: Mapping[str, bytes]) -> None:
        self._folder = folder
        self._contents = contents
        # The tensors of each file, or a message if the file cannot be read.
        self._headers: dict[str, dict[str, TensorType] | str] = {}

    def check(self, init: Init, name: str, type_: TensorType) -> Mistake | None:
        """Return the mistake if a parameter cannot start from its file; None if it can.
        Also returns None if `init` is not a file."""
        file = file_of(init)
        if file is None:
            return None
        tensors = self._tensors(file)
        if isinstance(tensors, str):
            return Mistake(("init",), tensors)
        stored = tensors.get(name)
        if stored is None:
            hint = (
                did_you_mean(name, tensors)
                or "a tensor must have the name of its parameter"
            )
            if file in self._contents and (self._folder / file).exists():
                hint = "placer.trace creates a file of this name: rename your file"
            return Mistake(("init",), f"{file} has no tensor '{name}'", hint)
        fits = stored.is_float if type_.is_float else stored.dtype == type_.dtype
        if stored.shape != type_.shape or not fits:
            message = f"'{name}' in {file} is {stored}, but the parameter is {type_}"
            return Mistake(("init",), message)
        return None

    def _tensors(self, file: str) -> dict[str, TensorType] | str:
        if file not in self._headers:
            try:
                if file in self._contents:
                    self._headers[file] = parse_types(self._contents[file])
                elif is_checkpoint(file):
                    self._headers[file] = _checkpoint_types(self._folder / file)
                else:
                    with open_tensors(self._folder / file) as (types, _):
                        self._headers[file] = types
            except FileNotFoundError:
                self._headers[file] = f"{file} is not in the folder of the spec"
            except CheckpointError as error:
                self._headers[file] = error.message
            except (OSError, ValueError) as error:
                self._headers[file] = f"{file} cannot be read as safetensors: {error}"
        return self._headers[file]


def read_weight_files(model: Model) -> dict[str, bytes]:
    """Return the files with initial values: their paths in the build, and contents.

    A checkpoint becomes one safetensors file with the parameters that start from it.

    Raises:
        BuildError: A file cannot be read.
        DataError: A file is damaged, or a parameter has a value that is not finite.
    """
    parameters: dict[str, list[Op]] = defaultdict(list)
    for op in model.graph.parameters:
        if (file := file_of(op.attrs["init"])) is not None:
            parameters[file].append(op)
    files: dict[str, bytes] = {}
    for file, ops in parameters.items():
        try:
            if file in model.files:
                content = model.files[file]
            elif is_checkpoint(file):
                content = _read_checkpoint(model.folder / file, [op.name for op in ops])
            else:
                with open_regular(model.folder / file) as opened:
                    content = opened.read()
        except OSError as error:
            raise BuildError(f"'{file}' cannot be read: {error.strerror}") from error
        check_content(file, content)
        if model.settings.train.nan == "stop":
            _check_finite(model.graph, file, content, ops)
        if files.setdefault(file_in_build(file), content) is not content:
            raise BuildError(
                "two files with initial values have the same name in the build:"
                f" {file_in_build(file)}",
                hint=f"rename '{file}'",
            )
    return files


def _check_finite(
    graph: Graph, file: str, content: bytes, parameters: Iterable[Op]
) -> None:
    # Imported here: the compiler needs numpy only to read values.
    from placer.checkpoint.finite import HINT, find_not_finite, read_array

    tensors = parse_header(BytesIO(content), len(content)).tensors
    for op in parameters:
        dtype = graph.tensor_type(op.name).dtype
        values = {op.name: read_array(content, tensors[op.name], dtype)}
        if problem := find_not_finite(values):
            raise DataError(f"{file}: {problem}", span=op.source, hint=HINT)


def _checkpoint_types(path: Path) -> dict[str, TensorType]:
    """Return the types of the parameters in a checkpoint. In a folder of checkpoints,
    the newest one with a readable manifest is used. Raises CheckpointError."""
    checkpoint = next(candidates(path, warn=lambda _: None))
    return {
        name: TensorType(stored.dtype, stored.shape)
        for name, stored in checkpoint.manifest.parameters.items()
    }


def _read_checkpoint(path: Path, names: Sequence[str]) -> bytes:
    """Return some parameters of a checkpoint as safetensors. Raises CheckpointError."""

    def warn(text: str) -> None:
        warn_at_caller(text, CheckpointWarning)

    checkpoint = last_good(path, warn)
    stored = checkpoint.manifest.parameters
    if missing := [name for name in names if name not in stored]:
        raise CheckpointError(
            f"'{checkpoint.folder}' has no parameter '{missing[0]}'",
            hint=did_you_mean(missing[0], stored),
        )
    header, order = make_header({n: (stored[n].dtype, stored[n].shape) for n in names})
    return header + b"".join(map(checkpoint.read_whole, order))
