"""Names in a spec: the rules for valid names, and the place where each is defined."""

from __future__ import annotations

import keyword
import re

from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.tree import ScalarNode, SpecNode
from placer.errors import Span

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
KEY_RULE = "a name has letters, digits and _, and does not start with a digit"
NAME_RULE = (
    "a name has at most 64 letters, digits and _, and does not start with a digit"
)


def is_name(text: str) -> bool:
    """Return True if `text` is a valid name. Names become Python identifiers."""
    return _NAME.fullmatch(text) is not None and not keyword.iskeyword(text)


def is_parameter_key(text: str) -> bool:
    """Return True if an op may call a parameter `text`: a name of any length.

    Parameters of a traced model have the names on their path, which libraries choose.
    """
    return _KEY.fullmatch(text) is not None and not keyword.iskeyword(text)


def explain_invalid_key(text: str) -> tuple[str, str]:
    """Return the message and the hint for an invalid name of a parameter."""
    message, hint = explain_invalid_name(text)
    return message, KEY_RULE if hint == NAME_RULE else hint


def explain_invalid_name(text: str) -> tuple[str, str]:
    """Return the message and the hint for an invalid name."""
    if keyword.iskeyword(text):
        return f"'{text}' is a Python keyword and cannot be a name", f"write {text}_"
    return f"{quote(text)} cannot be a name", NAME_RULE


def quote(text: str) -> str:
    """Quote a text for a message: shortened, with unprintable characters escaped."""
    short = text if len(text) <= 64 else text[:61] + "..."
    return f"'{short}'" if short.isprintable() else repr(short)


class Names:
    """The defined names: one namespace for inputs, ops, results and parameters."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._lines: dict[str, int] = {}
        self._results: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._lines

    def define(self, name: str, span: Span) -> bool:
        """Define a name; report it and return False if it is already defined."""
        first = self._lines.get(name)
        if first is not None:
            message = (
                f"'{name}' is defined twice; the first definition is on line {first}"
            )
            self._problems.add(message, span, "give one of them another name")
            return False
        self._lines[name] = span.line
        return True

    def read(self, node: SpecNode, what: str) -> str | None:
        """Return the name in a node, or report the error and return None."""
        hint = None
        if isinstance(node, ScalarNode):
            hint = f"quote it: '{node.text}'" if is_name(node.text) else NAME_RULE
        scalar = self._problems.expect(node, ScalarNode, f"{what} must be a name", hint)
        return scalar.text if scalar and self.check(scalar.text, scalar) else None

    def read_result(self, node: SpecNode, op: str) -> str | None:
        """Define and return the name of a result of `op`; None after an error. One
        result may have the name of the op."""
        text = self.read(node, "an output")
        if text == op and op not in self._results:
            self._results.add(op)
            return op
        return text if text and self.define(text, node.span) else None

    def check(self, text: str, node: ScalarNode) -> bool:
        """Return True if `text` is a valid name; otherwise report it at `node`."""
        if is_name(text):
            return True
        message, hint = explain_invalid_name(text)
        self._problems.add(message, node.inner_span, hint)
        return False
