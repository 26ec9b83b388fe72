"""Writes Python statements in the layout of `ruff format`.

Arguments that do not fit on a line go on the next line. If they do not fit there either,
each argument has a line, with a trailing comma.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

WIDTH = 100
INDENT = "    "
About = tuple[str, ...]
"""The names in an error message for a line: a function of the program, then ops of the spec."""


class Line(NamedTuple):
    """A line of a program, with the names for its error messages."""

    text: str
    about: About = ()


class Expression(Struct, frozen=True):
    """A Python expression, such as `p.h1.w`.

    Attributes:
        text: the text of the expression, without its items.
        variable: the variable in the expression; empty for a number.
        items: expressions in brackets after the text: `Fc(w, b)`.
        brackets: the opening and the closing bracket.
    """

    text: str
    variable: str = ""
    items: tuple[Expression, ...] = ()
    brackets: tuple[str, str] = ("(", ")")

    def __str__(self) -> str:
        if not self.items:
            return self.text
        opening, closing = self.brackets
        return f"{self.text}{opening}{', '.join(map(str, self.items))}{closing}"

    def after(self, prefix: str) -> Expression:
        """Return the expression with a prefix: `loss=`."""
        return replace(self, text=f"{prefix}{self.text}")

    @property
    def variables(self) -> Iterator[str]:
        """The variables of the expression and its items, in order."""
        if self.variable:
            yield self.variable
        for item in self.items:
            yield from item.variables


Argument = str | Expression


class Call(Struct, frozen=True):
    """The statement `targets = function(arguments).attribute  # note`.

    Attributes:
        function: the function.
        arguments: the arguments of the function.
        targets: the variables for the result.
        is_tuple: whether the call returns a tuple, which a single target unpacks.
        note: the text of the comment.
        is_above: whether the comment is above the statement, for this and similar ones.
        about: the names in an error message for the statement.
        is_returned: whether the statement returns the result.
        attribute: an attribute of the result, such as `.values`.
    """

    function: str
    arguments: Sequence[Argument]
    targets: Sequence[str] = ()
    is_tuple: bool = False
    note: str = ""
    about: About = ()
    is_returned: bool = False
    is_above: bool = False
    attribute: str = ""

    @property
    def reads(self) -> Iterator[str]:
        """The variables that the statement reads, in order."""
        for argument in self.arguments:
            if isinstance(argument, Expression):
                yield from argument.variables

    def lines(self, depth: int) -> list[Line]:
        """Return the lines of the statement, indented `depth` times."""
        texts = self._texts(depth)
        if self.note and self.is_above:
            texts = [*wrap_comment([self.note], depth), *texts]
        elif self.note:
            texts = add_comment(texts, self.note)
        return [Line(text, self.about) for text in texts]

    def _texts(self, depth: int) -> list[str]:
        pad, targets, call = INDENT * depth, self.targets, f"{self.function}("
        closing = f"){self.attribute}"
        left = f"{', '.join(targets)} = " if targets else ""
        if self.is_tuple and len(targets) == 1:
            left = f"({targets[0]},) = "
        if self.is_returned:
            left = "return "
        if len(f"{pad}{left}{call}") <= WIDTH or not targets:
            return bracketed(f"{left}{call}", self.arguments, closing, depth)
        if len(targets) == 1:
            inner = bracketed(call, self.arguments, closing, depth + 1)
            return [f"{pad}{left}(", *inner, f"{pad})"]
        assigned = [f"{pad}{INDENT}{target}," for target in targets]
        called = bracketed(f") = {call}", self.arguments, closing, depth)
        return [f"{pad}(", *assigned, *called]


def bracketed(
    opening: str,
    items: Sequence[Argument],
    closing: str,
    depth: int,
    *,
    one_each: bool = False,
) -> list[str]:
    """Return the lines of items in brackets: one line if the items fit.

    With `one_each`, items that do not fit on one line have a line each.
    """
    pad, flat = INDENT * depth, ", ".join(map(str, items))
    if len(whole := f"{pad}{opening}{flat}{closing}") <= WIDTH:
        return [whole]
    inner = [f"{pad}{INDENT}{flat}"]
    if one_each or len(inner[0]) > WIDTH:
        inner = [line for item in items for line in _item(item, depth + 1)]
    return [f"{pad}{opening}", *inner, f"{pad}{closing}"]


def _item(item: Argument, depth: int) -> list[str]:
    if isinstance(item, Expression) and item.items:
        opening, closing = item.brackets
        return bracketed(f"{item.text}{opening}", item.items, f"{closing},", depth)
    return [f"{INDENT * depth}{item},"]


def listed(keyword: str, names: Sequence[str], depth: int) -> list[str]:
    """Return the lines of `return names` or `del names`."""
    flat = f"{INDENT * depth}{keyword} {', '.join(names)}"
    if len(flat) <= WIDTH:
        return [flat]
    return bracketed(f"{keyword} (", names, ")", depth, one_each=True)


def literal(value: Any) -> str:
    """Return the Python source text of a plain value; a list becomes a tuple.

    Raises TypeError for a value of another type.
    """
    if isinstance(value, str):
        escaped = value.encode("unicode_escape").decode()
        return '"' + escaped.replace('"', '\\"') + '"'
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


def wrap_comment(words: Sequence[str], depth: int) -> list[str]:
    """Return the lines of a comment that lists words, separated by commas."""
    prefix = f"{INDENT * depth}# "
    return textwrap.wrap(
        ", ".join(words), WIDTH, initial_indent=prefix, subsequent_indent=prefix,
        break_on_hyphens=False,
    )  # fmt: skip


def add_comment(lines: Sequence[str], note: str) -> list[str]:
    """Return a statement with a comment at its end, or on a line before if it is too long."""
    last = f"{lines[-1]}  # {note}"
    if len(last) <= WIDTH:
        return [*lines[:-1], last]
    depth = (len(lines[-1]) - len(lines[-1].lstrip())) // len(INDENT)
    return [*wrap_comment([note], depth), *lines]
