"""Finds the Python modules in the folder of a spec that other modules there import."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from types import ModuleType

from placer.compiler.frontend.entries.module_names import reserved_modules
from placer.compiler.frontend.entries.names import explain_invalid_name, is_name
from placer.errors import DataError, nearest
from placer.plan.modules import MAX_MODULE_BYTES
from placer.system.ast_lock import AST_LOCK
from placer.system.files.regular import read_regular


def modules_of(module: str, function: str, folder: Path) -> tuple[str, ...]:
    """Return a module in the folder of a spec, and the modules there that it imports.

    Args:
        module: The name of the module.
        function: The function in the module that the spec names.
        folder: The folder of the spec.

    Raises:
        DataError: A name is invalid, the module is missing, a module is not valid
            Python, or a module has the name of an installed module that nodes import.
    """
    for name in (module, function):
        if not is_name(name):
            message, hint = explain_invalid_name(name)
            raise DataError(message, hint=hint)
    is_there = (folder / f"{module}.py").is_file()
    if module in reserved_modules() and (is_there or module != "__main__"):
        raise DataError(
            f"a module next to the spec cannot be called '{module}'",
            hint=f"node programs would import a different {module}: rename {module}.py",
        )
    if function in NO_FUNCTIONS:
        raise DataError(
            f"a function cannot be called '{function}': "
            + (
                "every module has an attribute of this name"
                if function != "__debug__"
                else "Python reserves it as a constant"
            ),
            hint=f"rename it in {module}.py",
        )
    if not is_there:
        beside = [path.stem for path in folder.glob("*.py")]
        close = nearest(module, beside)
        name = "functions" if module == "__main__" else module
        raise DataError(
            f"{module}.py is not in the folder of the spec",
            hint=f"did you mean '{close}'?"
            if close
            else f"nodes import {name}.py: write '{function}' to this file; in a"
            f" notebook, put %%writefile {name}.py at the top of its cell",
        )
    return (module, *local_imports(folder, module))


def local_imports(folder: Path, module: str) -> tuple[str, ...]:
    """Return the modules in `folder` that `module` imports, directly or indirectly.

    Finds import statements anywhere in a file, but no dynamic imports. Raises DataError
    if a module is not valid Python, or has the name of an installed module that nodes
    import.
    """
    visited = {module}
    pending = [module]
    while pending:
        importing = pending.pop()
        names = _imported_names(folder / f"{importing}.py") - visited
        # Path.is_file would raise an error for a name that is too long.
        local = [name for name in names if os.path.isfile(folder / f"{name}.py")]
        for name in sorted(reserved_modules().intersection(local)):
            raise DataError(
                f"{importing}.py imports '{name}', but nodes would import a different"
                f" module of this name, not {name}.py next to the spec",
                hint=f"rename {name}.py",
            )
        visited.update(local)
        pending.extend(local)
    return tuple(sorted(visited - {module}))


def defined_names(folder: Path, module: str) -> frozenset[str] | None:
    """Return a superset of the names that a module in `folder` defines. Returns None if
    its text does not show all names, as with `from other import *`. Raises DataError if
    the module is not valid Python."""
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
    if not _DYNAMIC.isdisjoint(names):
        return None
    return frozenset(name for name in names if name)


_IMPORT_ATTRIBUTES = [
    "__builtins__",
    "__cached__",
    "__file__",
    "__loader__",
    "__name__",
    "__package__",
    "__path__",
    "__spec__",
]
NO_FUNCTIONS = frozenset({*dir(ModuleType), *_IMPORT_ATTRIBUTES, "__debug__"})
"""Names that a function of a module cannot have."""
_DYNAMIC = {"*", "__getattr__", "globals", "locals", "vars", "setattr", "exec", "sys"}
"""A module that uses one of these names may define names that its text does not
show.
"""


def _imported_names(file: Path) -> set[str]:
    """Return the top-level modules that a file imports: `a` for `import a.b`."""
    names: set[str] = set()
    for node in _nodes(file):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def _nodes(file: Path) -> list[ast.AST]:
    try:
        text = read_regular(file, MAX_MODULE_BYTES).decode()
        with AST_LOCK:
            return list(ast.walk(ast.parse(text, file.name)))
    # The last two are raised for code that is nested too deeply.
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
        kind = "as UTF-8 text" if isinstance(error, UnicodeDecodeError) else "as Python"
        raise DataError(f"{file.name} cannot be read {kind}: {error}") from error
