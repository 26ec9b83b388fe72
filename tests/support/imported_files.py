"""Runs Python files as modules, and programs of this folder with other constants."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent


def import_file(file: Path) -> Any:
    """Run a file as a module of its own, which is not in `sys.modules`."""
    spec = importlib.util.spec_from_file_location(f"plain_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def load_program(name: str) -> Any:
    """Run a program of this folder once."""
    return import_file(FOLDER / f"{name}.py")


def write_program(
    folder: Path, name: str, rows: Mapping[str, np.ndarray], **constants: Any
) -> Path:
    """Write a program of this folder as `model.py`, with its rows, to a new folder.

    `constants` are other values of the constants that are before the first class or function.
    """
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    head, rest = text.split("\n\n\n", 1)
    for key in constants:
        assert re.search(rf"^[A-Z_, ]*\b{key}\b.* = ", head, re.M), key
    lines = "".join(f"{key} = {value!r}\n" for key, value in constants.items())
    folder.mkdir()
    (folder / "model.py").write_text(f"{head}\n{lines}\n\n{rest}")
    np.savez(folder / "rows.npz", **rows)
    return folder / "model.py"
