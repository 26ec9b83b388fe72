"""The package `ops` of an exported model: copies of modules with its ops' functions.

A copy is byte by byte the installed file. The modules import each other by relative
paths, and otherwise only JAX and NumPy, so that they work without placer. A contract of
`.importlinter` lists them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from placer import ops
from placer.ops.registry import FAMILY_OF

_INSTALLED = Path(ops.__file__).parent
_EXPORTED = "placer.ops.special.exported"


def op_modules(names: Iterable[str]) -> dict[str, bytes]:
    """Return the files of the package `ops`, by their paths in it.

    Args:
        names: the names that the model uses: op kinds, and functions of
            `special/exported_jax.py`.
    """
    modules: dict[PurePosixPath, list[str]] = {}
    for name in sorted(names):
        modules.setdefault(_module_of(name), []).append(name)
    files: dict[str, bytes] = {}
    waiting = [*modules]
    while waiting:
        path = waiting.pop()
        if str(path) not in files:
            content = (_INSTALLED / path).read_bytes()
            files[str(path)] = content
            files[str(path.with_name("__init__.py"))] = b""
            waiting += _imported(path, content)
    lines = [
        f"from .{'.'.join(path.with_suffix('').parts)} import {', '.join(found)}"
        for path, found in sorted(modules.items())
    ]
    head = (
        '"""Functions of ops: copies of modules of placer, which work without'
        ' placer."""'
    )
    files["__init__.py"] = "\n".join([head, "", *lines, ""]).encode()
    return files


def _module_of(name: str) -> PurePosixPath:
    family = FAMILY_OF.get(name, _EXPORTED).removeprefix("placer.ops.")
    return PurePosixPath(*f"{family}_jax".split(".")).with_suffix(".py")


def _imported(path: PurePosixPath, content: bytes) -> Iterator[PurePosixPath]:
    """Yield the paths of the modules that a module of `ops` imports."""
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None
            assert not node.module.startswith("placer"), f"{path} imports placer"
            if node.level:
                folder = path.parents[node.level - 1]
                yield folder.joinpath(*node.module.split(".")).with_suffix(".py")
