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
    warnings: tuple[str, ...] = ()


class PredictionResult(
    msgspec.Struct, frozen=True, tag_field="event", tag="prediction_result"
):
    """The result of a prediction, which the control node reports as an event.

    Attributes:
        rows: the number of rows.
        samples_per_second: rows per second, after everything was compiled.
        bytes_sent: the payload bytes that each node sent.
        warnings: messages about processes that failed after the predictions were
            written.
    """

    rows: int
    samples_per_second: float
    bytes_sent: dict[str, int]
    warnings: tuple[str, ...] = ()


Outcome: TypeAlias = Result | PredictionResult
"""What the control node reports at the end of a run."""
