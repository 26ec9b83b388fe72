"""Reads the section `train`: the loss, the optimizers and the metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import asdict

from placer.config import optimizers, schedules
from placer.config.checkpoint import EPOCH, Checkpointing, EarlyStop, Interval
from placer.config.checks import describe_value
from placer.errors import did_you_mean
from placer.place import Place
from placer.spec.context import Context
from placer.spec.decode import decode
from placer.spec.problems import Problems, inner_span
from placer.spec.schema import Clip, Optimizer, Slicing, Train
from placer.spec.sections.data import RowSources
from placer.spec.sections.evaluations import (
    read_checkpoint,
    read_early_stopping,
    read_eval,
)
from placer.spec.sections.parameters import Group, Pattern, freeze
from placer.spec.tree import MappingNode, ScalarNode, SpecNode, as_list


@dataclass(frozen=True, slots=True)
class Training:
    """The content of the section, without keys that have errors.

    `settings` are the fields of `Train`.
    """

    settings: Mapping[str, Any]
    minimize: ScalarNode | None
    metrics: Sequence[ScalarNode]
    groups: Sequence[Group]
    clip: dict[str, float] | None
    backward: Place | None
    evaluate_every: Interval = EPOCH
    checkpoint: Checkpointing | None = None
    early_stopping: EarlyStop | None = None


def read_train(
    section: SpecNode | None, rows: RowSources, context: Context
) -> Training:
    """Read the section `train`; `rows` are the sources of the section `data`."""
    problems = context.problems
    good = decode(section, Train, "train", problems)
    if not isinstance(section, MappingNode):
        return Training(good, None, (), (), None, None)
    if (parts := good.get("gradient_accumulation")) is not None:
        _check_microbatches(parts, section, problems)
        good["microbatches"] = parts
    loss = section.get("minimize") if "minimize" in good else None
    assert loss is None or isinstance(loss, ScalarNode)
    metrics: Sequence[ScalarNode] = ()
    if good.get("metrics") is not None:
        metrics = _distinct(section.entries["metrics"], problems)
    elif "metrics" in good and loss is not None:
        metrics = (loss,)
    backward = None
    if good.get("backward") is not None:
        backward = context.places.merge(None, section.get("backward"))
    clip = _clip(good.get("clip"), "train.clip", problems)
    written = decode(good.get("slicing"), Slicing, "train.slicing", problems)
    slicing = written or asdict(Slicing())
    every = read_eval(good.get("eval"), problems)
    if good.get("eval") is not None and not rows.has_eval:
        message = "'eval' in train needs rows to evaluate on"
        span = section.keys["eval"].span
        problems.add(message, span, "add a source as data.eval")
    names = [node.text for node in metrics]
    checkpoint = read_checkpoint(good.get("checkpoint"), names, rows.has_eval, problems)
    stopping = read_early_stopping(
        good.get("early_stopping"), names, rows.has_eval, problems
    )
    groups: Sequence[Group] = ()
    if (entries := good.get("optimizer")) is not None:
        groups = _groups(entries, slicing, context)
    for group in groups:
        rate = group.attrs["learning_rate"]
        if rows.train is not None and not schedules.check(rate):
            rate = schedules.fill_batch(rate, rows.train.batch)
            group.attrs["learning_rate"] = rate
    return Training(
        good, loss, metrics, groups, clip, backward, every, checkpoint, stopping
    )


def _check_microbatches(parts: int, section: MappingNode, problems: Problems) -> None:
    """Report `microbatches` beside `gradient_accumulation` if they differ."""
    other = section.get("microbatches")
    if other is not None and other.value != parts:
        problems.add(
            "'gradient_accumulation' and 'microbatches' are one setting, with different"
            f" values: {parts} and {describe_value(other.value)}",
            section.keys["gradient_accumulation"].span,
            "write only one of them",
        )


def _distinct(node: SpecNode, problems: Problems) -> list[ScalarNode]:
    metrics: dict[str, ScalarNode] = {}
    for item in as_list(node):
        assert isinstance(item, ScalarNode)
        if item.text in metrics:
            problems.add(f"the metric '{item.text}' is listed twice", item.span)
        metrics.setdefault(item.text, item)
    return list(metrics.values())


def _clip(
    node: SpecNode | None, where: str, problems: Problems
) -> dict[str, float] | None:
    if node is None:
        return None
    good = decode(node, Clip, where, problems)
    bounds = {key: float(bound) for key, bound in good.items() if bound is not None}
    if len(bounds) == 1:
        return bounds
    if isinstance(node, MappingNode) and node.entries.keys() <= good.keys():
        message = f"{where} needs exactly one of global_norm, norm and value"
        problems.add(message, node.span, "write {global_norm: 1.0}")
    return None


def _groups(node: SpecNode, slicing: dict[str, Any], context: Context) -> list[Group]:
    entries = as_list(node)
    if not entries:
        context.problems.add("'optimizer' is an empty list", node.span)
    groups = []
    for number, entry in enumerate(entries):
        one = isinstance(node, MappingNode)
        where = "train.optimizer" if one else f"train.optimizer[{number}]"
        group = read_group(entry, number, where, slicing, context)
        if group is None:
            continue
        if group.pattern.text is None and entry is not entries[-1]:
            message = f"without 'match', {where} matches all remaining parameters"
            context.problems.add(message, group.span, "put it last, or add a 'match'")
        groups.append(group)
    return groups


def read_group(
    entry: SpecNode,
    number: int,
    where: str,
    slicing: dict[str, Any],
    context: Context,
) -> Group | None:
    """Read entry `number` of `optimizer`; report errors and return None.

    `where` is its name in messages; `slicing` are the fields of `train.slicing`.
    """
    problems, hint = context.problems, "write {op: sgd, learning_rate: 0.1}"
    expected = f"{where} must be a mapping"
    node = problems.expect(entry, MappingNode, expected, hint)
    if node is None:
        return None
    name = _rule_name(node, problems)
    # With an unknown rule every other key may be one of its hyperparameters.
    others = optimizers.RULES[name].hyper if name else node.entries
    good = decode(node, Optimizer, where, problems, others)
    hyper = _hyper(name, node, problems) if name else {}
    rate = good.get("learning_rate")
    if rate is not None and (problem := schedules.check(rate.value)):
        problems.add(problem, rate.span)
    learning_rate = None if rate is None else freeze(rate.value)
    if isinstance(learning_rate, int):
        learning_rate = float(learning_rate)
    clip = _clip(good.get("clip"), f"{where}.clip", problems)
    attrs: dict[str, Any] = {
        "group": number,
        "rule": name,
        "learning_rate": learning_rate,
        "update": good.get("update"),
        **hyper,
        **({"clip": clip} if clip else {}),
        "slicing": slicing,
    }
    span = node.keys["op"].span if "op" in node.keys else node.span
    match = good.get("match")
    at_match = span if match is None else inner_span(node.entries["match"])
    place = node.get("place") if good.get("place") else None
    merged = context.places.merge(None, place)
    return Group(Pattern(match, at_match), span, attrs, merged)


def _rule_name(entry: MappingNode, problems: Problems) -> str | None:
    node = entry.get("op")
    if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
        return None  # decode reports it
    if node.value in optimizers.RULES:
        return node.value
    hint = did_you_mean(node.value, sorted(optimizers.RULES))
    problems.add(f"unknown optimizer '{node.value}'", node.inner_span, hint)
    return None


def _hyper(name: str, entry: MappingNode, problems: Problems) -> dict[str, float]:
    """Return the hyperparameters in an entry that differ from their defaults."""
    hyper = {}
    for key, declared in optimizers.RULES[name].hyper.items():
        node = entry.get(key)
        if node is None:
            continue
        problem = optimizers.check(name, {key: node.value})
        if problem:
            problems.add(problem, node.span)
        elif (value := declared.type(node.value)) != declared.default:
            hyper[key] = value
    return hyper
