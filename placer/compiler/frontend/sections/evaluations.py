"""Reads the keys of `train` about evaluations and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from placer.compiler.frontend.schema import (
    BestKeys,
    CheckpointKeys,
    EarlyStopping,
    Eval,
)
from placer.compiler.frontend.yaml.decode import decode
from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.tree import MappingNode, ScalarNode, SpecNode
from placer.errors import PlacerError, did_you_mean
from placer.plan.settings.evaluation_and_stopping import (
    EPOCH,
    Best,
    Checkpointing,
    EarlyStop,
    Interval,
)


def read_eval(node: SpecNode | None, problems: Problems) -> Interval:
    """Read `train.eval`: how often to evaluate."""
    if node is None:
        return EPOCH
    good = decode(node, Eval, "train.eval", problems)
    hint = "write epoch, or 100 steps"
    every = _interval(node, good.get("every", "epoch"), problems, hint)
    if every.unit == "seconds":
        assert isinstance(node, MappingNode)
        problems.add(
            "an evaluation comes after a number of steps, not after a time",
            node.entries["every"].span,
            hint,
        )
        return EPOCH
    return every


def read_checkpoint(
    node: SpecNode | None,
    metrics: Sequence[str] | None,
    has_eval: bool,
    problems: Problems,
) -> Checkpointing | None:
    """Read `train.checkpoint`; `metrics` are those of an evaluation,
    None after an error."""
    if node is None:
        return None
    good = decode(node, CheckpointKeys, "train.checkpoint", problems)
    every = _interval(node, good.get("every", "epoch"), problems)
    best = None
    if (entry := good.get("best")) is not None:
        where = "train.checkpoint.best"
        keys = decode(entry, BestKeys, where, problems)
        best = _best(entry, keys, where, metrics, has_eval, problems)
    if "to" not in good or "keep" not in good:
        return None
    return Checkpointing(good["to"], every, good["keep"], best)


def read_early_stopping(
    node: SpecNode | None,
    metrics: Sequence[str] | None,
    has_eval: bool,
    problems: Problems,
) -> EarlyStop | None:
    """Read `train.early_stopping`; `metrics` are those of an evaluation,
    None after an error."""
    if node is None:
        return None
    where = "train.early_stopping"
    good = decode(node, EarlyStopping, where, problems)
    best = _best(node, good, where, metrics, has_eval, problems)
    if best is None or not {"patience", "min_delta"} <= good.keys():
        return None
    return EarlyStop(best, good["patience"], float(good["min_delta"]))


def _interval(
    node: SpecNode, text: str | int, problems: Problems, hint: str | None = None
) -> Interval:
    try:
        return Interval.parse(text)
    except PlacerError as error:
        assert isinstance(node, MappingNode)
        problems.add(error.message, node.entries["every"].span, hint or error.hint)
        return EPOCH


def _best(
    node: SpecNode,
    good: Mapping[str, Any],
    where: str,
    metrics: Sequence[str] | None,
    has_eval: bool,
    problems: Problems,
) -> Best | None:
    if not isinstance(node, MappingNode) or not {"metric", "mode"} <= good.keys():
        return None
    metric = node.entries["metric"]
    assert isinstance(metric, ScalarNode)
    if not has_eval:
        message = f"{where} needs rows to evaluate on"
        problems.add(message, metric.span, "add a source as data.eval")
    elif metrics is not None and metric.text not in metrics:
        hint = did_you_mean(metric.text, metrics)
        problems.add(f"'{metric.text}' is not in train.metrics", metric.span, hint)
    return Best(good["metric"], good["mode"])
