"""Compares the settings of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from placer.report.run_files import GRAPH_DIGEST, MODEL_DIGEST, Run
from placer.runtime.control.options import OPTIONS

_OUTPUTS = {o.name for o in OPTIONS if o.file in ("written", "folder")}
"""Options that name outputs of a run, which do not change the training."""
_OF_OPTIMIZER = ("optimizer.", "sparse_tables.")
"""The first words of the settings of tables."""
_FLAGS = {option.name: option.flag for option in OPTIONS}


def by_model(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs of each model.

    Two runs are of the same model if the models have the same name, or the same layers
    and parameters.
    """
    groups: list[tuple[set[str], list[int]]] = []
    for i, run in enumerate(runs):
        keys, members = {f"name {run.command.name}"}, [i]
        if (digest := run.command.settings.get(MODEL_DIGEST)) is not None:
            keys.add(f"digest {digest}")
        for group in [group for group in groups if group[0] & keys]:
            groups.remove(group)
            keys |= group[0]
            members += group[1]
        groups.append((keys, sorted(members)))
    groups.sort(key=lambda group: group[1])
    return [[runs[i] for i in members] for _, members in groups]


def comparable_settings(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the settings of each run, with the same keys for the same setting.

    A run with `--set train.optimizer.learning_rate=0.1` has this key, and the runs without
    `--set` have `optimizer.dense.learning_rate`. All of them get the key of `--set`.
    """
    settings = [dict(run.settings) for run in runs]
    for key in dict.fromkeys(chain.from_iterable(run.command.set for run in runs)):
        if (same := _same_setting(runs, key)) is not None:
            for each in settings:
                each[key] = each.pop(same, None)
    return settings


def _same_setting(runs: Sequence[Run], key: str) -> str | None:
    """Return the only setting whose value follows a key of `--set`; None if there are
    none or several."""
    changed = [run.command for run in runs if key in run.command.set]
    if any(key in run.command.settings for run in runs):
        return None
    if key.startswith("nodes.") and key.endswith(".count"):
        # The settings of a run have the number of nodes as `nodes.worker`.
        nodes = key.removesuffix(".count")
        is_same = all(each.settings.get(nodes) == each.set[key] for each in changed)
        return nodes if is_same else None
    last = key.rpartition(".")[2]
    found = [
        name
        for name in changed[0].settings
        if name.rpartition(".")[2] == last
        and all(each.settings.get(name) == each.set[key] for each in changed)
    ]
    return found[0] if len(found) == 1 else None


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Return the settings in which the runs differ: first those of `--set`, then
    options, then the rest of the spec."""
    of_set = chain.from_iterable(run.command.set for run in runs)
    options = chain.from_iterable(run.command.options for run in runs)
    settings = comparable_settings(runs)
    found = [
        key
        for key in dict.fromkeys(chain(of_set, options, *settings))
        if key not in _OUTPUTS
        and any(each.get(key) != settings[0].get(key) for each in settings)
    ]
    return [key for key in found if not _follows(key, found, settings)]


def _follows(
    key: str, keys: Sequence[str], settings: Sequence[Mapping[str, Any]]
) -> bool:
    """Return True if a setting differs only because of other settings in `keys`."""
    if key == MODEL_DIGEST:
        return any(other.startswith("graph.") for other in keys)
    if key == GRAPH_DIGEST:
        others = [other for other in keys if other != key]
        return _explain(others, key, settings)
    # Another update rule has other constants.
    section, _, last = key.rpartition(".")
    if not section.startswith(_OF_OPTIMIZER) or last in ("op", "learning_rate"):
        return False
    ops = [other for other in keys if other.rpartition(".")[2] == "op"]
    return _explain(ops, key, settings)


def _explain(
    keys: Sequence[str], key: str, settings: Sequence[Mapping[str, Any]]
) -> bool:
    """Return True if runs with equal values of `keys` have the same value of `key`."""
    values: dict[str, Any] = {}
    return all(
        values.setdefault(str([each.get(k) for k in keys]), each.get(key))
        == each.get(key)
        for each in settings
    )


def setting_name(key: str, runs: Sequence[Run]) -> str:
    """Return the key of a setting, or the flag of an option.

    Another version of placer may have written the run: its options can be unknown.
    """
    is_option = any(key in run.command.options for run in runs)
    return _FLAGS.get(key, f"--{key.replace('_', '-')}") if is_option else key
