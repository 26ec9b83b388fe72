"""The structural ops: they read, store, send, copy and update, and compute nothing.

Computed ops are declared in `placer.ops`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placer.config import optimizers
from placer.graph.graph import MICROBATCH_REDUCTIONS, MICROBATCH_SCATTERS, Op
from placer.layouts import Layout

SOURCES = frozenset({"read", "parameter"})
"""Ops without operands at the start of a step: they read inputs and parameters."""

TRAINING_DIRECTIVES = frozenset({"optimizer", "minimize"})
"""Ops by which a front end specifies the training; passes replace them with updates."""

SINKS = frozenset({"store", "record"})
"""Ops without results at the end of a step: they store a parameter, record a metric."""

MESSAGES = frozenset({"send", "listen_and_serv"})
"""Ops that send and receive the message of an edge. PaddlePaddle has ops with these
names."""

REQUEST_REPLY = "send_and_recv"
"""An op of a worker that sends a message to a heter node and waits for the reply.
`edge` is the edge of the request, `back` that of the reply. PaddlePaddle has an op with
this name."""

COPIES = frozenset({"memcpy_h2d", "memcpy_d2h", "memcpy_d2d"})
"""Copies between the devices of one node: from host memory to a device, back, and from
one device to another."""

MICROBATCH_CONVERSIONS = frozenset(
    {*MICROBATCH_REDUCTIONS.values(), *MICROBATCH_SCATTERS.values()}
)
"""Ops between the values of single microbatches and the values of the whole step."""

FLAT_VIEWS = frozenset({"cut", "assemble"})
"""Ops between a tensor and its flat blocks: `cut` is a range of a parameter's gradient,
`assemble` the parameter that consists of some blocks. Both are views of memory."""

CONVERSIONS: Mapping[tuple[Layout, Layout], str] = {
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
"""The kind of the op that converts the first layout to the second, between any two sets
of nodes. `conversion_kind` knows the one exception."""

REDUCE = "reduce"
"""The kind of a conversion from P to R that has a single target node."""

CONVERSION_KINDS = frozenset({*CONVERSIONS.values(), REDUCE})

VALUE_SUFFIXES = frozenset(
    {"grad", "res", "again", "h2d", "d2h", "d2d", *CONVERSION_KINDS} | {"total", "each"}
)
"""What the compiler appends to the name of a value of an op, after a dot. A parameter
of an op cannot have such a name."""


UNDECLARED_ATTRS: Mapping[str, str] = {
    "segment": "the number of the jitted function that computes the op",
    "once": "computed once, before the first batch of an evaluation",
    "wrt": "the operands of the forward op that the gradient is taken with respect to",
    "cotangents": "the results of the forward op that have cotangents, if not all do",
    "of": "the value that this sum is the gradient of",
    "part": "this sums only the gradients of one place; another sum adds up the places",
    "group": "the number of the optimizer that the op belongs to",
    "decay": "whether that optimizer applies weight decay to the parameter",
    "remat": "the number of the block that the backward pass recomputes",
    "again": "the op is a recomputation",
    "server": "the loads that decided which server runs the op",
}
"""Attributes that front ends and passes write and no declaration contains, with their
meaning."""


def conversion_kind(have: Layout, need: Layout, targets: int) -> str:
    """Return the kind of the op that converts a value to another layout.

    `targets` is the number of nodes that the converted value is needed on. A sum that a
    single node needs is a `reduce`; `all_reduce` gives it to several nodes.
    """
    if (have, need) == ("P", "R") and targets == 1:
        return REDUCE
    return CONVERSIONS[have, need]


def is_once(op: Op) -> bool:
    """Whether an evaluation runs the op once, before its first batch."""
    return bool(op.attrs.get("once", False))


def is_computed(op: Op) -> bool:
    """Whether the op is part of a jitted function."""
    return not is_structural(op.kind)


def declared_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that the declaration of the op contains."""
    return {k: v for k, v in attrs.items() if k not in UNDECLARED_ATTRS}


def is_conversion(kind: str) -> bool:
    """Whether the kind changes the layout or the place of a value."""
    return kind in CONVERSION_KINDS


def is_structural(kind: str) -> bool:
    """Whether ops of the kind are not part of a jitted function."""
    return kind in _NOT_JITTED


def is_update(kind: str) -> bool:
    """Whether the kind is an optimizer rule, whose result is a parameter's new
    value."""
    return kind in _UPDATES


def is_optimizer_part(kind: str) -> bool:
    """Whether the kind belongs to the optimizers: clipping, norms, scales, updates."""
    return kind in _OPTIMIZER_PARTS


def is_update_direction(kind: str) -> bool:
    """Whether the kind is the first phase of a two-phase rule."""
    return kind in _UPDATE_DIRECTIONS


_UPDATES = frozenset(optimizers.names())
_UPDATE_DIRECTIONS = frozenset(f"{name}.direction" for name in optimizers.names())
SCALES = frozenset({"clip_scale", "trust_ratio"})
"""Ops that compute a scalar from sums of squares; updates are multiplied by it."""
_OPTIMIZER_PARTS = (
    _UPDATES | _UPDATE_DIRECTIONS | SCALES | {"sum_of_squares", "clip_value"}
)
STRUCTURAL = (
    SOURCES
    | TRAINING_DIRECTIVES
    | SINKS
    | MESSAGES
    | {REQUEST_REPLY}
    | COPIES
    | MICROBATCH_CONVERSIONS
    | FLAT_VIEWS
)
# The tables of a node apply updates, outside of jitted functions.
_NOT_JITTED = STRUCTURAL | _UPDATES | _UPDATE_DIRECTIONS
