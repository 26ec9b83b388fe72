"""Reads the section `train`: the loss, the optimizers and the metrics."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as default
from typing import Any, Literal

from msgspec.structs import asdict

from placer.config import optimizers, schedules
from placer.errors import Span, did_you_mean
from placer.place import Place
from placer.spec.decode import decode
from placer.spec.places import Places
from placer.spec.problems import Problems
from placer.spec.schema import Clip, Eval, Optimizer, Slicing, Train
from placer.spec.sections.data import RowSources
from placer.spec.sections.parameters import Pattern, freeze
from placer.spec.tree import MappingNode, ScalarNode, SpecNode, as_list


@dataclass(slots=True)
class Group:
    """One entry of `optimizer`. A pattern of None matches all remaining parameters.

    `is_used` is whether it applies to a parameter.
    """

    span: Span
    pattern: Pattern | None
    attrs: dict[str, Any]
    place: Place | None
    is_used: bool = False


@dataclass(slots=True)
class Training:
    """The content of the section, with defaults for keys that have errors."""

    minimize: ScalarNode | None = None
    metrics: list[ScalarNode] = default(default_factory=list)
    groups: list[Group] = default(default_factory=list)
    clip: dict[str, float] | None = None
    epochs: int = 1
    microbatches: int = 1
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    nan: Literal["stop", "warn"] = "stop"
    backward: Place | None = None


def read_train(
    section: SpecNode | None, places: Places, rows: RowSources, problems: Problems
) -> Training:
    """Read the section `train`; `rows` are the sources of the section `data`."""
    good = decode(section, Train, "train", problems)
    plain = ("epochs", "microbatches", "schedule", "nan")
    training = Training(**{key: good[key] for key in plain if key in good})
    if not isinstance(section, MappingNode):
        return training
    loss = section.get("minimize")
    if "minimize" in good and isinstance(loss, ScalarNode):
        training.minimize = loss
    if good.get("metrics") is not None:
        training.metrics = _distinct(section.entries["metrics"], problems)
    elif "metrics" in good and training.minimize:
        training.metrics = [training.minimize]
    if good.get("backward") is not None:
        training.backward = places.merge(None, section.get("backward"))
    training.clip = _clip(good.get("clip"), "train.clip", problems)
    written = decode(good.get("slicing"), Slicing, "train.slicing", problems)
    slicing = written or asdict(Slicing())
    if (when := good.get("eval")) is not None:
        decode(when, Eval, "train.eval", problems)
        if not rows.has_eval:
            message = "'eval' in train needs rows to evaluate on"
            span = section.keys["eval"].span
            problems.add(message, span, "add a source as data.eval")
    if (entries := good.get("optimizer")) is not None:
        training.groups = _groups(entries, slicing, places, problems)
    for group in training.groups:
        rate = group.attrs["learning_rate"]
        if rows.train is not None and not schedules.check(rate):
            rate = schedules.fill_batch(rate, rows.train.batch)
            group.attrs["learning_rate"] = rate
    return training


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


def _groups(
    node: SpecNode, slicing: dict[str, Any], places: Places, problems: Problems
) -> list[Group]:
    entries = as_list(node)
    if not entries:
        problems.add("'optimizer' is an empty list", node.span)
    groups = []
    for number, entry in enumerate(entries):
        one = isinstance(node, MappingNode)
        where = "train.optimizer" if one else f"train.optimizer[{number}]"
        group = read_group(entry, number, where, slicing, places, problems)
        if group is None:
            continue
        if group.pattern is None and entry is not entries[-1]:
            message = f"without 'match', {where} matches all remaining parameters"
            problems.add(message, group.span, "put it last, or add a 'match'")
        groups.append(group)
    return groups


def read_group(
    entry: SpecNode,
    number: int,
    where: str,
    slicing: dict[str, Any],
    places: Places,
    problems: Problems,
) -> Group | None:
    """Read entry `number` of `optimizer`; report errors and return None.

    `where` is its name in messages; `slicing` are the fields of `train.slicing`.
    """
    hint = "write {op: sgd, learning_rate: 0.1}"
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
    pattern = None
    if good.get("match") is not None:
        pattern = Pattern(good["match"], node.entries["match"])
    place = places.merge(None, node.get("place")) if good.get("place") else None
    span = node.keys["op"].span if "op" in node.keys else node.span
    return Group(span, pattern, attrs, place)


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
