"""The section `train`: what is minimised, by which optimizers, and what is watched."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as default
from typing import Any, Literal

from placer.config import optimizers, schedules
from placer.config.checks import shown
from placer.errors import Span, did_you_mean
from placer.place import Place
from placer.spec.decode import decode, fields
from placer.spec.places import Places
from placer.spec.problems import Problems
from placer.spec.schema import Clip, Eval, Optimizer, Slicing, Train
from placer.spec.sections.data import Rows
from placer.spec.sections.parameters import Pattern, frozen
from placer.spec.tree import Mapping, Node, Scalar, Sequence


@dataclass(slots=True)
class Group:
    """One entry of `optimizer`; a pattern of None takes all that is left."""

    span: Span
    pattern: Pattern | None
    attrs: dict[str, Any]
    place: Place | None
    taken: bool = False


@dataclass(slots=True)
class Training:
    """The section, read as far as it is good."""

    minimize: Scalar | None = None
    metrics: list[Scalar] = default(default_factory=list)
    groups: list[Group] = default(default_factory=list)
    clip: dict[str, float] | None = None
    epochs: int = 1
    microbatches: int = 1
    schedule: str = "1f1b"
    nan: Literal["stop", "warn"] = "stop"
    backward: Place | None = None


def read_train(
    section: Node | None, places: Places, rows: Rows, problems: Problems
) -> Training:
    """Read the section, for these rows to train and to evaluate on."""
    good = decode(section, Train, "train", problems)
    how = ("epochs", "microbatches", "schedule", "nan")
    training = Training(**{key: good[key] for key in how if key in good})
    if not isinstance(section, Mapping):
        return training
    if "minimize" in good:
        training.minimize = _scalar(section.get("minimize"))
    if good.get("metrics") is None:
        if "metrics" in good and training.minimize:
            training.metrics = [training.minimize]
    else:
        node = section.entries["metrics"]
        assert isinstance(node, Sequence)
        training.metrics = _distinct(node, problems)
    if good.get("backward") is not None:
        training.backward = places.merge(None, section.get("backward"))
    training.clip = _clip(good.get("clip"), "train.clip", problems)
    slicing = decode(good.get("slicing"), Slicing, "train.slicing", problems)
    if not slicing:
        slicing = {key: field.default for key, field in fields(Slicing).items()}
    if (when := good.get("eval")) is not None:
        decode(when, Eval, "train.eval", problems)
        if not rows.eval_given:
            message = "'eval' in train has no rows to evaluate on"
            problems.add(message, section.keys["eval"].span, "give data.eval a source")
    entries = good.get("optimizer")
    if entries is not None:
        training.groups = _groups(entries, slicing, places, problems)
        for group in training.groups:
            rate = group.attrs["learning_rate"]
            if rows.train is not None and not schedules.check(rate):
                batch = rows.train.batch
                group.attrs["learning_rate"] = schedules.of_batch(rate, batch)
    return training


def _scalar(node: Node | None) -> Scalar | None:
    return node if isinstance(node, Scalar) else None


def _distinct(node: Sequence, problems: Problems) -> list[Scalar]:
    found: dict[str, Scalar] = {}
    for item in node.items:
        assert isinstance(item, Scalar)
        if item.text in found:
            problems.add(f"the metric '{item.text}' is listed twice", item.span)
        found.setdefault(item.text, item)
    return list(found.values())


def _clip(node: Node | None, where: str, problems: Problems) -> dict[str, float] | None:
    if node is None:
        return None
    good = decode(node, Clip, where, problems)
    given = {key: float(bound) for key, bound in good.items() if bound is not None}
    if len(given) == 1:
        return given
    if isinstance(node, Mapping) and node.entries.keys() <= good.keys():
        message = f"{where} needs one of global_norm, norm and value"
        problems.add(message, node.span, "write {global_norm: 1.0}")
    return None


def _groups(
    node: Node, slicing: dict[str, Any], places: Places, problems: Problems
) -> list[Group]:
    entries = node.items if isinstance(node, Sequence) else [node]
    if not entries:
        problems.add("'optimizer' lists no entry", node.span)
    groups = []
    for number, entry in enumerate(entries):
        one = isinstance(node, Mapping)
        where = "train.optimizer" if one else f"train.optimizer[{number}]"
        group = read_group(entry, number, where, slicing, places, problems)
        if group is None:
            continue
        if group.pattern is None and entry is not entries[-1]:
            message = f"without 'match', {where} takes every parameter that is left"
            problems.add(message, group.span, "put it last, or give it a 'match'")
        groups.append(group)
    return groups


def read_group(
    entry: Node,
    number: int,
    where: str,
    slicing: dict[str, Any],
    places: Places,
    problems: Problems,
) -> Group | None:
    """One entry of `optimizer`, the one of that number; None where it is wrong."""
    if not isinstance(entry, Mapping):
        message = f"{where} must be a mapping, not {shown(entry.value)}"
        problems.add(message, entry.span, "write {op: sgd, learning_rate: 0.1}")
        return None
    name = _rule_name(entry, problems)
    declared = optimizers.find(name).hyper if name else None
    # With an unknown rule every other key may be one of its hyperparameters.
    others = entry.entries if declared is None else declared
    good = decode(entry, Optimizer, where, problems, others)
    hyper = _hyper(name, entry, problems) if name else {}
    rate = good.get("learning_rate")
    if rate is not None and (problem := schedules.check(rate.value)):
        problems.add(problem, rate.span)
    attrs: dict[str, Any] = {
        "group": number,
        "rule": name,
        "learning_rate": _rate(rate),
        "update": good.get("update"),
        **hyper,
    }
    clip = _clip(good.get("clip"), f"{where}.clip", problems)
    if clip:
        attrs["clip"] = clip
    attrs["slicing"] = slicing
    pattern = None
    if good.get("match") is not None:
        pattern = Pattern(good["match"], entry.entries["match"])
    place = places.merge(None, entry.get("place")) if good.get("place") else None
    span = entry.keys["op"].span if "op" in entry.keys else entry.span
    return Group(span, pattern, attrs, place)


def _rate(node: Node | None) -> Any:
    rate = frozen(node)
    return float(rate) if isinstance(rate, int) else rate


def _rule_name(entry: Mapping, problems: Problems) -> str | None:
    node = entry.get("op")
    if not isinstance(node, Scalar) or not isinstance(node.value, str):
        return None  # decode tells it
    if node.value in optimizers.names():
        return node.value
    hint = did_you_mean(node.value, optimizers.names())
    problems.add(f"unknown optimizer '{node.value}'", node.inside, hint)
    return None


def _hyper(name: str, entry: Mapping, problems: Problems) -> dict[str, float]:
    """The hyperparameters that are given and are not the default."""
    found = {}
    for key, declared in optimizers.find(name).hyper.items():
        node = entry.get(key)
        if node is None:
            continue
        problem = optimizers.check(name, {key: node.value})
        if problem:
            problems.add(problem, node.span)
        elif (value := declared.type(node.value)) != declared.default:
            found[key] = value
    return found
