"""The projections of multi_head_attention, by operand name."""

from __future__ import annotations

from collections.abc import Collection

SEQUENCES = ("query", "key", "value")
_PROJECTIONS = (*SEQUENCES, "output")
WEIGHTS = tuple(f"w_{which}" for which in _PROJECTIONS)
BIASED = tuple(f"{letter}_{which}" for which in _PROJECTIONS for letter in "wb")
"""The parameters of a layer with biases."""


def projection_sources(names: Collection[str]) -> dict[str, str]:
    """Return the operands that queries, keys and values are projected from."""
    present = [name for name in SEQUENCES if name in names]
    last = len(present) - 1
    return {name: present[min(i, last)] for i, name in enumerate(SEQUENCES)}


def is_saved(name: str) -> bool:
    """Return True if the backward needs the operand."""
    return name in SEQUENCES or name in WEIGHTS
