"""Checks the keys of `train` for evaluations, checkpoints and early stopping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.tree import MappingNode, ScalarNode, SpecNode
from placer.errors import PlacerError, did_you_mean
from placer.plan.settings.evaluation_and_stopping import (
    Checkpointing,
    Evaluating,
    Publishing,
)


def check_evaluations(
    section: MappingNode,
    settings: Mapping[str, Any],
    metrics: Sequence[str] | None,
    has_eval: bool,
    problems: Problems,
) -> None:
    """Report invalid intervals, and metrics that evaluations do not compute.

    Args:
        section: The section `train`.
        settings: Its valid settings, by the keys of `TrainKeys`.
        metrics: The metrics of evaluations; None after an error.
        has_eval: Whether rows for evaluation exist.
        problems: Collects the errors.
    """
    eval_, checkpoint = section.get("eval"), section.get("checkpoint")
    check_interval(eval_, settings.get("eval"), Evaluating, problems)
    check_interval(checkpoint, settings.get("checkpoint"), Checkpointing, problems)
    if section.get_non_null("eval") is not None and not has_eval:
        message = "'eval' in train needs evaluation rows"
        span = section.keys["eval"].span
        problems.add(message, span, "add a source as data.eval")
    best = checkpoint.get("best") if isinstance(checkpoint, MappingNode) else None
    for where, node, good in (
        (
            "early_stopping",
            section.get("early_stopping"),
            settings.get("early_stopping"),
        ),
        ("checkpoint.best", best, (settings.get("checkpoint") or {}).get("best")),
    ):
        metric = node.get("metric") if isinstance(node, MappingNode) else None
        if not isinstance(metric, ScalarNode) or not {"metric", "mode"} <= {
            *(good or ())
        }:
            continue  # The key is missing, or has an error.
        if not has_eval:
            message = f"train.{where} needs evaluation rows"
            problems.add(message, metric.span, "add a source as data.eval")
        elif metrics is not None and metric.text not in metrics:
            hint = did_you_mean(metric.text, metrics)
            problems.add(f"'{metric.text}' is not in train.metrics", metric.span, hint)


def check_interval(
    node: SpecNode | None,
    good: Mapping[str, Any] | None,
    struct: type[Evaluating | Checkpointing | Publishing],
    problems: Problems,
) -> None:
    """Report an invalid interval: the key `every` of a mapping with these valid keys."""
    every = node.get("every") if isinstance(node, MappingNode) else None
    if every is None or good is None or "every" not in good:
        return
    try:
        _ = struct(every=good["every"]).interval
    except PlacerError as error:
        problems.add_error(error, span=every.span)
