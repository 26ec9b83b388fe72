"""What the declaration of a kind of structural op says."""

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
