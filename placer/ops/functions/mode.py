"""How a function is traced: for training or evaluation, by rows, or by parts."""

from __future__ import annotations

from dataclasses import dataclass

import jax


@dataclass(frozen=True, slots=True)
class Mode:
    """How a function is traced.

    Attributes:
        training: for training steps, not for evaluations.
        by_rows: random numbers are drawn for each row of the batch.
        parts: if not 0, the function computes one of this many parts of the batch.
        axis: the name of the axis over the parts.
    """

    training: bool = False
    by_rows: bool = False
    parts: int = 0
    axis: str = ""


EVALUATION, TRAINING = Mode(), Mode(training=True)


def widest_float() -> str:
    """Return the widest float, float64 or float32, on which traces depend too."""
    return str(jax.dtypes.canonicalize_dtype("float64"))
