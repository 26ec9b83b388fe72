"""A digest of what Python source computes: of its syntax tree, not of its text.

All versions of Python that can parse the source give it the same digest. `ast.dump` does
not: newer versions have more fields, which are empty in older code.
"""

from __future__ import annotations

import ast
import warnings
from typing import Final

from placer.plan.plan import sha256
from placer.system.ast_lock import AST_LOCK

_IGNORED: Final = {"ctx", "kind"}
"""The context of a name, which follows from its position, and the `u` before a string."""


def code_digest(source: bytes) -> str:
    """Return a digest of the syntax tree of a Python file, without docstrings.

    A file that this version of Python cannot parse is not run; its digest is of the text.
    """
    try:
        with AST_LOCK, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # told where the file is imported
            tree = ast.parse(source)
    except SyntaxError:
        return sha256(source)
    return sha256("\n".join(_words(tree)).encode())


def _words(tree: ast.Module) -> list[str]:
    """Return a tree in prefix notation. A node lists its fields that are not empty, and a
    list its length, so that different trees have different words."""
    words: list[str] = []
    pending: list[object] = [tree]
    while pending:  # a sum of many terms is too deep for recursion
        item = pending.pop()
        if isinstance(item, ast.JoinedStr):  # Python 3.12.1 adds empty strings
            item.values = [each for each in item.values if not _is_empty(each)]
        if isinstance(item, ast.AST):
            word, values = type(item).__name__, []
            for name in item._fields:
                value = None if name in _IGNORED else getattr(item, name, None)
                if isinstance(value, list):
                    value = [each for each in value if not _is_docstring(each)]
                if value is not None and value != []:
                    word += f" {name}"
                    values.append(value)
            words.append(word)
            pending += reversed(values)
        elif isinstance(item, list):
            words.append(f"[{len(item)}]")
            pending += reversed(item)
        else:  # hex, since Python refuses to print very large integers in decimal
            words.append(hex(item) if type(item) is int else ascii(item))
    return words


def _is_docstring(item: object) -> bool:
    """Whether an item is a statement that is only a string."""
    match item:
        case ast.Expr(ast.Constant(str())):
            return True
    return False


def _is_empty(item: ast.expr) -> bool:
    return isinstance(item, ast.Constant) and item.value == ""
