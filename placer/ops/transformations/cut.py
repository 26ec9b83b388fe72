"""Compares the update of a block with the update of its whole parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from placer.place.types import TensorType


def differences_on_blocks(
    make: Callable[..., Any],
    types: Mapping[str, TensorType],
    blocks: Mapping[str, tuple[int, ...]],
    *,
    averaged: Callable[..., Any] | None = None,
    wide: bool,
) -> dict[str, str]:
    """Return the parameters that cannot be updated by blocks, each with the reason.

    Args:
        make, types, averaged, wide: as for `describe`.
        blocks: the shape of a block of each cut parameter: fewer rows, or a flat shape.
    """
    raise NotImplementedError
