"""The ops that are not computed: what enters, leaves, updates and crosses a step.

Everything else is declared in `placer.ops`.
"""

from __future__ import annotations

from placer.graph import optimizers

ENTRIES = frozenset({"read", "parameter"})
"""What a step begins with."""

RECIPES = frozenset({"optimizer", "minimize"})
"""What a front end writes and `differentiate` replaces."""

EXITS = frozenset({"store", "record"})
"""What a step leaves behind: a new parameter value, a metric."""

MESSAGES = frozenset({"send", "listen_and_serv"})
"""What crosses between nodes (seed 004's names)."""

FLAT = frozenset({"cut", "assemble"})
"""A flat range of a parameter's gradient, and a parameter put together from blocks:
both are views of memory, never computed."""

CONVERSIONS = {
    ("R", "R"): "copy",
    ("S", "R"): "all_gather",
    ("P", "R"): "all_reduce",
    ("R", "S"): "split",
    ("S", "S"): "reshard",
    ("P", "S"): "reduce_scatter",
    ("R", "P"): "partial",
    ("S", "P"): "spread",
    ("P", "P"): "fold",
}
"""The op that turns one layout into another, between any two sets of places."""


def is_conversion(kind: str) -> bool:
    return kind in _CONVERSION_KINDS


def is_structural(kind: str) -> bool:
    """Whether the kind is no computation: it is not declared in `placer.ops`."""
    return kind in _STRUCTURAL


def is_update(kind: str) -> bool:
    """Whether the kind is an optimizer rule."""
    return kind in _UPDATES


_CONVERSION_KINDS = frozenset(CONVERSIONS.values())
_UPDATES = frozenset(optimizers.names())
STRUCTURAL = ENTRIES | RECIPES | EXITS | MESSAGES | FLAT
_STRUCTURAL = STRUCTURAL | _UPDATES
