"""microbatch: give every value a microbatch layout, and insert conversions.

Needs a training step. Microbatches of a batch pass through the step one after another. The
three layouts describe how a value is distributed over microbatches, as they do for nodes.
The batch rule of the op determines the layout of a value computed in every microbatch:

- split (S): each microbatch has its own rows.
- partial (P): the value is the sum over all microbatches.
- replicated (R): the value is equal in all microbatches.

A value computed once a step, such as a parameter or an update, has the layout None.

Afterwards every op has its operands in the microbatch layout that it needs.
`sum_microbatches`, `join_microbatches` and `one_microbatch` turn the values of all
microbatches into one value of the step. In the other direction, `split_microbatches` gives
each microbatch its rows. `first_microbatch` makes a value partial: the first microbatch
has the value, and the others have zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from placer import ops
from placer.compiler.graph.graph import Graph, Op, Value
from placer.compiler.graph.layout_rules import (
    forward_signature,
    gradient_signature,
    uniform_signature,
)
from placer.compiler.graph.rewriter import Rewriter
from placer.compiler.graph.structural_ops import (
    MICROBATCH_REDUCTIONS,
    MICROBATCH_SCATTERS,
    is_conversion,
    is_optimizer_part,
)
from placer.place import Place
from placer.place.layouts import Layout

MicrobatchLayout = Layout | None
"""A microbatch layout, or None for a value computed once a step."""
MicrobatchLayouts = tuple[MicrobatchLayout, ...]


def microbatch(graph: Graph) -> Graph:
    """Run the pass."""
    if graph.microbatches == 1:
        return graph
    rewriter = Rewriter(graph)
    microbatches = _Microbatches(graph, rewriter)
    for op in rewriter:
        microbatches.rewrite(op)
    return rewriter.graph()


@dataclass(slots=True)
class _Microbatches:
    """Rewrites ops in program order.

    Attributes:
        graph: the graph before the pass.
        rewriter: the rewriter of this graph.
        layouts: the microbatch layout of each value so far.
        needed: the layouts that an op needs, by the name of its first result.
        converted: the name of each converted value, by value, layout and place.
    """

    graph: Graph
    rewriter: Rewriter
    layouts: dict[str, MicrobatchLayout] = field(default_factory=dict)
    needed: dict[str, MicrobatchLayouts] = field(default_factory=dict)
    converted: dict[tuple[str, MicrobatchLayout, Place | None], str] = field(
        default_factory=dict
    )

    def rewrite(self, op: Op) -> None:
        """Insert the missing conversions of an op's operands, and use them."""
        needs, gives = self._signature(op)
        operands = tuple(
            self._convert(op, name, need)
            for name, need in zip(op.operands, needs, strict=True)
        )
        results = tuple(
            replace(value, microbatch_layout=layout)
            for value, layout in zip(op.results, gives, strict=True)
        )
        self.layouts.update((value.name, value.microbatch_layout) for value in results)
        if op.results:
            # R also accepts a value computed once a step, with layout None.
            self.needed[op.name] = tuple(
                self.layouts[name] if need == "R" else need
                for name, need in zip(operands, needs, strict=True)
            )
        self.rewriter.replace(op.with_values(operands, results))

    def _signature(self, op: Op) -> tuple[MicrobatchLayouts, MicrobatchLayouts]:
        """Return the microbatch layouts of an op's operands and results."""
        # An op whose operands are equal in all microbatches runs once.
        have = [self.layouts[name] for name in op.operands]
        once = uniform_signature(op, None)
        if not op.is_computed:
            return self._structural_signature(op, have)
        if op.kind == "accumulate":
            return self._sum_signature(op, have)
        if op.is_gradient:
            return self._gradient_signature(op)
        if _is_once(op) or not {"S", "P"} & {*have}:
            return once
        in_step = [layout or "R" for layout in have]
        needs, gives = forward_signature(self.graph, op, in_step)
        return (needs, gives) if {"S", "P"} & {*needs} else once

    def _structural_signature(
        self, op: Op, have: Sequence[MicrobatchLayout]
    ) -> tuple[MicrobatchLayouts, MicrobatchLayouts]:
        """Return the declared signature of a structural op."""
        match op.structure.microbatches:
            case "rows":
                types = (self.graph.tensor_type(value.name) for value in op.results)
                return tuple(have), tuple("S" if t.has_rows else None for t in types)
            case "operands":
                return tuple(have), (have[0],) * len(op.results)
            case "own":
                return uniform_signature(op, "S")
            case "same":
                return tuple(have), ("R",)
            case "sum":
                part: MicrobatchLayout = "P"
                return tuple(have), (part,) * len(op.results)
        return uniform_signature(op, None)

    def _sum_signature(
        self, op: Op, have: Sequence[MicrobatchLayout]
    ) -> tuple[MicrobatchLayouts, MicrobatchLayouts]:
        """Return the signature of a sum of gradients: the dual of the value's layout."""
        # A value without an entry is a parameter stored in blocks, which is read once a
        # step.
        layout: MicrobatchLayout = None
        match self.layouts.get(op.attrs["of"]):
            case "S":
                layout = "S"
            case "P" if "R" in have:
                layout = "R"
            case None | "R" if {*have} == {"P"}:
                layout = "P"
        return uniform_signature(op, layout)

    def _gradient_signature(
        self, op: Op
    ) -> tuple[MicrobatchLayouts, MicrobatchLayouts]:
        """Return the signature of a gradient op, which runs as often as its forward op."""
        forward = self.graph.producers[op.operands[0]]
        if all(self.layouts[value.name] is None for value in forward.results):
            return uniform_signature(op, None)
        needed = tuple(layout or "R" for layout in self.needed[forward.name])
        layouts = {v.name: self.layouts[v.name] or "R" for v in forward.results}
        return gradient_signature(self.graph, op, needed, layouts)

    def _convert(self, op: Op, name: str, need: MicrobatchLayout) -> str:
        """Insert the missing conversions of an operand, and return its new name."""
        # Possible conversions: a reduction to one value of the step, and a scatter of this
        # value over the microbatches.
        have = self.layouts[name]
        if have == need or (need == "R" and have is None):
            return name
        if have is not None and (name, None, None) not in self.converted:
            self.rewriter.insert(self._reduce(name, have, op))
        step_value = name if have is None else self.converted[name, None, None]
        if need is None or need == "R":
            return step_value
        if (name, need, op.place) not in self.converted:
            self.rewriter.insert(self._scatter(name, step_value, need, op.place))
        return self.converted[name, need, op.place]

    def _reduce(self, name: str, have: Layout, user: Op) -> Op:
        """Return the reduction of a value over the microbatches."""
        # A reduction is at the place of its value. If rows of several nodes must be gathered
        # first, it is at the place of the first user (see the layout pass).
        producer = self.graph.producers[name]
        total = Value(f"{name}.total", self.graph.values[name].type)
        self.converted[name, None, None] = total.name
        self.layouts[total.name] = None
        if producer.structure.anywhere:  # reads the whole batch
            return replace(producer, results=(total,))
        is_gathered = have == "S" and len(self.graph.nodes(producer)) > 1
        place = user.place if is_gathered else producer.place
        kind = MICROBATCH_REDUCTIONS[have]
        return Op(kind, (name,), (total,), {}, place, producer.source)

    def _scatter(
        self, name: str, step_value: str, need: Layout, place: Place | None
    ) -> Op:
        """Return the op that distributes a value of the step over the microbatches."""
        producer = self.graph.producers[name]
        number = sum(key[0] == name and key[1] is not None for key in self.converted)
        result = f"{name}.each.{number}" if number else f"{name}.each"
        value = Value(result, self.graph.values[name].type, microbatch_layout=need)
        self.converted[name, need, place] = result
        self.layouts[result] = need
        kind = MICROBATCH_SCATTERS[need]
        return Op(kind, (step_value,), (value,), {}, place, producer.source)


def _is_once(op: Op) -> bool:
    """Whether a computed op runs once a step: an optimizer op, a conversion, or a node's
    own part of a step."""
    if is_optimizer_part(op.kind) or is_conversion(op.kind):
        return True
    return ops.find(op.kind).own_part is not None
