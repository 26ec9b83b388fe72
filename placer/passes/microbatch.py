"""microbatch: say how each value lies over the microbatches of a step, and convert.

Needs a training step. The rows of a batch go through it in microbatches, one after the
other, and what holds of places holds of them: a value of every microbatch is split (S,
each has its own rows), partial (P, the value is the sum) or the same in all (R), by the
batch rule of the op that makes it. What is made once a step, as parameters and updates
are, has no such layout. Afterwards an op finds each operand as it takes it:
`sum_microbatches`, `join_microbatches` and `one_microbatch` make one value of those of
all, `split_microbatches` gives each its rows of one, and `first_microbatch` lets a value
count in the first and in no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from placer.analysis.layout_rules import DUAL, by_rule
from placer.graph.graph import APART, TOGETHER, Graph, Op, Value
from placer.graph.kinds import is_optimizers, is_structural
from placer.layouts import Layout
from placer.place import Place
from placer.types import TensorType

Over = Layout | None
"""How a value lies over microbatches; None where it is made once a step."""
Overs = tuple[Over, ...]


def microbatch(graph: Graph) -> Graph:
    if graph.microbatches == 1:
        return graph
    state = _State(graph)
    return graph.with_ops(made for op in graph.ops for made in state.made_of(op))


@dataclass(slots=True)
class _State:
    """What is known while the ops are gone through, in program order: how values lie,
    what forward ops were given, and the conversions that are there."""

    graph: Graph
    over: dict[str, Over] = field(default_factory=dict)
    given: dict[str, Overs] = field(default_factory=dict)
    converted: dict[tuple[str, Over, Place | None], str] = field(default_factory=dict)

    def made_of(self, op: Op) -> Iterator[Op]:
        """The op on operands that lie as it needs them, behind their conversions."""
        needs, gives = self._ways(op)
        operands = []
        for name, need in zip(op.operands, needs, strict=True):
            yield from self._conversions(op, name, need)
            operands.append(self._found(op, name, need))
        results = tuple(
            replace(value, over=over)
            for value, over in zip(op.results, gives, strict=True)
        )
        self.over.update((value.name, value.over) for value in results)
        if op.results:
            self.given[op.results[-1].name] = tuple(
                self.over[name] if need == "R" else need
                for name, need in zip(operands, needs, strict=True)
            )
        yield op.of(tuple(operands), results)

    def _ways(self, op: Op) -> tuple[Overs, Overs]:
        """How the op needs each operand, and how its results lie. An op of which nothing
        differs between microbatches runs once."""
        have = [self.over[name] for name in op.operands]
        once = (None,) * len(have), (None,) * len(op.results)
        if op.kind == "read":
            has_rows = self.graph.tensor(op.name).has_rows
            return (), ("S" if has_rows else None,)
        if op.kind == "accumulate":
            return self._sum(op, have)
        if is_structural(op.kind) or is_optimizers(op.kind):
            return once
        if op.is_gradient:
            return self._gradient(op)
        if not {"S", "P"} & {*have}:
            return once
        types = [self.graph.tensor(name) for name in op.operands]
        needs, gives = by_rule(op, types, [over or "R" for over in have])
        if not {"S", "P"} & {*needs}:
            return once
        return needs, gives

    def _sum(self, op: Op, have: Sequence[Over]) -> tuple[Overs, Overs]:
        """A sum of gradients: each is of the value's dual layout. A value that is not here
        is a parameter, which servers hold in blocks: it is made once a step."""
        of = self.over.get(op.attrs["of"])
        if of == "S" or (of is None and {*have} == {"P"}):
            alike: Over = "S" if of == "S" else "P"
            return (alike,) * len(have), (alike,)
        repeated = of == "P" and "R" in have
        return ("R" if repeated else None,) * len(have), ("R" if repeated else None,)

    def _gradient(self, op: Op) -> tuple[Overs, Overs]:
        """A gradient runs as often as its forward op. It needs what that was given, and
        the dual of what that gave; it gives the dual of what it is taken of."""
        forward = self.graph.producers[op.operands[0]]
        given = self.given[forward.results[-1].name]
        position = {name: i for i, name in enumerate(forward.operands)}
        tensors = [v for v in forward.results if isinstance(v.type, TensorType)]
        of_loss = op.attrs.get("cotangents", range(len(tensors)))
        saved = op.operands[1 : len(op.operands) - len(of_loss)]
        duals = (_dual(self.over[tensors[i].name]) for i in of_loss)
        needs: Overs = (
            self.over[op.operands[0]],
            *(given[position[name]] for name in saved),
            *duals,
        )
        if all(self.over[value.name] is None for value in forward.results):
            return (None,) * len(needs), (None,) * len(op.results)
        needs = tuple(need or "R" for need in needs)
        return needs, tuple(DUAL[given[i] or "R"] for i in op.attrs["wrt"])

    def _conversions(self, op: Op, name: str, need: Over) -> Iterator[Op]:
        """The ops that are still to be made for an operand to lie as it is needed."""
        have = self.over[name]
        if have == need or (need == "R" and have is None):
            return
        if have is not None and (name, None, None) not in self.converted:
            yield self._together(name, have, op)
        if need is None or need == "R":
            return
        if (name, need, op.place) not in self.converted:
            whole = name if have is None else self.converted[name, None, None]
            yield self._apart(name, whole, need, op.place)

    def _found(self, op: Op, name: str, need: Over) -> str:
        have = self.over[name]
        if have == need or (need == "R" and have is None):
            return name
        if need in APART:
            return self.converted[name, need, op.place]
        return self.converted[name, None, None]

    def _together(self, name: str, have: Layout, user: Op) -> Op:
        """One value of those of all microbatches, where they are; rows that several nodes
        have are gathered for it, so where the first op is that takes it."""
        origin = self.graph.producers[name]
        total = Value(f"{name}.total", self.graph.values[name].type)
        self.converted[name, None, None] = total.name
        self.over[total.name] = None
        if origin.kind == "read":  # the whole batch is read
            return replace(origin, results=(total,))
        gathered = have == "S" and len(self.graph.nodes(origin)) > 1
        place = user.place if gathered else origin.place
        return Op(TOGETHER[have], (name,), (total,), {}, place, origin.source)

    def _apart(self, name: str, whole: str, need: Layout, place: Place | None) -> Op:
        origin = self.graph.producers[name]
        number = sum(key[0] == name and key[1] is not None for key in self.converted)
        fresh = f"{name}.each.{number}" if number else f"{name}.each"
        each = Value(fresh, self.graph.values[name].type, over=need)
        self.converted[name, need, place] = fresh
        self.over[fresh] = need
        return Op(APART[need], (whole,), (each,), {}, place, origin.source)


def _dual(over: Over) -> Over:
    return None if over is None else DUAL[over]
