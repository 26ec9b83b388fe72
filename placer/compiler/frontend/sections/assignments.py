"""Checks that the entries of `parameters` and `train.optimizer` have an effect.

An entry, or a setting of an entry, that applies to no parameter is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import asdict

from placer.compiler.frontend.entries.names import quote
from placer.compiler.frontend.entries.op_parameters import Parameters, Trained
from placer.compiler.frontend.schema import Slicing
from placer.compiler.frontend.sections.buckets import KEY as BUCKETS
from placer.compiler.frontend.sections.parameters import Group
from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.tree import MappingNode, SpecNode
from placer.errors import did_you_mean
from placer.plan.settings.training.optimizers import OPTAX, read_rule
from placer.plan.settings.training.update_modes import (
    OF_DENSE,
    Async,
    Geo,
    changed_settings,
)


def check_assignments(
    parameters: Parameters, train: SpecNode | None, problems: Problems
) -> None:
    """Report errors. `train` is the section with the optimizers."""
    _check_patterns(parameters, problems)
    if parameters.unassigned:
        first, *rest = parameters.unassigned
        others = f" and {len(rest)} more" if rest else ""
        problems.add(
            f"no optimizer matches the parameter '{first}'{others}",
            parameters.spans[first],
            "end with an optimizer without 'match', or set trainable: false",
        )
    if not problems:
        assert isinstance(train, MappingNode)
        _check_decay(parameters, problems)
        _check_optax(parameters, problems)
        _check_settings_of_dense(parameters, train, problems)


def _check_patterns(parameters: Parameters, problems: Problems) -> None:
    names = list(parameters.spans)
    for entry in (*parameters.rules, *parameters.groups):
        pattern = entry.pattern
        if pattern.is_used:
            continue
        shadowed = next(filter(pattern.matches, names), None)
        hint: str | None
        if pattern.text is None:
            message = "this optimizer matches no parameter"
            hint = None if names else "the graph has no parameters to train"
        elif shadowed is None:
            message = f"no parameter matches {quote(pattern.text)}"
            hint = did_you_mean(pattern.text, names)
        else:
            message = f"{quote(pattern.text)} applies to no parameter"
            hint = (
                f"an earlier entry applies to '{shadowed}', or '{shadowed}' is not"
                " trained"
            )
        problems.add(message, pattern.span, hint)


def _check_decay(parameters: Parameters, problems: Problems) -> None:
    """Report `decay: false` without weight decay, or weight decay without
    parameters.
    """
    for rule in parameters.rules:
        if rule.decay:
            continue
        groups = [each.group for each in parameters.trained if each.rule is rule]
        if groups and all(each.attrs["rule"] == OPTAX for each in groups):
            problems.add(
                f"'decay: false' of {quote(rule.pattern.text or '*')} has no effect on an"
                " optax optimizer",
                rule.node.keys["decay"].span,
                f"leave decay out, and exclude the parameters in {groups[0].attrs['fn']},"
                " as with the mask of optax.adamw",
            )
            continue
        if any(decay for group in groups for decay, _ in _weight_decays(group)):
            continue
        kinds = ", ".join(dict.fromkeys(f"'{g.attrs['rule']}'" for g in groups))
        why = (
            f"optimizer {kinds} has no weight decay"
            if groups
            else "the parameter is not trained"
        )
        problems.add(
            f"'decay: false' of {quote(rule.pattern.text or '*')} has no effect: {why}",
            rule.node.keys["decay"].span,
            "leave decay out, or use an optimizer with a weight_decay above 0, such as"
            " adamw",
        )
    for group in parameters.groups:
        if any(t.rule is None or t.rule.decay for t in _trained(group, parameters)):
            continue
        for decay, node in _weight_decays(group):
            if decay and "weight_decay" in node.keys:
                problems.add(
                    "'weight_decay' has no effect: all parameters of this optimizer have"
                    " 'decay: false'",
                    node.keys["weight_decay"].span,
                    "leave weight_decay out, or remove 'decay: false' from some"
                    " parameters",
                )


def _weight_decays(group: Group) -> Iterator[tuple[float, MappingNode]]:
    """Yield each weight decay of an optimizer, and the mapping of its rule. In the mode
    geo, the servers' rule may have a weight decay too."""
    rules: list[tuple[Mapping[str, Any], str, MappingNode]]
    rules = [(group.attrs, group.attrs["rule"], group.node)]
    mode = group.attrs["update"]
    if isinstance(mode, Geo) and mode.outer is not None:
        outer = _settings_node(group, "geo").entries["outer"]
        assert isinstance(outer, MappingNode)
        rules.append((mode.outer, mode.outer["op"], outer))
    for hyper, rule, node in rules:
        if rule == OPTAX:
            continue
        default = read_rule(rule, {}).hyper.get("weight_decay", 0.0)
        yield hyper.get("weight_decay", default), node


def _check_optax(parameters: Parameters, problems: Problems) -> None:
    """Report optax optimizers of sparse tables, and `staleness_scale` without a learning
    rate to divide.
    """
    for group in parameters.groups:
        if group.attrs["rule"] != OPTAX:
            continue
        mode = group.attrs["update"]
        has_scale = isinstance(mode, Async) and mode.staleness_scale
        if has_scale and "learning_rate" not in group.attrs:
            problems.add(
                "'staleness_scale' has no effect: it divides the learning rate, and this"
                " optax optimizer takes none",
                _settings_node(group, "async").keys["staleness_scale"].span,
                "leave staleness_scale out, or give the function a parameter"
                " learning_rate",
            )
        if any(each.is_sparse for each in _trained(group, parameters)):
            problems.add(
                "an optax optimizer cannot train sparse tables: it updates whole arrays,"
                " not rows by key",
                group.span,
                "put an entry for the tables before this one, such as {match:"
                " 'embedding.w', op: adagrad, learning_rate: 0.01}",
            )


def _check_settings_of_dense(
    parameters: Parameters, train: MappingNode, problems: Problems
) -> None:
    """Report settings for dense parameters if all parameters are sparse tables."""
    for group in parameters.groups:
        mode = group.attrs["update"]
        if not isinstance(mode, Async) or not _are_sparse(_trained(group, parameters)):
            continue
        for key in changed_settings(mode):
            if key in OF_DENSE:
                problems.add(
                    f"'{key}' has no effect: all parameters of this optimizer are sparse"
                    f" tables, and {OF_DENSE[key]}",
                    _settings_node(group, "async").keys[key].span,
                    f"leave {key} out: it only applies to dense parameters",
                )
    if not parameters.groups or not _are_sparse(parameters.trained):
        return
    settings = parameters.groups[0].attrs
    for key, default in (("slicing", asdict(Slicing())), (BUCKETS, None)):
        if settings.get(key, default) != default:
            problems.add(
                f"'{key}' has no effect: it only applies to dense parameters, and the"
                " model trains only sparse tables",
                train.keys[key].span,
                f"leave {key} out",
            )


def _trained(group: Group, parameters: Parameters) -> list[Trained]:
    return [each for each in parameters.trained if each.group is group]


def _are_sparse(trained: list[Trained]) -> bool:
    return all(each.is_sparse for each in trained)


def _settings_node(group: Group, mode: str) -> MappingNode:
    update = group.node.entries["update"]
    assert isinstance(update, MappingNode)
    settings = update.entries[mode]
    assert isinstance(settings, MappingNode)
    return settings
