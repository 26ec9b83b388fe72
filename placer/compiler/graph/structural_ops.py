"""Declares the structural ops: they read, store, send, copy and update values.

Passes and the emitter look up everything they need in these declarations. To add a
structural op: declare it here, insert it in its pass, and add a method of its name to
`placer.runtime.node.node.Node`. Computed ops are declared in `placer.ops`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from placer.compiler.graph import attributes as attr
from placer.compiler.graph.attributes import attributes, own
from placer.compiler.graph.structural_kind import LevelPhase, StructuralKind
from placer.compiler.graph.structural_types import (
    assemble_types,
    cut_types,
    distinct_types,
    exact_squares_types,
    lookup_types,
    operand_types,
    rounded_sum_types,
    store_types,
    sum_by_key_types,
    update_types,
)
from placer.place import Place
from placer.place.layouts import Layout
from placer.plan.exchanges import EXCHANGES, Exchange
from placer.plan.settings.training import optimizers

COMPUTED = StructuralKind(
    name="",
    doc="compute the results in a jitted function: any kind that is not structural",
    attrs=attr.COMPUTED,
    phase=LevelPhase.COMPUTE,
)
"""The structural properties of all computed ops. `placer.ops` declares the rest."""

_UPDATE = StructuralKind(
    name="",
    doc="compute the new value of a parameter in its table",
    attrs=attributes(
        attr.GROUP_OF_UPDATE,
        attr.DECAY,
        own("limit", float, "the bound to which gradients are clipped by value"),
    ),
    infer=update_types,
    effect=True,
    waits_for_microbatches=True,
    on_ranges=True,
    update="value",
)

_COPY = StructuralKind(
    name="",
    doc="copy values between host memory and the devices of a node",
    attrs=attributes(own("rows", int, "number of results with rows; these come first")),
    why="inserted: {operands} used on {devices}",
    infer=operand_types,
    phase=LevelPhase.COPY_IN,
    computed_phase=LevelPhase.COPY_OUT,
    delays_earlier_phases=True,
    level="early",
    copies=True,
)

_REDUCTION = StructuralKind(
    name="",
    doc="reduce the values of all microbatches to one value of the step",
    why="inserted: combines '{operands}' of all microbatches",
    infer=operand_types,
    delay=1,
    grouped=True,
    layout="operands",
    waits_for_microbatches=True,
)

_SCATTER = StructuralKind(
    name="",
    doc="distribute a value of the step over the microbatches",
    why="inserted: gives each microbatch its part of '{operands}'",
    infer=operand_types,
    phase=LevelPhase.ENTRY,
    layout="operands",
    aliases=True,
)


def _moving(exchange: Exchange) -> StructuralKind:
    return StructuralKind(
        name=exchange.name,
        doc=exchange.doc,
        attrs=attr.of_exchange(exchange),
        why=exchange.why,
        infer=operand_types,
        delay=1,
        level="fixed",
        layout=exchange.layout,
        microbatches="operands" if exchange.is_by_key else "once",
        moves=True,
        waits_for_microbatches=exchange.waits_for_microbatches,
    )


KINDS: dict[str, StructuralKind] = {
    kind.name: kind
    for kind in (
        StructuralKind(
            name="read",
            doc="read an input from the source",
            attrs=attributes(own("input", str, "name of the input", required=True)),
            phase=LevelPhase.READ,
            grouped=True,
            per_batch=True,
            anywhere=True,
            host_memory=True,
            layout="rows",
            microbatches="rows",
        ),
        StructuralKind(
            name="parameter",
            doc="read a parameter, or a block of one, from its table",
            attrs=attributes(
                attr.INIT,
                attr.GROUP,
                attr.DECAY,
                attr.TRAINABLE,
                attr.WHOLE,
                own("state", bool, "whether the step updates it directly"),
                own("per_worker", bool, "whether each worker keeps its own state"),
                own("shape", tuple[int, ...], "shape of the whole parameter"),
                own("start", int, "index of the block's first element"),
                own("stop", int, "index after the block's last element"),
            ),
            phase=LevelPhase.ENTRY,
            effect=True,
            grouped=True,
            allocates=False,
            on_ranges=True,
        ),
        StructuralKind(
            name="sparse_table",
            doc="a parameter with a row for each key; its nodes hold whole partitions",
            attrs=attributes(
                attr.INIT_OF_ROWS,
                attr.GROUP,
                attr.DECAY,
                attr.TRAINABLE,
                own("sparse", dict, "the settings of the table", required=True),
                own("rows", int, "number of rows that scales random initial values"),
                own(
                    "inputs",
                    dict[str, tuple[str, str]],
                    "names and types of the inputs that it reads in addition to keys",
                ),
            ),
            phase=LevelPhase.ENTRY,
            effect=True,
            allocates=False,
            in_table=True,
        ),
        # `distributed_lookup_table` is PaddlePaddle's name.
        StructuralKind(
            name="distinct_keys",
            doc="collect the distinct keys that a node looks up in sparse tables,"
            " and the position of each key among them",
            attrs=attributes(
                own("tables", tuple[str, ...], "the sparse tables", required=True),
                own(
                    "inputs",
                    dict[str, tuple[str, ...]],
                    "for each table, names of the values in the last operands",
                ),
                own(
                    "padding",
                    tuple[int | None, ...],
                    "for each operand, the number that stands for no key",
                ),
            ),
            why="inserted: the lookup of {operands} by key",
            infer=distinct_types,
            phase=LevelPhase.ENTRY,
            computed_phase=LevelPhase.EXIT,
            delays_earlier_phases=True,
            level="early",
            grouped=True,
            host_memory=True,
            layout="own",
            microbatches="own",
        ),
        StructuralKind(
            name="distributed_lookup_table",
            doc="look up the rows of keys in a sparse table, without changing it",
            why="inserted: looks up rows by key",
            infer=lookup_types,
            phase=LevelPhase.ENTRY,
            level="early",
            grouped=True,
            microbatches="same",
            in_table=True,
        ),
        StructuralKind(
            name="sum_by_key",
            doc="add up the gradients of each key, for tables over the same keys: first"
            " over lookups, then microbatches, then nodes",
            why="inserted: sums gradients by key",
            infer=sum_by_key_types,
            delays_earlier_phases=True,
            microbatches="sum",
            in_table=True,
        ),
        StructuralKind(
            name="exact_squares",
            doc="sum the squares of gradients without rounding; for a sparse table,"
            " over the node's partitions",
            why="inserted: a part of a norm, without rounding, so that the norm does not"
            " depend on the number of servers",
            infer=exact_squares_types,
            delays_earlier_phases=True,
            waits_for_microbatches=True,
            in_table=True,
        ),
        StructuralKind(
            name="rounded_sum",
            doc="add up exact sums, and round the result",
            attrs=attributes(own("dtype", str, "dtype of the sum", required=True)),
            why="inserted: the only rounding of a sum",
            infer=rounded_sum_types,
            delays_earlier_phases=True,
            waits_for_microbatches=True,
            in_table=True,
        ),
        StructuralKind(
            name="optimizer",
            doc="declare the update rule and settings for a group of parameters",
            attrs=attr.OPTIMIZER,
            phase=LevelPhase.READ,
            effect=True,
            directive=True,
        ),
        StructuralKind(
            name="minimize",
            doc="name the loss; `differentiate` replaces it with gradients and updates",
            attrs=attributes(attr.CLIP),
            effect=True,
            directive=True,
        ),
        StructuralKind(
            name="store",
            doc="store the new value of a parameter in its table",
            infer=store_types,
            effect=True,
            waits_for_microbatches=True,
            on_ranges=True,
        ),
        StructuralKind(
            name="record",
            doc="record the value of a metric",
            attrs=attributes(
                own("metric", str, "its name", required=True),
                own("final", str, "function that computes the reported number"),
                own("minimized", bool, "whether it is the loss"),
                own(
                    "watched",
                    bool,
                    "whether it is a loss that training only checks to be finite",
                ),
            ),
            effect=True,
            grouped=True,
            per_batch=True,
            host_memory=True,
            layout="operands",
            waits_for_microbatches=True,
            retains=True,
        ),
        StructuralKind(
            name="output",
            doc="return the rows of a value from a prediction",
            attrs=attributes(own("output", str, "its name", required=True)),
            effect=True,
            grouped=True,
            per_batch=True,
            host_memory=True,
            layout="complete",
            retains=True,
        ),
        StructuralKind(
            name="cut",
            doc="slice a contiguous range out of a gradient, as a view",
            attrs=attributes(
                own("start", int, "index of the first element", required=True),
                own("stop", int, "index after the last element", required=True),
            ),
            infer=cut_types,
            delays_earlier_phases=True,
            layout="operands",
            aliases=True,
            allocates=False,
        ),
        StructuralKind(
            name="assemble",
            doc="join the blocks of a parameter, as a view",
            why="inserted: joins the blocks of the parameter",
            infer=assemble_types,
            phase=LevelPhase.ENTRY,
            aliases=True,
            allocates=False,
        ),
        StructuralKind(
            name="local_parameter",
            doc="read a worker's own copy of a parameter, after adding the changes"
            " that servers have sent",
            attrs=attributes(attr.WHOLE, attr.GROUP, attr.DECAY),
            why="inserted: each worker trains its own copy of '{whole}'",
            infer=assemble_types,
            phase=LevelPhase.ENTRY,
            effect=True,
            grouped=True,
            allocates=False,
            in_table=True,
        ),
        StructuralKind(
            name="delta",
            doc="the change of a worker's copy of a parameter since its last"
            " exchange with the servers: old values minus new values",
            infer=operand_types,
            allocates=False,
            waits_for_microbatches=True,
            in_table=True,
        ),
        *map(_moving, EXCHANGES.values()),
        # `send`, `listen_and_serv` and `send_and_recv` are PaddlePaddle's names.
        StructuralKind(
            name="send",
            doc="send the message of an edge",
            attrs=attr.of_message(own("to", Place, "the receiver", required=True)),
            why="inserted: {operands} needed at {to} (edge {edge})",
            phase=LevelPhase.SEND,
            delay=1,
            level="fixed",
            effect=True,
            sends=True,
        ),
        StructuralKind(
            name="listen_and_serv",
            doc="receive the message of an edge",
            attrs=attr.of_message(own("from", Place, "the sender", required=True)),
            phase=LevelPhase.RECEIVE,
            level="fixed",
            effect=True,
            receives=True,
        ),
        StructuralKind(
            name="send_and_recv",
            doc="send a message to a heter node and wait for the reply",
            attrs=attr.of_message(
                own(
                    "to",
                    Place,
                    "the heter node that receives the message and replies",
                    required=True,
                ),
                own("back", int, "edge number of the reply", required=True),
            ),
            why="inserted: the ops at {to} use {operands} (edges {edge} and {back})",
            level="fixed",
            effect=True,
            sends=True,
            receives=True,
        ),
        replace(_COPY, name="memcpy_h2d"),
        replace(_COPY, name="memcpy_d2h"),
        replace(_COPY, name="memcpy_d2d"),
        replace(_REDUCTION, name="sum_microbatches", reduces="P"),
        replace(_REDUCTION, name="join_microbatches", reduces="S", layout="gathered"),
        replace(_REDUCTION, name="one_microbatch", reduces="R"),
        replace(_SCATTER, name="split_microbatches", scatters="S", layout="gathered"),
        replace(_SCATTER, name="first_microbatch", scatters="P"),
        *(replace(_UPDATE, name=rule) for rule in optimizers.RULE_NAMES),
        *(
            replace(
                _UPDATE,
                name=f"{name}.direction",
                doc="compute the update directions of a two-phase rule in its table",
                delay=1,
                level="fixed",
                update="direction",
            )
            for name, rule in sorted(optimizers.RULES.items())
            if rule.is_two_phase
        ),
    )
}
"""All structural kinds, by name."""

OUTPUT = "output"
"""The kind of the ops that are the roots of a prediction."""

MICROBATCH_REDUCTIONS: Mapping[Layout, str] = {
    kind.reduces: name for name, kind in KINDS.items() if kind.reduces is not None
}
"""For each microbatch layout, the op kind that reduces all microbatches to one value."""

MICROBATCH_SCATTERS: Mapping[Layout, str] = {
    kind.scatters: name for name, kind in KINDS.items() if kind.scatters is not None
}
"""For each microbatch layout, the op kind that distributes a value of the step."""

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
    ("P", "F"): "reduce_scatter",
    ("F", "R"): "all_gather",
}
"""The op kind that converts the first layout of the key to the second, between any sets
of nodes. `conversion_kind` handles the one exception. Only the pass `exchange` divides
values into ranges (F) and joins them again."""

PARTIAL = CONVERSIONS["R", "P"]

ROW_SHARE = "row_share"
"""The computed op that replaces `PARTIAL` if workers are asynchronous."""

ROW_ESTIMATE = "row_estimate"
"""The computed op with which a worker estimates a sum over all rows from its own
rows.
"""

REDUCE = "reduce"
"""The conversion from P to R with a single target node."""

CONVERSION_KINDS = frozenset({*CONVERSIONS.values(), REDUCE})

MOVING_KINDS = CONVERSION_KINDS | {kind.name for kind in KINDS.values() if kind.moves}
"""The op kinds that move values between nodes."""

SCALES = frozenset({"clip_scale", "trust_ratio"})
"""Ops that compute a scalar factor for updates from sums of squares."""

CLIP_PART = "clip_part"
"""The computed op that clips the gradients of one worker."""

COMPUTED_ON_RANGES = frozenset({"clip_value", "sum_of_squares"})
"""Computed ops that can work on each node's ranges of values of layout F."""

_OPTIMIZER_PARTS = SCALES | {
    "sum_of_squares",
    "exact_squares",
    "rounded_sum",
    "clip_value",
}

VALUE_SUFFIXES = frozenset(
    {"grad", "res", "again", "h2d", "d2h", "d2d", *MOVING_KINDS}
    | {"total", "each", "local", "trained", "delta", ROW_SHARE, ROW_ESTIMATE}
)
"""Suffixes that the compiler appends to names of values, after a dot. Parameters of an
op cannot have these names."""


def conversion_kind(have: Layout, need: Layout, targets: int) -> str:
    """Return the op kind that converts a value to another layout. `targets` is the
    number of nodes that need the value. A sum for a single node is a `reduce`, for
    several nodes an `all_reduce`."""
    if (have, need) == ("P", "R") and targets == 1:
        return REDUCE
    return CONVERSIONS[have, need]


def is_conversion(kind: str) -> bool:
    """Return True if the kind changes the layout or the place of a value."""
    return kind in CONVERSION_KINDS


def is_update(kind: str) -> bool:
    """Return True for an optimizer rule, whose result is a parameter's new value."""
    return KINDS.get(kind, COMPUTED).update == "value"


def is_update_direction(kind: str) -> bool:
    """Return True for the first phase of a two-phase rule."""
    return KINDS.get(kind, COMPUTED).update == "direction"


def is_optimizer_part(kind: str) -> bool:
    """Return True for kinds of optimizers: clipping, norms, scales and updates."""
    return kind in _OPTIMIZER_PARTS or KINDS.get(kind, COMPUTED).update is not None
