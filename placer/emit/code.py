"""Python statements as text, in the layout of `ruff format`.

Arguments that do not fit on a line are written on the next line, or one on each line with
a trailing comma, which the formatter keeps.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from math import isfinite
from typing import Any, NamedTuple

WIDTH = 100
INDENT = "    "
_CONSTRUCTED = re.compile(r"(\w+=\w+)\(([\w.*\[\], ]+)\)\Z")
"""An argument such as `h1=Fc(h1_w, h1_b)`."""


class Line(NamedTuple):
    """A line of a program, and what an error there is about: the name of a function of
    the program, then names of ops of the spec."""

    text: str
    about: tuple[str, ...] = ()


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
        return [opened, *_arguments(arguments, depth + 1), f"{pad})"]
    if len(targets) == 1:
        inner = format_call((), function, arguments, depth + 1)
        return [f"{pad}{left}(", *inner, f"{pad})"]
    closing = f"{pad}) = {function}({', '.join(arguments)})"
    head = [f"{pad}(", *_items(targets, depth + 1)]
    if len(closing) <= WIDTH:
        return [*head, closing]
    return [
        *head, f"{pad}) = {function}(", *_arguments(arguments, depth + 1), f"{pad})"
    ]  # fmt: skip


def format_def(name: str, parameters: Sequence[str]) -> list[str]:
    """Return the lines of a function's `def` statement, without the body."""
    flat = f"def {name}({', '.join(parameters)}):"
    if len(flat) <= WIDTH:
        return [flat]
    return [f"def {name}(", *_arguments(parameters, 1), "):"]


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


def add_comment(lines: Sequence[str], note: str) -> list[str]:
    """Return a statement with a comment after it, or before it if the line would be too
    long."""
    last = f"{lines[-1]}  # {note}"
    if len(last) <= WIDTH or lines[-1].strip() == ")":
        return [*lines[:-1], last]
    pad = lines[-1][: len(lines[-1]) - len(lines[-1].lstrip())]
    return [*wrap_words(f"{pad}# ", [note]), *lines]


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
    """One item a line; one that makes a namedtuple and is too long is divided."""
    lines: list[str] = []
    for item in items:
        line = f"{INDENT * depth}{item},"
        nested = _CONSTRUCTED.match(item) if len(line) > WIDTH else None
        if nested is None:
            lines.append(line)
        else:
            inner = _arguments(nested[2].split(", "), depth + 1)
            lines += [f"{INDENT * depth}{nested[1]}(", *inner, f"{INDENT * depth}),"]
    return lines


def _arguments(arguments: Sequence[str], depth: int) -> list[str]:
    """On a line of their own where they fit, else one a line."""
    flat = f"{INDENT * depth}{', '.join(arguments)}"
    return [flat] if len(flat) <= WIDTH else _items(arguments, depth)
