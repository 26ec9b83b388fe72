"""Names: what may be one, and where each was first defined."""

from __future__ import annotations

import keyword
import re

from placer.config.checks import shown
from placer.errors import Span
from placer.spec.problems import Problems
from placer.spec.tree import Node, Scalar

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
RULE = "a name is letters, digits and _, at most 64, and does not begin with a digit"


def is_name(text: str) -> bool:
    """Whether `text` may name a thing: it becomes an identifier of a program (R7)."""
    return _NAME.fullmatch(text) is not None and not keyword.iskeyword(text)


def why_not(text: str) -> tuple[str, str]:
    """What is wrong with a text that is no name, and a hint."""
    if keyword.iskeyword(text):
        return f"'{text}' is a word of Python and cannot be a name", f"write {text}_"
    return f"{quoted(text)} cannot be a name", RULE


def quoted(text: str) -> str:
    """A text in a message: cut when long, and with nothing that does not print."""
    short = text if len(text) <= 64 else text[:61] + "..."
    return f"'{short}'" if short.isprintable() else repr(short)


class Names:
    """The names defined so far; one namespace for inputs, ops, outputs, parameters."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._lines: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._lines

    def define(self, name: str, span: Span) -> bool:
        """Take a name; False, with the mistake told, when it is taken."""
        first = self._lines.get(name)
        if first is not None:
            message = f"'{name}' is defined twice; first on line {first}"
            self._problems.add(message, span)
            return False
        self._lines[name] = span.line
        return True

    def read(self, node: Node, what: str) -> str | None:
        """The name that a node spells, or None with the mistake told."""
        if not isinstance(node, Scalar) or not isinstance(node.value, str):
            hint = f"quote it: '{node.text}'" if isinstance(node, Scalar) else None
            if isinstance(node, Scalar) and not is_name(node.text):
                hint = RULE
            message = f"{what} must be a name, not {shown(node.value)}"
            self._problems.add(message, node.span, hint)
            return None
        return node.value if self.check(node.value, node) else None

    def check(self, text: str, node: Scalar) -> bool:
        """Whether a text may be a name; tells the mistake at `node` when not."""
        if is_name(text):
            return True
        message, hint = why_not(text)
        self._problems.add(message, node.inside, hint)
        return False
