"""The section `parameters` and the optimizers' patterns: what holds for which one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate
from typing import Any

from placer.config import initializers
from placer.config.checks import shown
from placer.errors import did_you_mean
from placer.spec.decode import decode
from placer.spec.names import quoted
from placer.spec.problems import Problems
from placer.spec.schema import ParameterRule
from placer.spec.tree import Node, Scalar, Sequence


class Pattern:
    """A glob over parameter names, and whether it has taken one."""

    __slots__ = ("_fits", "node", "taken", "text")

    def __init__(self, text: str, node: Node) -> None:
        self.text = text
        self.node = node
        self.taken = False
        self._fits = re.compile(translate(text)).match

    def fits(self, name: str) -> bool:
        return self._fits(name) is not None


@dataclass(frozen=True, slots=True)
class Rule:
    """An entry of `parameters`; `init` is None where the op's own stands."""

    pattern: Pattern
    init: Any
    trainable: bool
    decay: bool


def read_rules(section: Node | None, problems: Problems) -> list[Rule]:
    """The entries that can be read, in order."""
    if section is None:
        return []
    if not isinstance(section, Sequence):
        message = f"'parameters' must be a list, not {shown(section.value)}"
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
            init = initializers.canonical(frozen(init))
            rules.append(Rule(pattern, init, good["trainable"], good["decay"]))
    return rules


def rule_of(name: str, rules: list[Rule]) -> Rule | None:
    """The first rule that fits a parameter."""
    for rule in rules:
        if rule.pattern.fits(name):
            rule.pattern.taken = True
            return rule
    return None


def unfit(patterns: list[Pattern], parameters: list[str], problems: Problems) -> None:
    """Tell of every pattern that took no parameter, and why."""
    for pattern in patterns:
        if pattern.taken:
            continue
        shadowed = next((n for n in parameters if pattern.fits(n)), None)
        span = pattern.node.inside if isinstance(pattern.node, Scalar) else None
        if shadowed is None:
            message = f"no parameter fits {quoted(pattern.text)}"
            problems.add(message, span, did_you_mean(pattern.text, parameters))
        else:
            message = f"{quoted(pattern.text)} takes no parameter"
            hint = f"'{shadowed}' is taken by an entry before it, or not trained"
            problems.add(message, span, hint)


def frozen(node: Node | None) -> Any:
    """A node's value with tuples for lists: what an attribute of an op may be."""
    return None if node is None else _frozen(node.value)


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return value
