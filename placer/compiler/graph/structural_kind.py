"""`StructuralKind`: the declaration of a kind of structural op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Literal

from placer.compiler.graph.attributes import Attributes
from placer.place.layouts import Layout
from placer.place.types import TensorType, ValueType

if TYPE_CHECKING:
    from placer.compiler.graph.graph import Op


class LevelPhase(IntEnum):
    """The phases of a level, in the order in which a node runs them."""

    READ = 0
    """Inputs are read, while other nodes prepare the messages of this level."""
    RECEIVE = 1
    """Messages arrive."""
    ENTRY = 2
    """Parameters are read or assembled, and values are distributed over
    microbatches.
    """
    COPY_IN = 3
    """Values that were not computed are copied to the devices that use them."""
    COMPUTE = 4
    """Jitted functions run."""
    COPY_OUT = 5
    """Computed values are copied to the devices that use them."""
    EXIT = 6
    """Parameters are updated, gradients are sliced, metrics are recorded, and values of
    microbatches are reduced."""
    SEND = 7
    """Messages are sent last, when all their values are available."""


TypeRule = Callable[["Op", Sequence[TensorType]], Sequence[ValueType]]
"""Returns the types of an op's results, given the op and its operand types. Raises
OpError if the operands do not fit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StructuralKind:
    """The declaration of one kind of structural op.

    Attributes:
        name: The kind.
        doc: What ops of the kind do.
        attrs: Attributes that its ops may have, in addition to the attributes of all
            ops.
        why: Why placer inserts the op, for the `choices` of the plan. A template with
            `{operands}`, `{devices}`, `{layout}` and the op's attributes. Empty if
            front ends write the op, or the pass sets `Op.why`.
        infer: Returns the result types; None if the operands do not determine them.
        phase: When the op runs within its level.
        computed_phase: The phase if the operands are computed, if it differs.
        delay: How many levels after the op its results, or its message, are available.
        delays_earlier_phases: Whether users with an earlier phase wait one more level.
        level: `fixed`: the op runs at its earliest level, because other nodes or the
            table wait for it. `early`: it runs as soon as its operands are available.
            `busy`: it waits for a level at which its nodes also compute.
        effect: Whether the op runs even if its results are unused.
        directive: Whether the op only informs passes and the emitter; no node runs it.
        grouped: Whether consecutive ops of the kind form one statement of a program.
        per_batch: Whether an evaluation repeats the op for each batch, even if its
            operands do not change.
        anywhere: Whether each node that uses the results runs the op, instead of
            receiving the results.
        host_memory: Whether the op runs in host memory.
        layout: The layouts of operands and results on several nodes. `replicated`: all
            R. `rows`: S for results with rows. `operands`: as the first operand. `own`:
            S, each node has its own rows. `complete`: as the operands, but R instead of
            P. `gathered`: all R, because the op needs the rows of all microbatches in
            order. `parts`: the operands are P, and the op gives their sum.
        microbatches: How often a step with microbatches runs the op. `once`: once.
            `rows`: for each microbatch if the result has rows. `operands`: as its
            operands. For each microbatch: `own`, with separate values; `same`, with one
            result for all (R); `sum`, with a part of a sum (P).
        reduces: The microbatch layout that the op reduces to one value of the step.
        scatters: The microbatch layout that the op gives to a value of the step.
        waits_for_microbatches: Whether the op runs after the last microbatch.
        sends, receives: Whether the op sends or receives the message of an edge. Its
            attributes `edge` and `back` are edge numbers.
        copies: Whether each result copies an operand to the memory of other devices.
        moves: Whether the op reads its operand from other nodes without a conversion.
            The pass `transfer` replaces it by messages.
        aliases: Whether the result may share the memory of the operands.
        allocates: Whether the results need memory outside of tables and operands.
        retains: Whether the op keeps its operands until the end of the step.
        in_table: Whether a table of the node performs the op. The table holds the
            operands, so they are not copied to the devices of the op.
        on_ranges: Whether the op can work on each node's ranges of values of layout F.
        update: `value` if the op computes a parameter's new value, `direction` if it is
            the first phase of a two-phase rule.
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
