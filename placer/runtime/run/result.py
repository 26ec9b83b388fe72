"""The result of a run."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

Metrics: TypeAlias = dict[str, float]


class Result(msgspec.Struct, frozen=True, tag_field="event", tag="result"):
    """The result of a run, which the control node reports as an event.

    Attributes:
        steps: the number of training steps.
        metrics: the metrics over all rows of the last epoch, or of the part of it that
            ran.
        eval: the metrics over all rows of the last evaluation.
        samples_per_second: rows of the global batch per second, without the first step.
        bytes_sent: the payload bytes that each node sent.
        checkpoint_seconds: how long the steps of the control node have waited for
            checkpoints.
        warnings: messages about processes that failed after the run had this result.

    Example:
        result = placer.launch("build")
        print(result.eval["accuracy"])
    """

    steps: int
    metrics: Metrics
    eval: Metrics
    samples_per_second: float
    bytes_sent: dict[str, int]
    checkpoint_seconds: float = 0.0
    warnings: tuple[str, ...] = ()
