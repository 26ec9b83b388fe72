"""Computes a digest of the syntax tree of Python source, which ignores comments and layout.

All versions of Python that can parse the source compute the same digest. `ast.dump` cannot
be used: newer versions print additional empty fields.
"""

from __future__ import annotations

import ast
import hashlib
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from placer.plan.plan import sha256
from placer.system.ast_lock import AST_LOCK

_IGNORED: Final = {"ctx", "kind"}
"""Ignored fields: the context of a name, which follows from its position, and the prefix
`u` of a string."""
_BODIES: Final = {"body", "orelse", "finalbody"}
"""Fields that contain lists of statements."""


def code_digest(source: bytes) -> str:
    """Return a digest of the syntax tree of a Python file, without docstrings.

    If this version of Python cannot parse the file, the result is a digest of the text.
    """
    try:
        with AST_LOCK, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the import of the file shows the warnings
            tree = ast.parse(source)
    except SyntaxError:
        return sha256(source)
    digest, words, separator = hashlib.sha256(), _words(tree), ""
    while some := [*islice(words, 1 << 16)]:
        digest.update((separator + "\n".join(some)).encode())
        separator = "\n"
    return digest.hexdigest()


def _words(tree: ast.Module) -> Iterator[str]:
    # Prefix notation. Each node lists its fields that are not empty, and each list its
    # length. Different trees therefore have different words.
    fields: dict[type[ast.AST], list[str]] = {}
    pending: list[Any] = [tree]
    while pending:  # no recursion: the tree of a long sum is too deep
        item = pending.pop()
        kind = type(item)
        if kind is str:
            yield ascii(item)
        elif kind is list:
            yield f"[{len(item)}]"
            pending += item[::-1]
        elif isinstance(item, ast.AST):
            if isinstance(item, ast.JoinedStr):  # Python 3.12.1 adds empty strings here
                item.values = [each for each in item.values if not _is_empty(each)]
            if kind not in fields:
                names = reversed(kind._fields)
                fields[kind] = [name for name in names if name not in _IGNORED]
            word = ""
            for name in fields[kind]:
                value = getattr(item, name, None)
                if type(value) is list:
                    if name in _BODIES:
                        value = [each for each in value if not _is_docstring(each)]
                    value = value or None
                if value is not None:
                    word = f" {name}{word}"
                    pending.append(value)
            yield kind.__name__ + word
        else:  # hex, because Python refuses to print very large integers in decimal
            yield hex(item) if kind is int else ascii(item)


def _is_docstring(item: object) -> bool:
    """Whether an item is a statement that consists of a string."""
    return (
        type(item) is ast.Expr
        and isinstance(item.value, ast.Constant)
        and isinstance(item.value.value, str)
    )


def _is_empty(item: ast.expr) -> bool:
    return isinstance(item, ast.Constant) and item.value == ""
