"""The modules beside a spec that its sources import, and that a build needs, too."""

from __future__ import annotations

import ast
import os
from pathlib import Path

from placer.ast_lock import AST_LOCK
from placer.errors import DataError
from placer.modules import LARGEST_MODULE
from placer.regular import read_regular


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


def _imported(file: Path) -> set[str]:
    """The first names of what a file imports: `a` of `import a.b` and `from a import b`."""
    try:
        text = read_regular(file, LARGEST_MODULE).decode()
        with AST_LOCK:
            nodes = list(ast.walk(ast.parse(text)))
    # Python's parser has these two for what is nested too deeply.
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
        kind = "as UTF-8 text" if isinstance(error, UnicodeDecodeError) else "as Python"
        raise DataError(f"{file.name} cannot be read {kind}: {error}") from error
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names
