"""Turns class scores into columns: the class of each row, and class probabilities.

An exported model contains a copy of these functions (`placer.compiler.serving.postprocess_file`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def class_columns(
    scores: Any, form: str, names: Sequence[str] = (), prefix: str = ""
) -> dict[str, np.ndarray]:
    """Return the column `class`, and a column `probability.NAME` for each class.

    The class of a row is the first class with the largest score. If a score is NaN, the row
    has no class: "", or -1 if classes have no names.

    Args:
        scores: the output of the model: [rows, classes], or one value per row if `form` is
            "logit" or "probability".
        form: the meaning of the scores: "logits" or "probabilities" of all classes, or the
            "logit" or "probability" of class 1 of two classes.
        names: the names of the classes; by default their numbers.
        prefix: a prefix for the names of the columns.
    """
    scores = as_float(scores)
    if form in ("logit", "probability"):
        scores = scores.reshape(len(scores))
        is_logit = form == "logit"
        index = (scores > (0 if is_logit else 0.5)).astype(np.int64)
        pair = (sigmoid(-scores), sigmoid(scores)) if is_logit else (1 - scores, scores)
        has_nan, probabilities = np.isnan(scores), np.stack(pair, axis=1)
    else:
        index = scores.argmax(axis=1)
        has_nan = np.isnan(scores).any(axis=1)
        probabilities = softmax(scores) if form == "logits" else scores
    index[has_nan] = -1
    classes = np.array([*names, ""], np.str_)[index] if names else index
    columns = {f"{prefix}class": classes}
    for number, column in enumerate(probabilities.T):
        name = names[number] if names else number
        columns[f"{prefix}probability.{name}"] = np.ascontiguousarray(column)
    return columns


def as_float(scores: Any) -> np.ndarray:
    """Convert scores to float32, unless they are float32 or float64."""
    array = np.asarray(scores)
    return (
        array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)
    )


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return the probability of class 1, without overflow for any logit."""
    small = np.exp(-np.abs(logits))
    return np.asarray(np.where(logits >= 0, 1, small) / (1 + small))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the probability of each class, [rows, classes]."""
    with np.errstate(invalid="ignore"):  # infinite logits
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))
