"""Checks the files of initial values: `init: {file: weights.safetensors}`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placer.config.initializers import file_of
from placer.config.safetensors import open_tensors, parse_types
from placer.errors import did_you_mean
from placer.types import TensorType


class WeightFiles:
    """The weight files in the folder of a spec, and those that a program has in memory.

    `contents` has the latter by name. The header of each file is read once.
    """

    def __init__(self, folder: Path, contents: Mapping[str, bytes]) -> None:
        self._folder = folder
        self._contents = contents
        # The tensors of each file, or the message why it cannot be read.
        self._headers: dict[str, dict[str, TensorType] | str] = {}

    def check(
        self, init: Any, name: str, type_: TensorType
    ) -> tuple[str, str | None] | None:
        """Check that a parameter can be initialized from its file.

        Returns None if it can, or if `init` is not a file; else a message and a hint.
        """
        file = file_of(init)
        if file is None:
            return None
        tensors = self._tensors(file)
        if isinstance(tensors, str):
            return tensors, None
        stored = tensors.get(name)
        if stored is None:
            hint = (
                did_you_mean(name, tensors) or "a tensor has the name of its parameter"
            )
            if file in self._contents and (self._folder / file).exists():
                hint = "placer.trace creates a file of this name: rename yours"
            return f"{file} has no tensor '{name}'", hint
        if stored.shape != type_.shape or not stored.is_float:
            return (
                f"{file} has '{name}' as {stored}, and the parameter is {type_}",
                None,
            )
        return None

    def _tensors(self, file: str) -> dict[str, TensorType] | str:
        if file not in self._headers:
            try:
                if file in self._contents:
                    self._headers[file] = parse_types(self._contents[file])
                else:
                    with open_tensors(self._folder / file) as (types, _):
                        self._headers[file] = types
            except FileNotFoundError:
                self._headers[file] = f"there is no {file} beside the spec"
            except (OSError, ValueError) as error:
                self._headers[file] = f"{file} cannot be read as safetensors: {error}"
        return self._headers[file]
