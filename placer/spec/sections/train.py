"""Reads the section `train`: the loss, the optimizers and the metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import asdict

from placer.config import optimizers, schedules
from placer.config.checkpoint import EPOCH, Checkpointing, EarlyStop, Interval
from placer.config.checks import describe_value
from placer.config.update_modes import MODES, SYNC
from placer.errors import did_you_mean
from placer.place import SERVER, Place
from placer.spec.context import Context
from placer.spec.decode import decode
from placer.spec.problems import Problems, inner_span
from placer.spec.schema import Clip, Optimizer, Outer, Slicing, Train, Update
from placer.spec.sections.buckets import KEY as BUCKETS
from placer.spec.sections.buckets import check_buckets
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
    threads: ScalarNode | None = None


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
    threads = section.get("threads") if good.get("threads") is not None else None
    assert threads is None or isinstance(threads, ScalarNode)
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
    of_groups: dict[str, Any] = {"slicing": written or asdict(Slicing())}
    if good.get(BUCKETS) is not None:
        of_groups[BUCKETS] = good[BUCKETS]
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
        groups = _groups(entries, of_groups, context)
    if BUCKETS in of_groups:
        parts = good.get("microbatches", 1)
        check_buckets(section, groups, parts, context.cluster, problems)
    for group in groups:
        rate = group.attrs["learning_rate"]
        if rows.train is not None and not schedules.check(rate):
            rate = schedules.fill_batch(rate, rows.train.batch)
            group.attrs["learning_rate"] = rate
    return Training(
        good,
        loss,
        metrics,
        groups,
        clip,
        backward,
        every,
        checkpoint,
        stopping,
        threads,
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


def _update(node: Any, where: str, problems: Problems) -> Any:
    """Return the mode of a group: its name, or its name and its settings."""
    if not isinstance(node, SpecNode):
        return node  # the default
    names = tuple(MODES)
    if isinstance(node, ScalarNode):
        if node.value == SYNC:
            return SYNC
        if node.value == "geo":
            message = "'update: geo' needs the number of steps between two exchanges"
            problems.add(message, node.span, "write {geo: {every: 100}}")
            return None
        if node.value in names:
            return {node.value: {}}
        problems.add(
            f"'update' must be one of {', '.join(names)}, or a mapping, not"
            f" {describe_value(node.value)}",
            node.span,
            did_you_mean(str(node.value), names) or "write {async: {max_staleness: 4}}",
        )
        return None
    good = decode(node, Update, where, problems)
    modes = {name: entry for name, entry in good.items() if entry is not None}
    if len(modes) != 1:
        if isinstance(node, MappingNode) and node.entries.keys() <= good.keys():
            message = f"{where} needs exactly one of {', '.join(good)}"
            problems.add(message, node.span, "write {async: {max_staleness: 4}}")
        return None
    ((name, entry),) = modes.items()
    good = decode(entry, MODES[name], f"{where}.{name}", problems)
    if good.get("outer") is not None:
        outer = entry.entries["outer"]
        good["outer"] = _outer(outer, f"{where}.{name}.outer", problems)
    if len(good) < len(MODES[name].__struct_fields__):
        return None
    mode = MODES[name](**good)
    if why := mode.problem():
        problems.add(why, entry.span)
    if mode.is_sync:
        return SYNC
    return {name: {key: good[key] for key in good if key in entry.entries}}


def _outer(node: SpecNode, where: str, problems: Problems) -> dict[str, Any] | None:
    """Return the optimizer of the servers in the mode `geo`."""
    assert isinstance(node, MappingNode)
    name = _rule_name(node, problems)
    others = optimizers.RULES[name].hyper if name else node.entries
    good = decode(node, Outer, where, problems, others)
    rate = good.get("learning_rate")
    if name is None or rate is None:
        return None
    if problem := schedules.check(rate.value):
        problems.add(problem, rate.span)
    if optimizers.RULES[name].is_two_phase:
        message = f"'{name}' cannot be an outer optimizer: it needs norms of whole"
        message += " parameters, and servers have blocks of them"
        problems.add(
            message, node.entries["op"].span, "nesterov, sgd or adam need none"
        )
    learning_rate = freeze(rate.value)
    if isinstance(learning_rate, int):
        learning_rate = float(learning_rate)
    hyper = _hyper(name, node, problems)
    return {"op": name, "learning_rate": learning_rate, **hyper}


def _groups(node: SpecNode, common: Mapping[str, Any], context: Context) -> list[Group]:
    entries = as_list(node)
    if not entries:
        context.problems.add("'optimizer' is an empty list", node.span)
    groups = []
    for number, entry in enumerate(entries):
        one = isinstance(node, MappingNode)
        where = "train.optimizer" if one else f"train.optimizer[{number}]"
        group = read_group(entry, number, where, common, context)
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
    common: Mapping[str, Any],
    context: Context,
) -> Group | None:
    """Read entry `number` of `optimizer`; report errors and return None.

    `where` is its name in messages; `common` are the attributes of all groups.
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
        "update": _update(good.get("update"), f"{where}.update", problems),
        **hyper,
        **({"clip": clip} if clip else {}),
        **common,
    }
    if good.get("shard_state"):
        attrs["shard_state"] = True
    if good.get("all_reduce") == "ring":
        attrs["all_reduce"] = "ring"
    if good.get("sum") and (at := _place_of_sums(node, attrs, context)) is not None:
        attrs["sum"] = at
    span = node.keys["op"].span if "op" in node.keys else node.span
    match = good.get("match")
    at_match = span if match is None else inner_span(node.entries["match"])
    place = node.get("place") if good.get("place") else None
    merged = context.places.merge(None, place)
    _check_several_workers(node, attrs, merged, context)
    return Group(Pattern(match, at_match), span, attrs, merged)


def _place_of_sums(
    entry: MappingNode, attrs: Mapping[str, Any], context: Context
) -> Place | None:
    """Return the place where gradients are summed; report errors and return None."""
    place = context.places.merge(None, entry.get("sum"))
    if place is None:
        return None  # an error was reported
    span = entry.entries["sum"].span
    if place.node != SERVER:
        message = f"'sum' is a place of servers, not {place}"
        context.problems.add(message, span, "write /node:ps/cpu")
        return None
    for key in ("shard_state", "all_reduce"):
        if key in attrs:
            context.problems.add(
                f"with '{key}' the workers sum gradients, not servers",
                entry.keys[key].span,
                f"leave {key} or sum out",
            )
    return place


def _check_several_workers(
    entry: MappingNode,
    attrs: Mapping[str, Any],
    place: Place | None,
    context: Context,
) -> None:
    """Report settings that need an optimizer on several workers, if its place says that
    it is elsewhere. Where the entry has no place, the pass `exchange` checks them."""
    cluster = context.cluster
    if cluster is None:
        return
    if place is None or place.node is None:
        has_servers = any(kind.name == SERVER for kind in cluster.kinds)
        at = "servers, its place by default" if has_servers else ""
    elif place.node == SERVER:
        at = "servers"
    else:
        nodes = cluster.nodes(place)
        at = f"one node, {nodes[0]}" if len(nodes) == 1 else ""
    for key in optimizers.OF_SEVERAL_NODES:
        if at and key in attrs:
            context.problems.add(
                f"'{key}' is for an optimizer on several workers: this one is on {at}",
                entry.keys[key].span,
                f"place it on several workers, or leave {key} out",
            )


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
