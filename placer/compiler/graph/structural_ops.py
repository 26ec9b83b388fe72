"""The declarations of the structural ops: these read, store, send, copy and update.

Passes, analyses and the emitter ask the declaration of a kind for all that they need to
know, so a new structural op is declared here, inserted by its pass, and run by a method
of `placer.runtime.node.node.Node` with its name. Computed ops are declared in
`placer.ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Literal

from placer.compiler.graph import attributes as attr
from placer.compiler.graph.attributes import Attributes, attributes, own
from placer.errors import OpError
from placer.place import Place
from placer.place.layouts import Layout
from placer.place.types import KEYS, TensorType, ValueType
from placer.plan.exchanges import EXCHANGES, Exchange
from placer.plan.settings.sparse.exact_sums import LIMBS
from placer.plan.settings.training import optimizers

if TYPE_CHECKING:
    from placer.compiler.graph.graph import Op


class LevelPhase(IntEnum):
    """The phases of a level, in the order in which a node runs them."""

    READ = 0
    """Inputs are read first, while other nodes prepare the messages of this level."""
    RECEIVE = 1
    """Messages arrive."""
    ENTRY = 2
    """Parameters are read or assembled, and values are distributed over
    microbatches."""
    COPY_IN = 3
    """What was not computed is copied to the devices that use it."""
    COMPUTE = 4
    """Jitted functions run."""
    COPY_OUT = 5
    """What was computed is copied to the devices that use it."""
    EXIT = 6
    """Parameters are updated, gradients are cut, metrics are recorded, and the values
    of microbatches are reduced."""
    SEND = 7
    """Messages are sent last: everything that they can carry is there."""


TypeRule = Callable[["Op", Sequence[TensorType]], Sequence[ValueType]]
"""A function from an op and the types of its operands to the types that its results
must have. It raises OpError if the operands do not fit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StructuralKind:
    """The declaration of one kind of structural op.

    Attributes:
        name: the kind.
        doc: what ops of the kind do.
        attrs: the attributes that its ops may have, besides those of any op.
        why: why placer inserts such an op, for the `choices` of the plan: a template
            with `{operands}`, `{devices}`, `{layout}` and the op's attributes. Empty if
            front ends write it, or if the pass sets `Op.why`.
        infer: the types of the results; None if they do not follow from the operands.
        phase: when the op runs within its level.
        computed_phase: the phase of an op on computed operands, if it is another one.
        delay: how many levels after the op its results, or its message, are there.
        delays_earlier_phases: whether results are there a level later if some user
            belongs to an earlier phase than the op.
        level: `fixed` if the op runs at its earliest level, because other nodes or the
            table wait for it; `early` if it runs as soon as its operands are there;
            `busy` if it waits for a level at which its nodes compute in any case.
        effect: whether the op runs even if its results are not used.
        directive: whether the op only tells other passes and the emitter something:
            no node runs it.
        grouped: whether consecutive ops of the kind are one statement of a program.
        per_batch: whether an evaluation runs the op for every batch, although its
            operands are the same.
        anywhere: whether every node that uses the results runs the op itself, so that
            they are not sent.
        host_memory: whether the op runs in host memory.
        layout: the layouts of operands and results on several nodes. `replicated`: all
            R; `rows`: results with rows are S; `operands`: as the first operand;
            `own`: S, because each node has its own rows;
            `complete`: as the operands, but R instead of P; `gathered`: all R, because
            it needs the rows of all microbatches in order; `parts`: operands that are
            P, whose sum it gives.
        microbatches: how often a step with microbatches runs the op. `once`: once;
            `rows`: for each, if its result has rows; `operands`: as its operands. Or
            for each: `own`, with values of its own; `same`, with one result for all
            (R); `sum`, with a part of a sum (P).
        reduces: the microbatch layout that the op reduces to one value of the step.
        scatters: the microbatch layout that the op gives to a value of the step.
        waits_for_microbatches: whether the op runs after the last microbatch.
        sends, receives: whether the op sends or receives the message of an edge. Its
            attributes `edge` and `back` are the numbers of the edges.
        copies: whether each result is an operand of the op in the memory of other
            devices of the node.
        moves: whether the op takes its operand from other nodes by itself, so that no
            conversion is needed; `transfer` replaces it by messages.
        aliases: whether the result may share the memory of the operands.
        allocates: whether the results need memory beside tables and operands.
        retains: whether the op keeps its operands until the end of the step.
        in_table: whether the op is done by a table of the node, which has the operands,
            so that they are not copied to the devices of the op.
        on_ranges: whether the op can work on each node's ranges of values of layout F.
        update: `value` if the op computes the new value of a parameter, `direction` if
            it is the first phase of a two-phase rule.
    """

    name: str
    doc: str
    attrs: Attributes = field(default_factory=dict)
    why: str = ""
    infer: TypeRule | None = None
    phase: LevelPhase = LevelPhase.EXIT
    computed_phase: LevelPhase | None = None
    delay: int = 0
    delays_earlier_phases: bool = False
    level: Literal["fixed", "early", "busy"] = "busy"
    effect: bool = False
    directive: bool = False
    grouped: bool = False
    per_batch: bool = False
    anywhere: bool = False
    host_memory: bool = False
    layout: Literal[
        "replicated", "rows", "operands", "own", "complete", "gathered", "parts"
    ] = "replicated"
    microbatches: Literal["once", "rows", "operands", "own", "same", "sum"] = "once"
    reduces: Layout | None = None
    scatters: Layout | None = None
    waits_for_microbatches: bool = False
    sends: bool = False
    receives: bool = False
    copies: bool = False
    moves: bool = False
    aliases: bool = False
    allocates: bool = True
    retains: bool = False
    in_table: bool = False
    on_ranges: bool = False
    update: Literal["value", "direction"] | None = None


def _operand_types(op: Op, operands: Sequence[TensorType]) -> Sequence[ValueType]:
    return operands


def _update_types(op: Op, operands: Sequence[TensorType]) -> Sequence[ValueType]:
    """The type of the parameter, which the gradient has, too. More operands are
    scales."""
    check_equal_types(op, operands[:2], 2)
    return operands[:1]


def _store_types(op: Op, operands: Sequence[TensorType]) -> Sequence[ValueType]:
    check_equal_types(op, operands, 2)
    return ()


def _distinct_types(op: Op, operands: Sequence[TensorType]) -> Sequence[ValueType]:
    ids = operands[: len(operands) - len(op.attrs.get("inputs", ()))]
    return [DISTINCT_KEYS, *(TensorType("int32", each.shape) for each in ids)]


def _lookup_types(op: Op, operands: Sequence[TensorType]) -> Sequence[ValueType]:
    table, keys = operands
    if not table.is_keyed or keys != DISTINCT_KEYS:
        raise OpError(f"needs a sparse table and keys, not {table} and {keys}")
    return [table]


def _sum_by_key_types(op: Op, operands: Sequence[TensorType]) -> Sequence[ValueType]:
    keys, gradients = operands[::2], operands[1::2]
    if len(keys) != len(gradients) or {*keys} != {DISTINCT_KEYS}:
        raise OpError("needs keys and the gradients of their rows, in turn")
    if {*gradients} != {gradients[0]}:
        raise OpError("needs gradients of one table")
    return gradients[:1]


def _exact_squares_types(op: Op, operands: Sequence[TensorType]) -> Sequence[ValueType]:
    return [EXACT_SUM]


def _rounded_sum_types(op: Op, operands: Sequence[TensorType]) -> Sequence[ValueType]:
    if {*operands} != {EXACT_SUM}:
        raise OpError(f"needs exact sums, of type {EXACT_SUM}")
    return [TensorType(op.attrs["dtype"])]


def _cut_types(op: Op, operands: Sequence[TensorType]) -> Sequence[ValueType]:
    check_equal_types(op, operands, 1)
    start, stop = op.attrs["start"], op.attrs["stop"]
    if not 0 <= start < stop <= operands[0].numel():
        raise OpError(f"{operands[0]} has no elements {start} to {stop}")
    return [TensorType(operands[0].dtype, (stop - start,))]


def _assemble_types(op: Op, operands: Sequence[TensorType]) -> Sequence[ValueType]:
    whole = op.result.type
    assert isinstance(whole, TensorType)
    numel = sum(block.numel() for block in operands)
    if numel != whole.numel() or any(block.dtype != whole.dtype for block in operands):
        raise OpError(f"the blocks have {numel} elements and do not form {whole}")
    return [whole]


def check_equal_types(op: Op, operands: Sequence[TensorType], count: int) -> None:
    """Raise OpError unless there are `count` operands, all of the same type."""
    if len(operands) != count:
        raise OpError(f"{op.kind} takes {count} operands, not {len(operands)}")
    for name, operand in zip(op.operands, operands, strict=False):
        if operand != operands[0]:
            raise OpError(
                f"'{op.operands[0]}' is {operands[0]} and '{name}' is {operand}"
            )


EXACT_SUM = TensorType("int64", (LIMBS,))
"""The type of a sum without rounding; see `placer.tables.exact_squares`."""

DISTINCT_KEYS = TensorType("key", (KEYS,))
"""The type of the keys of a batch, each once."""

COMPUTED = StructuralKind(
    name="",
    doc="compute the results in a jitted function: any kind that is not structural",
    attrs=attr.COMPUTED,
    phase=LevelPhase.COMPUTE,
)
"""What the declarations below say of a computed op, which has its own declaration in
`placer.ops`."""

_UPDATE = StructuralKind(
    name="",
    doc="compute the new value of a parameter in its table",
    attrs=attributes(
        attr.GROUP_OF_UPDATE,
        attr.DECAY,
        own("limit", float, "the bound to which gradients are clipped by value"),
    ),
    infer=_update_types,
    effect=True,
    waits_for_microbatches=True,
    on_ranges=True,
    update="value",
)

_COPY = StructuralKind(
    name="",
    doc="copy values between host memory and the devices of a node",
    attrs=attributes(own("rows", int, "how many results have rows: the first ones")),
    why="inserted: {operands} used on {devices}",
    infer=_operand_types,
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
    infer=_operand_types,
    delay=1,
    grouped=True,
    layout="operands",
    waits_for_microbatches=True,
)

_SCATTER = StructuralKind(
    name="",
    doc="distribute a value of the step over the microbatches",
    why="inserted: gives each microbatch its part of '{operands}'",
    infer=_operand_types,
    phase=LevelPhase.ENTRY,
    layout="operands",
    aliases=True,
)


def _moving(exchange: Exchange) -> StructuralKind:
    """Return the declaration of the ops of an exchange."""
    return StructuralKind(
        name=exchange.name,
        doc=exchange.doc,
        attrs=attr.of_exchange(exchange),
        why=exchange.why,
        infer=_operand_types,
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
            attrs=attributes(own("input", str, "the name of the input", required=True)),
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
                own("state", bool, "whether the step itself updates it"),
                own("shape", tuple[int, ...], "the shape of the whole parameter"),
                own("start", int, "the first element of the block"),
                own("stop", int, "the element after the last of the block"),
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
                own("rows", int, "the rows by which random values are scaled"),
                own(
                    "inputs",
                    dict[str, tuple[str, str]],
                    "the names and types of the inputs that it needs beside keys",
                ),
            ),
            phase=LevelPhase.ENTRY,
            effect=True,
            allocates=False,
            in_table=True,
        ),
        # The name of the lookup is that of PaddlePaddle's op.
        StructuralKind(
            name="distinct_keys",
            doc="collect the keys that a node looks up in a sparse table, each once; and"
            " give each key its position among them",
            attrs=attributes(
                own("table", str, "the sparse table", required=True),
                own("inputs", tuple[str, ...], "what the last operands are"),
                own("padding", tuple[int | None, ...], "no key, of each operand"),
            ),
            why="inserted: the lookup of {operands} by key",
            infer=_distinct_types,
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
            infer=_lookup_types,
            phase=LevelPhase.ENTRY,
            level="early",
            microbatches="same",
            in_table=True,
        ),
        StructuralKind(
            name="sum_by_key",
            doc="add up the gradients of each key: over lookups, microbatches and nodes,"
            " in this order",
            why="inserted: sums gradients by key",
            infer=_sum_by_key_types,
            delays_earlier_phases=True,
            microbatches="sum",
            in_table=True,
        ),
        StructuralKind(
            name="exact_squares",
            doc="the sum of the squares of gradients, without rounding: of a sparse table"
            " those of the partitions that the node holds",
            why="inserted: a part of a norm, without rounding, so that the norm does not"
            " depend on the number of servers",
            infer=_exact_squares_types,
            delays_earlier_phases=True,
            waits_for_microbatches=True,
            in_table=True,
        ),
        StructuralKind(
            name="rounded_sum",
            doc="add up exact sums, and round the result",
            attrs=attributes(own("dtype", str, "that of the sum", required=True)),
            why="inserted: the only rounding of a sum",
            infer=_rounded_sum_types,
            delays_earlier_phases=True,
            waits_for_microbatches=True,
            in_table=True,
        ),
        StructuralKind(
            name="optimizer",
            doc="declare the rule and the settings that update a group of parameters",
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
            infer=_store_types,
            effect=True,
            waits_for_microbatches=True,
            on_ranges=True,
        ),
        StructuralKind(
            name="record",
            doc="record the value of a metric",
            attrs=attributes(
                own("metric", str, "its name", required=True),
                own("final", str, "how the reported number is computed"),
                own("minimized", bool, "whether it is the loss"),
                own("watched", bool, "whether the best value counts"),
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
                own("start", int, "the first element", required=True),
                own("stop", int, "the element after the last", required=True),
            ),
            infer=_cut_types,
            delays_earlier_phases=True,
            layout="operands",
            aliases=True,
            allocates=False,
        ),
        StructuralKind(
            name="assemble",
            doc="join the blocks of a parameter, as a view",
            why="inserted: joins the blocks of the parameter",
            infer=_assemble_types,
            phase=LevelPhase.ENTRY,
            aliases=True,
            allocates=False,
        ),
        StructuralKind(
            name="local_parameter",
            doc="read a worker's own values of a parameter, which it trains by itself;"
            " changes that servers have sent are added to them",
            attrs=attributes(attr.WHOLE, attr.GROUP, attr.DECAY),
            why="inserted: each worker trains its own values of '{whole}'",
            infer=_assemble_types,
            phase=LevelPhase.ENTRY,
            effect=True,
            grouped=True,
            allocates=False,
            in_table=True,
        ),
        StructuralKind(
            name="delta",
            doc="how far a worker's own values of a parameter are from what the servers"
            " know of them: the old values minus the new ones",
            infer=_operand_types,
            allocates=False,
            waits_for_microbatches=True,
            in_table=True,
        ),
        *map(_moving, EXCHANGES.values()),
        # The names of these three are those of PaddlePaddle's ops.
        StructuralKind(
            name="send",
            doc="send the message of an edge",
            attrs=attr.of_message(own("to", Place, "who receives it", required=True)),
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
            attrs=attr.of_message(own("from", Place, "who sends it", required=True)),
            phase=LevelPhase.RECEIVE,
            level="fixed",
            effect=True,
            receives=True,
        ),
        StructuralKind(
            name="send_and_recv",
            doc="send a message to a heter node and wait for the reply",
            attrs=attr.of_message(
                own("to", Place, "who receives it, and replies", required=True),
                own("back", int, "the number of the reply's edge", required=True),
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
        *(replace(_UPDATE, name=rule) for rule in sorted(optimizers.RULES)),
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
"""The declaration of each structural kind."""

OUTPUT = "output"
"""The kind of the ops that only a prediction runs: its roots."""

MICROBATCH_REDUCTIONS: Mapping[Layout, str] = {
    kind.reduces: name for name, kind in KINDS.items() if kind.reduces is not None
}
"""The kind that reduces the values of all microbatches to one value of the step, by the
microbatch layout of the value."""

MICROBATCH_SCATTERS: Mapping[Layout, str] = {
    kind.scatters: name for name, kind in KINDS.items() if kind.scatters is not None
}
"""The kind that distributes a value that is computed once a step over the microbatches,
by the microbatch layout that the users need."""

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
"""The kind of the op that converts the first layout to the second, between any two sets
of nodes; `conversion_kind` knows the one exception. Only the pass `exchange` divides
values into ranges (F), and joins these again."""

PARTIAL = CONVERSIONS["R", "P"]

ROW_SHARE = "row_share"
"""The kind of the computed op that is used instead of `PARTIAL` without lockstep."""

ROW_ESTIMATE = "row_estimate"
"""The kind of the computed op by which a worker has a sum over rows by itself."""

REDUCE = "reduce"
"""The kind of a conversion from P to R that has a single target node."""

CONVERSION_KINDS = frozenset({*CONVERSIONS.values(), REDUCE})

MOVING_KINDS = CONVERSION_KINDS | {kind.name for kind in KINDS.values() if kind.moves}
"""The kinds of ops whose results are values of other nodes."""

SCALES = frozenset({"clip_scale", "trust_ratio"})
"""Ops that compute a scalar from sums of squares; updates are multiplied by it."""

CLIP_PART = "clip_part"
"""The kind of the computed op that clips what one worker has computed."""

COMPUTED_ON_RANGES = frozenset({"clip_value", "sum_of_squares"})
"""The computed ops that can work on each node's ranges of values of layout F."""

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
"""What the compiler appends to the name of a value of an op, after a dot. A parameter
of an op cannot have such a name."""


def conversion_kind(have: Layout, need: Layout, targets: int) -> str:
    """Return the kind of the op that converts a value to another layout.

    `targets` is the number of nodes that the converted value is needed on. A sum that a
    single node needs is a `reduce`; `all_reduce` gives it to several nodes.
    """
    if (have, need) == ("P", "R") and targets == 1:
        return REDUCE
    return CONVERSIONS[have, need]


def is_conversion(kind: str) -> bool:
    """Whether the kind changes the layout or the place of a value."""
    return kind in CONVERSION_KINDS


def is_update(kind: str) -> bool:
    """Whether the kind is an optimizer rule, whose result is a parameter's new
    value."""
    return KINDS.get(kind, COMPUTED).update == "value"


def is_update_direction(kind: str) -> bool:
    """Whether the kind is the first phase of a two-phase rule."""
    return KINDS.get(kind, COMPUTED).update == "direction"


def is_optimizer_part(kind: str) -> bool:
    """Whether the kind belongs to the optimizers: clipping, norms, scales, updates."""
    return kind in _OPTIMIZER_PARTS or KINDS.get(kind, COMPUTED).update is not None
