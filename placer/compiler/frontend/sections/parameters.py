"""Reads the section `parameters`, and matches patterns against parameter names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from placer.compiler.frontend.schema import CallParameter, CallState, ParameterRule
from placer.compiler.frontend.sections.initializers import read_init
from placer.compiler.frontend.yaml.decode import decode
from placer.compiler.frontend.yaml.problems import Problems, inner_span
from placer.compiler.frontend.yaml.tree import MappingNode, SequenceNode, SpecNode
from placer.errors import Span
from placer.place import Place
from placer.place.types import TensorType
from placer.plan.settings.training.initializers import Init


@dataclass(slots=True)
class Pattern:
    """A glob over parameter names.

    Attributes:
        text: The glob; None matches all parameters.
        span: Its position in the spec.
        is_used: Whether it applies to a parameter.
    """

    text: str | None
    span: Span
    is_used: bool = False

    def matches(self, name: str) -> bool:
        return self.text is None or fnmatchcase(name, self.text)


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a spec for the parameters that match a pattern.

    `span` is the position of the pattern, or of the optimizer's rule.
    """

    pattern: Pattern
    span: Span


AnyEntry = TypeVar("AnyEntry", bound=Entry)


def first_match(name: str, entries: Iterable[AnyEntry]) -> AnyEntry | None:
    """Return the first entry that matches a parameter, and mark its pattern as used."""
    for entry in entries:
        if entry.pattern.matches(name):
            entry.pattern.is_used = True
            return entry
    return None


@dataclass(frozen=True, slots=True)
class Group(Entry):
    """An entry of `train.optimizer`. `node` is its mapping."""

    node: MappingNode
    attrs: dict[str, Any]
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Rule(Entry):
    """An entry of `parameters`. If `init` is None, the op's initializer applies."""

    node: MappingNode
    init: Init | None
    trainable: bool
    decay: bool


def read_rules(section: SpecNode | None, problems: Problems) -> list[Rule]:
    """Return the valid entries in order, and report errors."""
    hint = 'write - {match: "h1.*", init: zeros}'
    expected = "'parameters' must be a list"
    entries = problems.expect(section, SequenceNode, expected, hint)
    rules = []
    for number, node in enumerate(entries.items if entries else ()):
        good = decode(node, ParameterRule, f"parameters[{number}]", problems)
        init = read_init(good.get("init"), problems)
        if {"match", "trainable", "decay"} <= good.keys():
            assert isinstance(node, MappingNode)
            if not (good["trainable"] or good["decay"]):
                problems.add(
                    "'decay' has no effect: the parameter is not trained",
                    node.keys["decay"].span,
                    "leave out decay or trainable",
                )
            at = node.entries["match"]
            pattern = Pattern(good["match"], inner_span(at))
            settings = init, good["trainable"], good["decay"]
            rules.append(Rule(pattern, at.span, node, *settings))
    return rules


def read_parameter(
    node: SpecNode,
    struct: type[CallParameter | CallState],
    where: str,
    problems: Problems,
    others: Iterable[str] = (),
) -> tuple[TensorType, Init] | None:
    """Return the type and the initializer of a parameter; None after an error. The
    arguments are those of `decode`."""
    good = decode(node, struct, where, problems, others)
    init = read_init(good.get("init"), problems)
    if init is None or "shape" not in good or "dtype" not in good:
        return None
    return TensorType(good["dtype"], tuple(good["shape"])), init


def freeze(value: Any) -> Any:
    """Convert lists in a value to tuples, as in attributes of ops."""
    if isinstance(value, list):
        return tuple(map(freeze, value))
    if isinstance(value, dict):
        return {key: freeze(item) for key, item in value.items()}
    return value
