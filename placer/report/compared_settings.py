"""Compares the settings of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from placer.report.run_files import GRAPH_DIGEST, MODEL_DIGEST, NAME, Run
from placer.runtime.control.options import OPTIONS

_OUTPUTS = {o.name for o in OPTIONS if o.file in ("written", "folder")}
"""Options that name outputs of a run, which do not change the training."""
_TRAIN_BATCH, _EVAL_BATCH = "data.train.batch", "data.eval.batch"
_OPTIMIZER = "train.optimizer."
"""The first words of the keys of optimizers in a spec."""
_OF_TABLE = "optimizer."
"""The first word of the settings of the optimizer of a table."""
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

    The settings of a compiled model are complete and in one form, so they replace the
    values of `--set`. A run with `--set train.optimizer.learning_rate=.1` has this key, and
    the runs without `--set` have `optimizer.dense.learning_rate`. All of them get the key
    of `--set`, with the compiled value.
    """
    settings = [dict(run.settings) for run in runs]
    renamed = set()
    for key in dict.fromkeys(chain.from_iterable(run.command.set for run in runs)):
        same = _compiled_from(key, runs)
        if not same or key in same:
            continue
        for each in settings:
            each.pop(key, None)
        (first, *others), last = same, key.rpartition(".")[2]
        is_whole = last in (first.rpartition(".")[2], "count")
        if is_whole and not others and first not in renamed:
            renamed.add(first)
            for each in settings:
                each[key] = each.pop(first, None)
    return settings


def _compiled_from(key: str, runs: Sequence[Run]) -> list[str]:
    """Return the settings of the compiled models that contain the value of a key of a
    spec. Empty for a key such as the size of a layer, which only changes the graph."""
    known = dict.fromkeys(chain.from_iterable(run.command.settings for run in runs))
    parts = key.split(".")
    outer = [".".join(parts[:i]) for i in range(len(parts), 0, -1)]
    if found := [each for each in outer if each in known]:
        return found[:1]
    if parts[0] == "nodes" and parts[2:] == ["count"]:
        # The settings of a run have the number of nodes as `nodes.worker`.
        return [each for each in known if each == f"nodes.{parts[1]}"]
    if not key.startswith(_OPTIMIZER):
        return []
    field, *_ = [*parts[2 + parts[2].isdigit() :], ""]
    found = [
        each
        for each in known
        if each.startswith(_OF_TABLE) and each.rpartition(".")[2] == field
    ]
    changed = [run.command for run in runs if key in run.command.set]
    equal = [
        each
        for each in found
        if all(run.settings.get(each) == run.set[key] for run in changed)
    ]
    return equal if len(equal) == 1 else found


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Return the settings in which the runs differ: first those of `--set`, then
    options, then the rest of the spec.

    A value of `--set` that changes nothing in the compiled models is no difference.
    """
    of_set = chain.from_iterable(run.command.set for run in runs)
    options = chain.from_iterable(run.command.options for run in runs)
    settings = comparable_settings(runs)
    found = [
        key
        for key in dict.fromkeys(chain(of_set, options, *settings))
        if key not in _OUTPUTS
        and any(each.get(key) != settings[0].get(key) for each in settings)
    ]
    compiled = [
        [run.command.settings.get(key) for key in (MODEL_DIGEST, GRAPH_DIGEST)]
        for run in runs
    ]
    if all(each == compiled[0] and None not in each for each in compiled):
        known = set(chain.from_iterable(settings)) - {
            key
            for run in runs
            for key in run.command.set
            if not _compiled_from(key, runs)
        }
        found = [key for key in found if key in known]
    if all(run.folder.name.startswith(f"{run.command.name}-") for run in runs):
        found = [key for key in found if key != NAME]  # The names of the runs show it.
    return [key for key in found if not _follows(key, found, settings)]


def _follows(
    key: str, keys: Sequence[str], settings: Sequence[Mapping[str, Any]]
) -> bool:
    """Return True if a setting differs only because of other settings in `keys`."""
    if key == _EVAL_BATCH:
        same = all(each.get(key) == each.get(_TRAIN_BATCH) for each in settings)
        return same and _TRAIN_BATCH in keys
    if key == MODEL_DIGEST:
        return any(other.startswith("graph.") for other in keys)
    if key == GRAPH_DIGEST:
        others = [other for other in keys if other != key]
        return _explain(others, key, settings)
    # Another update rule has other constants.
    section, _, last = key.rpartition(".")
    if not section.startswith(_OF_TABLE) or last in ("op", "learning_rate"):
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
