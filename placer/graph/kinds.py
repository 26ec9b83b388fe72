"""The ops that are not computed: what enters, leaves, updates and crosses a step.

Everything else is declared in `placer.ops`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placer.config import optimizers
from placer.graph.graph import APART, TOGETHER, Op

ENTRIES = frozenset({"read", "parameter"})
"""What a step begins with."""

RECIPES = frozenset({"optimizer", "minimize"})
"""What a front end writes and `differentiate` replaces."""

EXITS = frozenset({"store", "record"})
"""What a step leaves behind: a new parameter value, a metric."""

MESSAGES = frozenset({"send", "listen_and_serv"})
"""What crosses between nodes (seed 004's names)."""

TRIGGER = "send_and_recv"
"""A message to a heter node and what comes back of it, as one op of a worker: `edge` and
`back` are their edges (seed 001)."""

COPIES = frozenset({"memcpy_h2d", "memcpy_d2h", "memcpy_d2d"})
"""What goes between devices of one node: from its memory to a device, back, and from one
device to another (seed 004's names)."""

OVER = frozenset({*TOGETHER.values(), *APART.values()})
"""What goes from the microbatches of a step to the whole of it, and back."""

FLAT = frozenset({"cut", "assemble"})
"""A flat range of a parameter's gradient, and a parameter put together from blocks:
both are views of memory, never computed."""

CONVERSIONS = {
    ("R", "R"): "copy",
    ("S", "R"): "all_gather",
    ("P", "R"): "all_reduce",
    ("R", "S"): "shard",
    ("S", "S"): "reshard",
    ("P", "S"): "reduce_scatter",
    ("R", "P"): "partial",
    ("S", "P"): "spread",
    ("P", "P"): "fold",
}
"""The op that turns one layout into another, between any two sets of places."""

SUFFIXES = frozenset(
    {"grad", "res", "again", "h2d", "d2h", "d2d", *CONVERSIONS.values()}
    | {"total", "each"}
)
"""What the compiler adds to the name of an op's value, after a dot: no parameter of the
op is called so."""


UNDECLARED: Mapping[str, str] = {
    "segment": "the number of the jitted function that computes the op",
    "once": "computed before an evaluation's first batch, and not for each",
    "wrt": "the forward op's operands that the gradient is taken of",
    "cotangents": "the forward op's results that it is taken by, unless by all",
    "of": "the value that a sum is the gradient of",
    "part": "this is a sum of those of one place, before all are summed",
    "group": "the optimizer that the op is for, by its number",
    "decay": "whether that optimizer decays the parameter",
    "remat": "the block that is computed again for backward, by its number",
    "again": "this is the second time",
    "server": "the loads that decided on which server the op stands",
}
"""Attributes that front ends and passes write and no declaration knows, and what each
says of an op."""


def is_once(op: Op) -> bool:
    """Whether an evaluation runs the op before its first batch, and not for each."""
    return bool(op.attrs.get("once", False))


def is_computed(op: Op) -> bool:
    """Whether the op is part of a jitted function."""
    return not is_structural(op.kind)


def declared_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that the op's declaration knows."""
    return {k: v for k, v in attrs.items() if k not in UNDECLARED}


def is_conversion(kind: str) -> bool:
    return kind in _CONVERSION_KINDS


def is_structural(kind: str) -> bool:
    """Whether the kind is no computation: it is not declared in `placer.ops`."""
    return kind in _STRUCTURAL


def is_update(kind: str) -> bool:
    """Whether the kind is an optimizer rule: it makes a parameter's new value."""
    return kind in _UPDATES


def is_optimizers(kind: str) -> bool:
    """Whether the kind is part of what optimizers do with gradients."""
    return kind in _OPTIMIZERS


def is_direction(kind: str) -> bool:
    """Whether the kind is the first half of a rule that needs norms in between."""
    return kind in _DIRECTIONS


_CONVERSION_KINDS = frozenset(CONVERSIONS.values())
_UPDATES = frozenset(optimizers.names())
_DIRECTIONS = frozenset(f"{name}.direction" for name in optimizers.names())
SCALES = frozenset({"clip_scale", "trust_ratio"})
"""What an update is multiplied by: scalars, from sums of squares."""
_OPTIMIZERS = _UPDATES | _DIRECTIONS | SCALES | {"sum_of_squares", "clip_value"}
STRUCTURAL = ENTRIES | RECIPES | EXITS | MESSAGES | {TRIGGER} | COPIES | OVER | FLAT
_STRUCTURAL = STRUCTURAL | _UPDATES | _DIRECTIONS
