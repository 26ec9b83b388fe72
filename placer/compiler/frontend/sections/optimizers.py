"""Reads the entries of `train.optimizer`: groups of parameters, and their rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from msgspec import to_builtins

from placer.compiler.frontend.entries.context import Context
from placer.compiler.frontend.entries.names import quote
from placer.compiler.frontend.other_names import meant_key, meant_mode
from placer.compiler.frontend.schema import Clip, Optimizer, Outer, Update
from placer.compiler.frontend.sections.optax_optimizers import is_optax, read_optax
from placer.compiler.frontend.sections.parameters import Group, Pattern
from placer.compiler.frontend.sections.schedules import read_rate
from placer.compiler.frontend.yaml.decode import decode, decode_fields
from placer.compiler.frontend.yaml.problems import Problems, inner_span
from placer.compiler.frontend.yaml.tree import (
    MappingNode,
    ScalarNode,
    SpecNode,
    as_list,
)
from placer.errors import did_you_mean
from placer.place import SERVER, Place
from placer.plan.settings.checks import describe_value
from placer.plan.settings.training import optimizers
from placer.plan.settings.training.schedules import Rate
from placer.plan.settings.training.update_modes import (
    MODES,
    Settings,
    Sync,
    from_text,
)

_GEO: Final = "write {geo: {every: 100}}"


def read_clip(
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


def _update(
    node: object, where: str, batch: int | None, problems: Problems
) -> Settings | None:
    if not isinstance(node, SpecNode):
        return Sync()  # The default.
    names = tuple(MODES)
    if isinstance(node, ScalarNode):
        if node.value == "geo":
            message = "'update: geo' needs the number of steps between two exchanges"
            problems.add(message, node.span, _GEO)
            return None
        if node.value in names:
            return from_text(node.value)
        meant = meant_mode(str(node.value))
        problems.add(
            f"'update' must be one of {', '.join(names)}, or a mapping, not"
            f" {describe_value(node.value)}",
            node.span,
            f"write update: {meant}" if meant else did_you_mean(str(node.value), names),
        )
        return None
    if isinstance(node, MappingNode) and _report_other_modes(node, where, problems):
        return None
    good = decode(node, Update, where, problems)
    modes = {name: entry for name, entry in good.items() if entry is not None}
    if len(modes) != 1:
        if isinstance(node, MappingNode) and node.entries.keys() <= good.keys():
            message = f"{where} needs exactly one of {', '.join(good)}"
            hint = "write {async: {max_staleness: 4}}"
            if len(node.entries) == 1:  # A mode with the value null.
                (name,) = node.entries
                hint = _GEO if name == "geo" else f"write update: {name}"
            problems.add(message, node.span, hint)
        return None
    ((name, entry),) = modes.items()
    good = decode(entry, MODES[name], f"{where}.{name}", problems)
    if good.get("outer") is not None:
        outer = entry.entries["outer"]
        good["outer"] = _outer(outer, f"{where}.{name}.outer", batch, problems)
    if len(good) < len(MODES[name].__struct_fields__):
        return None
    mode = problems.make(MODES[name], good, entry)
    return Sync() if mode is not None and mode.is_sync else mode


def _report_other_modes(node: MappingNode, where: str, problems: Problems) -> bool:
    """Report modes with names of other systems, and settings without their mode. Return
    whether there are any."""
    modes = {name: mode for mode in MODES for name in MODES[mode].__struct_fields__}
    is_found = False
    for name, key in node.keys.items():
        if name in ("sync", "async", "geo"):
            continue
        if (mode := meant_mode(name)) is not None:
            hint = f"write update: {mode}"
        elif (setting := name if name in modes else meant_key(name, modes)) is not None:
            hint = f"'{setting}' is a key of a mode: {{{modes[setting]}: {{{setting}: …}}}}"
        else:
            continue
        is_found = True
        problems.add(f"unknown key {quote(name)} in {where}", key.span, hint)
    return is_found


def _outer(
    node: SpecNode, where: str, batch: int | None, problems: Problems
) -> dict[str, Any] | None:
    hint = "write {op: nesterov, learning_rate: 0.7, momentum: 0.9}"
    entry = problems.expect(node, MappingNode, f"{where} must be a mapping", hint)
    if entry is None:
        return None
    rule, _ = _rule(entry, Outer, where, batch, problems)
    if rule.name is not None and (why := optimizers.check_outer(rule.name)):
        problems.add_mistake(why, entry)
    if rule.name is None or rule.learning_rate is None:
        return None
    learning_rate = to_builtins(rule.learning_rate)
    return {"op": rule.name, "learning_rate": learning_rate, **rule.hyper}


@dataclass(frozen=True, slots=True)
class _Rule:
    """The update rule of an entry: its name, learning rate and hyperparameters.

    The name and the rate are None after an error. Hyperparameters with default values
    are left out.
    """

    name: str | None
    learning_rate: Rate | None
    hyper: Mapping[str, float]


def _rule(
    node: MappingNode,
    struct: type[Optimizer | Outer],
    where: str,
    batch: int | None,
    problems: Problems,
) -> tuple[_Rule, dict[str, Any]]:
    """Read the update rule of an entry. Return the rule and the other fields of the
    struct. `batch` is the global batch for schedules; None after an error."""
    name = _rule_name(node, problems)
    # If the rule is unknown, any other key may be a hyperparameter.
    rule = optimizers.RULES.get(name or "")
    others = rule.__struct_fields__ if rule else node.entries
    good = decode(node, struct, where, problems, others)
    rate = good.get("learning_rate")
    if rate is not None:
        rate = read_rate("learning_rate", rate, batch, problems)
    hyper = _hyper(name, node, problems) if name and rule else {}
    return _Rule(name, rate, hyper), good


def read_groups(
    node: SpecNode, common: Mapping[str, Any], batch: int | None, context: Context
) -> list[Group]:
    """Read `train.optimizer`: one entry, or a list of entries."""
    entries = as_list(node)
    if not entries:
        context.problems.add("'optimizer' is an empty list", node.span)
    groups = []
    for number, entry in enumerate(entries):
        one = isinstance(node, MappingNode)
        where = "train.optimizer" if one else f"train.optimizer[{number}]"
        group = read_group(entry, number, where, common, batch, context)
        if group is None:
            continue
        if group.pattern.text is None and entry is not entries[-1]:
            message = f"{where} has no 'match', so it matches all remaining parameters"
            context.problems.add(message, group.span, "put it last, or add a 'match'")
        groups.append(group)
    return groups


def read_group(
    entry: SpecNode,
    number: int,
    where: str,
    common: Mapping[str, Any],
    batch: int | None,
    context: Context,
) -> Group | None:
    """Read one entry of `optimizer`; None after an error.

    Args:
        entry: The entry.
        number: Its index in the list.
        where: Its name in messages.
        common: The attributes that all optimizers have.
        batch: The global batch; None if it is not known.
        context: The context of the spec.
    """
    problems, hint = context.problems, "write {op: sgd, learning_rate: 0.1}"
    expected = f"{where} must be a mapping"
    node = problems.expect(entry, MappingNode, expected, hint)
    if node is None:
        return None
    functions: dict[str, str] = {}
    if is_optax(node):
        functions, of_steps, good = read_optax(node, where, batch, context)
        rule = _Rule(optimizers.OPTAX, of_steps, {})
    else:
        rule, good = _rule(node, Optimizer, where, batch, problems)
    clip = read_clip(good.get("clip"), f"{where}.clip", problems)
    attrs: dict[str, Any] = {
        "group": number,
        "rule": rule.name,
        **({} if (rate := rule.learning_rate) is None else {"learning_rate": rate}),
        "update": _update(good.get("update"), f"{where}.update", batch, problems),
        **rule.hyper,
        **functions,
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
    # Otherwise an error was reported.
    if merged is not None or "place" not in node.entries:
        _check_several_workers(node, attrs, merged, context)
    return Group(Pattern(match, at_match), span, node, attrs, merged)


def _place_of_sums(
    entry: MappingNode, attrs: Mapping[str, Any], context: Context
) -> Place | None:
    place = context.places.merge(None, entry.get("sum"))
    if place is None:
        return None  # An error was reported.
    span = entry.entries["sum"].span
    if place.node != SERVER:
        message = f"'sum' must be a place of servers, not {place}"
        context.problems.add(message, span, "write /node:ps/cpu")
        return None
    for key in ("shard_state", "all_reduce"):
        if key in attrs:
            context.problems.add(
                f"with '{key}' the workers sum gradients, so 'sum' cannot name servers",
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
    """Report settings that need an optimizer on several workers if its place is
    elsewhere. If the entry has no place, the pass `exchange` makes this check."""
    cluster = context.cluster
    if cluster is None:
        return
    if place is None or place.node is None:
        has_servers = any(kind.name == SERVER for kind in cluster.kinds)
        at = "servers, the default place" if has_servers else ""
    elif place.node == SERVER:
        at = "servers"
    else:
        nodes = cluster.nodes(place)
        at = f"one node, {nodes[0]}" if len(nodes) == 1 else ""
    for key in optimizers.OF_SEVERAL_NODES:
        if at and key in attrs:
            context.problems.add(
                f"'{key}' needs an optimizer on several workers, but this one is on"
                f" {at}",
                entry.keys[key].span,
                f"place the optimizer on several workers, or leave {key} out",
            )


def _rule_name(entry: MappingNode, problems: Problems) -> str | None:
    node = entry.get("op")
    if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
        return None  # `decode` reports it.
    if node.value in optimizers.RULE_NAMES:
        return node.value
    hint = did_you_mean(node.value, optimizers.RULE_NAMES)
    problems.add(f"unknown optimizer '{node.value}'", node.inner_span, hint)
    return None


def _hyper(name: str, entry: MappingNode, problems: Problems) -> dict[str, float]:
    rule = optimizers.RULES[name]
    good = decode_fields(entry, rule, f"'{name}'", problems)
    default = rule().hyper
    return {key: each for key, each in good.items() if each != default[key]}
