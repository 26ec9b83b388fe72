"""The modules beside a spec that its sources import, and that a build needs, too."""

from __future__ import annotations

import ast
import os
from pathlib import Path

from placer.ast_lock import AST_LOCK
from placer.build.modules import LARGEST_MODULE
from placer.errors import DataError
from placer.files.regular import read_regular


def neighbours(folder: Path, module: str) -> tuple[str, ...]:
    """The modules of `folder` that one of them imports, directly or through others, by
    name.

    Import statements are found wherever they stand; what a module imports by other
    means is not seen. Raises DataError for a module that cannot be read as Python.
    """
    found = {module}
    ahead = [module]
    while ahead:
        names = _imported(folder / f"{ahead.pop()}.py") - found
        # Not Path.is_file, which raises for a name that is too long.
        beside = [name for name in names if os.path.isfile(folder / f"{name}.py")]
        found.update(beside)
        ahead.extend(beside)
    return tuple(sorted(found - {module}))


def defined(folder: Path, module: str) -> frozenset[str] | None:
    """The names that a module of `folder` may define, and more; None where its text does
    not tell, as with `from other import *`. Raises DataError for a module that cannot be
    read as Python."""
    names: set[str | None] = set()
    for node in _nodes(folder / f"{module}.py"):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Name():
                names.add(node.id)
            case ast.alias():
                names.add(node.asname or node.name.partition(".")[0])
            case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar():
                names.add(node.name)
            case ast.Global():
                names.update(node.names)
    if not _UNTOLD.isdisjoint(names):
        return None
    return frozenset(name for name in names if name)


_UNTOLD = {"*", "__getattr__", "globals", "locals", "vars", "setattr", "exec", "sys"}
"""Names in a module that may define others than its text says."""


def _imported(file: Path) -> set[str]:
    """The first names of what a file imports: `a` of `import a.b` and `from a import b`."""
    names: set[str] = set()
    for node in _nodes(file):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def _nodes(file: Path) -> list[ast.AST]:
    """Everything that a Python file says."""
    try:
        text = read_regular(file, LARGEST_MODULE).decode()
        with AST_LOCK:
            return list(ast.walk(ast.parse(text)))
    # Python's parser has these two for what is nested too deeply.
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
        kind = "as UTF-8 text" if isinstance(error, UnicodeDecodeError) else "as Python"
        raise DataError(f"{file.name} cannot be read {kind}: {error}") from error
