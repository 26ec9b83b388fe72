"""Reads the section `parameters`, and matches patterns against parameter names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate
from typing import Any

from placer.config import initializers
from placer.config.checks import describe_value
from placer.errors import did_you_mean
from placer.spec.decode import decode
from placer.spec.names import quote
from placer.spec.problems import Problems
from placer.spec.schema import ParameterRule
from placer.spec.tree import ScalarNode, SequenceNode, SpecNode


class Pattern:
    """A glob over parameter names. `is_used` is whether it applies to a parameter."""

    __slots__ = ("_matches", "is_used", "node", "text")

    def __init__(self, text: str, node: SpecNode) -> None:
        self.text = text
        self.node = node
        self.is_used = False
        self._matches = re.compile(translate(text)).match

    def matches(self, name: str) -> bool:
        """Return whether a parameter name matches the glob."""
        return self._matches(name) is not None


@dataclass(frozen=True, slots=True)
class Rule:
    """An entry of `parameters`. If `init` is None, the op's own initializer applies."""

    pattern: Pattern
    init: Any
    trainable: bool
    decay: bool


def read_rules(section: SpecNode | None, problems: Problems) -> list[Rule]:
    """Return the entries without errors, in order; report errors."""
    if section is None:
        return []
    if not isinstance(section, SequenceNode):
        message = f"'parameters' must be a list, not {describe_value(section.value)}"
        hint = 'write - {match: "h1.*", init: zeros}'
        problems.add(message, section.span, hint)
        return []
    rules = []
    for number, node in enumerate(section.items):
        good = decode(node, ParameterRule, f"parameters[{number}]", problems)
        init = good.get("init")
        if init is not None and (problem := initializers.check(init.value)):
            problems.add(problem, init.span)
            init = None
        if {"match", "trainable", "decay"} <= good.keys():
            pattern = Pattern(good["match"], node.entries["match"])  # type: ignore[union-attr]
            init = initializers.canonicalize(freeze(init))
            rules.append(Rule(pattern, init, good["trainable"], good["decay"]))
    return rules


def find_rule(name: str, rules: list[Rule]) -> Rule | None:
    """Return the first rule that matches a parameter, and mark its pattern as used."""
    for rule in rules:
        if rule.pattern.matches(name):
            rule.pattern.is_used = True
            return rule
    return None


def report_unused_patterns(
    patterns: list[Pattern], parameters: list[str], problems: Problems
) -> None:
    """Report every pattern that applies to no parameter, and why."""
    for pattern in patterns:
        if pattern.is_used:
            continue
        shadowed = next((n for n in parameters if pattern.matches(n)), None)
        span = pattern.node.inner_span if isinstance(pattern.node, ScalarNode) else None
        if shadowed is None:
            message = f"no parameter matches {quote(pattern.text)}"
            problems.add(message, span, did_you_mean(pattern.text, parameters))
        else:
            message = f"{quote(pattern.text)} applies to no parameter"
            hint = f"an earlier entry applies to '{shadowed}', or it is not trained"
            problems.add(message, span, hint)


def freeze(node: SpecNode | None) -> Any:
    """Return the value of a node with tuples for lists, as in attributes of ops."""
    return None if node is None else _freeze(node.value)


def _freeze(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_freeze, value))
    if isinstance(value, dict):
        return {key: _freeze(item) for key, item in value.items()}
    return value
