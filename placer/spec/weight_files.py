"""The files that parameters begin with: `init: {file: weights.safetensors}`."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from placer.config.initializers import file_of
from placer.config.safetensors import Tensor, read_tensors, tensors_of
from placer.errors import did_you_mean
from placer.types import TensorType


class Weights:
    """What the files beside a spec, and those of a program (`given`), hold. Each header
    is read once."""

    def __init__(self, folder: Path, given: Mapping[str, bytes]) -> None:
        self._folder = folder
        self._given = given
        self._known: dict[str, dict[str, Tensor] | str] = {}

    def problem(
        self, init: Any, name: str, kind: TensorType
    ) -> tuple[str, str | None] | None:
        """Why a parameter cannot begin so, and a hint; None where it can, and for every
        initialiser that is no file."""
        file = file_of(init)
        if file is None:
            return None
        found = self._tensors(file)
        if isinstance(found, str):
            return found, None
        tensor = found.get(name)
        if tensor is None:
            hint = did_you_mean(name, found) or "a tensor has the parameter's name"
            if file in self._given and (self._folder / file).exists():
                hint = "what placer.trace traces has a file of this name: name it otherwise"
            return f"{file} has no tensor '{name}'", hint
        there = TensorType(tensor.dtype, tensor.shape)
        if there.shape != kind.shape or not there.is_float:
            return f"{file} has '{name}' as {there}, and the parameter is {kind}", None
        return None

    def _tensors(self, file: str) -> dict[str, Tensor] | str:
        if file not in self._known:
            try:
                if file in self._given:
                    content = self._given[file]
                    self._known[file] = tensors_of(BytesIO(content), len(content))
                else:
                    self._known[file] = read_tensors(self._folder / file)
            except FileNotFoundError:
                self._known[file] = f"there is no {file} beside the spec"
            except (OSError, ValueError) as error:
                self._known[file] = f"{file} cannot be read as safetensors: {error}"
        return self._known[file]
