"""Collects the errors of a spec, and raises them together in file order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from msgspec import Struct, structs

from placer.compiler.frontend.yaml.tree import (
    MappingNode,
    ScalarNode,
    SequenceNode,
    SpecNode,
)
from placer.errors import PlacerError, Span, SpecError, SpecErrors
from placer.plan.settings.checks import describe_value
from placer.plan.settings.mistake import Mistake, MistakeError

T = TypeVar("T")
Settings = TypeVar("Settings", bound=Struct)
Node = TypeVar("Node", ScalarNode, SequenceNode, MappingNode)

MAX_REPORTED = 50
"""The largest number of errors in one report."""


class Problems:
    """The independent errors of one spec.

    Attributes:
        unreadable: Errors of single scalars, such as a number that needs over 64 bits.
    """

    def __init__(self, unreadable: Iterable[SpecError] = ()) -> None:
        self._errors = list(unreadable)
        self._unreadable = {_position(error) for error in self._errors}

    def __bool__(self) -> bool:
        return bool(self._errors)

    def add(self, message: str, span: Span | None, hint: str | None = None) -> None:
        """Add an error, unless the scalar at `span` already has an error."""
        error = SpecError(message, span=span, hint=hint)
        if _position(error) not in self._unreadable:
            self._errors.append(error)

    def add_mistake(self, mistake: Mistake, node: SpecNode) -> None:
        """Add a mistake in settings, at the deepest node on its path that exists."""
        *above, at = nodes_on(mistake.path, node)
        if mistake.of_key and len(above) == len(mistake.path):
            section = above[-1]
            assert isinstance(section, MappingNode)
            at = section.keys[str(mistake.path[-1])]
        self.add(mistake.message, at.span, mistake.hint)

    def make(
        self, kind: type[Settings], fields: Mapping[str, Any], node: SpecNode
    ) -> Settings | None:
        """Create settings from decoded fields; report a mistake and return None."""
        names = {field.encode_name: field.name for field in structs.fields(kind)}
        try:
            return kind(**{names[key]: value for key, value in fields.items()})
        except MistakeError as error:
            self.add_mistake(error.mistake, node)
            return None

    def add_error(self, error: PlacerError, *, span: Span | None = None) -> None:
        """Add an error raised elsewhere. `span` is used if it has no position."""
        self.add(error.message, error.span or span, error.hint)

    def expect(
        self,
        node: SpecNode | None,
        kind: type[Node],
        expected: str,
        hint: str | None = None,
    ) -> Node | None:
        """Return the node if it has this class; otherwise report it and return None.

        A `ScalarNode` must hold a string. A node of None is a missing key, which is not
        an error here.

        Args:
            node: The node.
            kind: The required class.
            expected: The start of the message, such as `'nodes' must be a mapping`.
            hint: The hint of the error.
        """
        is_text = not isinstance(node, ScalarNode) or isinstance(node.value, str)
        if isinstance(node, kind) and is_text:
            return node
        if node is not None:
            self.add(f"{expected}, not {describe_value(node.value)}", node.span, hint)
        return None

    def raise_any(self) -> None:
        """Raise SpecError for one error, SpecErrors for several; return without
        errors.
        """
        if not self._errors:
            return
        errors = sorted(self._errors, key=_position)
        if len(errors) == 1:
            raise errors[0]
        reported = errors[:MAX_REPORTED]
        if len(errors) > MAX_REPORTED:
            reported.append(SpecError(f"and {len(errors) - MAX_REPORTED} more errors"))
        raise SpecErrors(reported)


def all_or_none(items: Iterable[T | None]) -> list[T] | None:
    """Return the items as a list, or None if an item is None (its error was
    reported).
    """
    listed = list(items)
    valid = [item for item in listed if item is not None]
    return valid if len(valid) == len(listed) else None


def nodes_on(path: Iterable[str | int], node: SpecNode) -> list[SpecNode]:
    """Return the node and its descendants along a path, as far as they exist."""
    found = [node]
    for key in path:
        below: SpecNode | None = None
        if isinstance(node, MappingNode):
            below = node.entries.get(str(key))
        elif isinstance(node, SequenceNode) and isinstance(key, int):
            below = node.items[key]
        if below is None:
            break
        found.append(node := below)
    return found


def inner_span(node: SpecNode) -> Span:
    """Return the span of a node, without the quotes of a quoted text."""
    return node.inner_span if isinstance(node, ScalarNode) else node.span


def _position(error: SpecError) -> tuple[str, int, int]:
    span = error.span
    return (span.file, span.line, span.column) if span else ("", 0, 0)
