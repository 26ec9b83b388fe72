"""Check that what a run keeps is finite: parameters, optimizer state and rows of sparse
tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from placer.build.plan import Plan

_CHUNK: Final = 1 << 16
"""The number of elements that are checked at a time, so that they stay in the cache."""


def not_finite(plan: Plan, arrays: Mapping[str, Any]) -> str:
    """Return why arrays must not be kept: the first one that has NaN or an infinity.

    A run that continued from them would diverge at once. So every way to keep a model
    refuses them: checkpoints, `--save-params` and `Result.params`.

    Args:
        plan: the plan; with `train.nan: warn` nothing is refused.
        arrays: by name, of any shape and dtype.

    Returns:
        A message such as `'h1.w' is not finite`, empty if nothing is refused.
    """
    if plan.nan != "stop":
        return ""
    for name, array in arrays.items():
        flat = array.reshape(-1)
        for at in range(0, flat.size, _CHUNK):
            if not np.isfinite(flat[at : at + _CHUNK]).all():
                return f"'{name}' is not finite"
    return ""
