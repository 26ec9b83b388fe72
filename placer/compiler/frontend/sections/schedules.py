"""Reads learning rates: numbers and schedules."""

from __future__ import annotations

from typing import Final

from placer.compiler.frontend.yaml.decode import check_type, decode, unquoted_hint
from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.tree import MappingNode, SpecNode
from placer.errors import did_you_mean
from placer.plan.settings.checks import describe_value
from placer.plan.settings.training.schedules import (
    FORMS,
    Form,
    NonNegative,
    Rate,
    Schedule,
    fill_batch,
)

_EXAMPLE: Final = "write for example 0.01, or {cosine: {init: 0.01, steps: 1000}}"


def read_rate(
    key: str, node: SpecNode, batch: int | None, problems: Problems
) -> Rate | None:
    """Read the learning rate at a key; None after an error. `batch` is the global batch
    for schedules; None if it has an error."""
    if isinstance(node, MappingNode):
        rate = _read_schedule(node, problems)
        return rate if rate is None or batch is None else fill_batch(rate, batch)
    if isinstance(node.value, bool) or not isinstance(node.value, int | float):
        problems.add(
            "a learning rate must be a number or a schedule, not"
            f" {describe_value(node.value)}",
            node.span,
            unquoted_hint(node, float) or _EXAMPLE,
        )
        return None
    return float(node.value) if check_type(key, node, NonNegative, problems) else None


def _read_schedule(node: MappingNode, problems: Problems) -> Schedule | None:
    if len(node.entries) != 1:
        message = f"a schedule must have one name, not {len(node.entries)}"
        problems.add(message, node.span)
        return None
    ((name, body),) = node
    if name not in FORMS:
        hint = did_you_mean(name, FORMS)
        problems.add(f"unknown schedule '{name}'", node.keys[name].span, hint)
        return None
    form = _read_form(name, body, problems)
    return None if form is None else problems.make(Schedule, {name: form}, node)


def _read_form(name: str, node: SpecNode, problems: Problems) -> Form | None:
    struct = FORMS[name]
    text = " ".join((struct.__doc__ or "").split())
    expected = f"'{name}' needs a mapping"
    body = problems.expect(node, MappingNode, expected, text)
    if body is None:
        return None
    good = decode(body, struct, f"schedule '{name}'", problems)
    if "then" in good:
        then = read_rate("then", good.pop("then"), None, problems)
        good |= {} if then is None else {"then": then}
    is_complete = len(good) == len(struct.__struct_fields__)
    return problems.make(struct, good, body) if is_complete else None
