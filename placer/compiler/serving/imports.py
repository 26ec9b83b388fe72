"""The imports of an exported file, in the order of isort."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from sys import stdlib_module_names


def import_lines(imports: Iterable[str], own: Iterable[str] = ()) -> list[str]:
    """Return sorted imports: standard library, packages, the model's `own` modules."""
    lines = sorted(
        join_imports(imports),
        key=lambda line: (line.startswith("from"), line.split()[1]),
    )
    groups = [
        [line for line in lines if _package(line) in stdlib_module_names],
        [line for line in lines if _package(line) not in stdlib_module_names],
        sorted(own),
    ]
    joined: list[str] = []
    for group in filter(None, groups):
        joined += ["", *group] if joined else group
    return joined


def join_imports(imports: Iterable[str]) -> list[str]:
    """Merge the imports of each module into one statement."""
    names: dict[str, dict[str, None]] = {}
    for text in sorted({*imports}):
        start, _, listed = text.partition(" import ")
        names.setdefault(start, {}).update(
            dict.fromkeys(filter(None, listed.split(", ")))
        )
    return [
        f"{start} import {', '.join(sorted(each))}" if each else start
        for start, each in names.items()
    ]


def bound_names(imports: Iterable[str]) -> set[str]:
    """Return the names that imports define."""
    aliases = [alias for text in imports for alias in _aliases(text)]
    return {each.asname or each.name.partition(".")[0] for each in aliases}


def _aliases(text: str) -> list[ast.alias]:
    (statement,) = ast.parse(text).body
    assert isinstance(statement, ast.Import | ast.ImportFrom)
    return statement.names


def _package(line: str) -> str:
    return line.split()[1].partition(".")[0]
