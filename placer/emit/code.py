"""Python statements as text, in the layout of `ruff format`.

A list that does not fit on a line is written with one item on each line and a trailing
comma, which the formatter keeps.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from math import isfinite
from typing import Any

WIDTH = 88
INDENT = "    "


def literal(value: Any) -> str:
    """Return a value as Python source text.

    Takes strings, numbers, booleans, None, and tuples, lists (written as tuples) and
    dicts of them. Raises TypeError for any other type.
    """
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple | list):
        inner = ", ".join(map(literal, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, dict):
        pairs = ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items())
        return "{" + pairs + "}"
    if isinstance(value, float) and not isfinite(value):
        return f'float("{value}")'
    if value is None or isinstance(value, bool | int | float):
        return repr(value).replace("e+", "e")
    raise TypeError(f"{type(value).__name__} cannot be written as a literal")


def format_call(
    targets: Sequence[str], function: str, arguments: Sequence[str], depth: int
) -> list[str]:
    """Return the lines of `targets = function(arguments)`; a bare call without targets.

    `depth` is the number of indentations.
    """
    pad = INDENT * depth
    left = f"{_tuple(targets)} = " if targets else ""
    flat = f"{pad}{left}{function}({', '.join(arguments)})"
    if len(flat) <= WIDTH:
        return [flat]
    opened = f"{pad}{left}{function}("
    if len(opened) <= WIDTH or not targets:
        return [opened, *_items(arguments, depth + 1), f"{pad})"]
    if len(targets) == 1:
        inner = format_call((), function, arguments, depth + 1)
        return [f"{pad}{left}(", *inner, f"{pad})"]
    closing = f"{pad}) = {function}({', '.join(arguments)})"
    head = [f"{pad}(", *_items(targets, depth + 1)]
    if len(closing) <= WIDTH:
        return [*head, closing]
    return [
        *head, f"{pad}) = {function}(", *_items(arguments, depth + 1), f"{pad})"
    ]  # fmt: skip


def format_def(name: str, parameters: Sequence[str], returns: str = "") -> list[str]:
    """Return the lines of a function's `def` statement, without the body."""
    flat = f"def {name}({', '.join(parameters)}){returns}:"
    if len(flat) <= WIDTH:
        return [flat]
    items = [
        f"{INDENT}{item}," if item != "*" else f"{INDENT}*," for item in parameters
    ]
    return [f"def {name}(", *items, f"){returns}:"]


def format_return(values: Sequence[str], depth: int) -> list[str]:
    """Return the lines of `return values`: one value bare, several as a tuple."""
    pad = INDENT * depth
    flat = f"{pad}return {', '.join(values) if len(values) != 1 else values[0]}"
    if len(flat) <= WIDTH:
        return [flat]
    return [f"{pad}return (", *_items(values, depth + 1), f"{pad})"]


def format_del(names: Sequence[str], depth: int) -> list[str]:
    """Return the lines of `del names`."""
    pad = INDENT * depth
    flat = f"{pad}del {', '.join(names)}"
    if len(flat) <= WIDTH:
        return [flat]
    return [f"{pad}del (", *_items(names, depth + 1), f"{pad})"]


def wrap_words(prefix: str, words: Sequence[str]) -> list[str]:
    """Return lines of the words, separated by commas, each line after the prefix."""
    text = ", ".join(words)
    return textwrap.wrap(
        text, WIDTH, initial_indent=prefix, subsequent_indent=prefix,
        break_on_hyphens=False,
    )  # fmt: skip


def _tuple(targets: Sequence[str]) -> str:
    return ", ".join(targets)


def _items(items: Sequence[str], depth: int) -> list[str]:
    return [f"{INDENT * depth}{item}," for item in items]
