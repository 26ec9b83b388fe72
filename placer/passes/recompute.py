"""recompute: in blocks with `remat`, compute again for backward what forward let go.

Needs a laid-out training step. Afterwards the gradients of a block take nothing of its
forward ops but what these were given: on each place, the ops that work row by row stand
a second time before the first gradient there, `%h.again`, on inputs that `hold` keeps
apart, so that what is equal is not merged. What mixes rows, a sum over the batch above
all, is kept, and so is what came to the place: nothing is sent a second time (R6).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from placer import ops
from placer.graph.graph import Graph, Op, Value
from placer.graph.kinds import declared_attrs, is_structural
from placer.ops.attributes import complete
from placer.place import Place
from placer.types import ResidualType, TensorType


def recompute(graph: Graph) -> Graph:
    parts, residuals = _parts(graph)
    for op in graph.ops:
        if op.is_gradient and op.operands[0] in residuals:
            residuals[op.operands[0]].backward.append(op)
    before: dict[int, list[Op]] = {}  # by the first gradient of each part
    repeated: set[int] = set()
    used = [part for part in parts if part.backward and part.forward]
    for number, part in enumerate(used, 1):
        wanted = _wanted(part)
        repeated.update(map(id, wanted))
        suffix = "again" if number == 1 else f"again.{number}"
        before[id(part.backward[0])] = list(_again(graph, part, wanted, suffix))
    out: list[Op] = []
    for op in graph.ops:
        out.extend(before.get(id(op), ()))
        if id(op) in repeated:
            op = _without_residual(op)
        elif op.is_gradient and op.operands[0] in residuals:
            names = residuals[op.operands[0]].names
            taken = tuple(names.get(name, name) for name in op.operands)
            op = op.of(taken, op.results)
        out.append(op)
    return graph.with_ops(out)


@dataclass(slots=True)
class _Part:
    """What of one block stands on one place, once a step or for every microbatch: its
    forward ops that work row by row, and the gradients of all; `names` are those of the
    second time, by those of the first."""

    forward: list[Op] = field(default_factory=list)
    backward: list[Op] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)


def _parts(graph: Graph) -> tuple[list[_Part], dict[str, _Part]]:
    """The parts in program order, and that of each residual."""
    found: dict[tuple[int, Place | None, bool], _Part] = {}
    residuals: dict[str, _Part] = {}
    for op in graph.ops:
        if "remat" in op.attrs and not op.is_gradient:
            # What is done once a step does not wait for what microbatches do.
            key = op.attrs["remat"], op.place, graph.is_repeated(op)
            part = found.setdefault(key, _Part())
            if _by_rows(graph, op):
                part.forward.append(op)
            if op.results and isinstance(op.results[-1].type, ResidualType):
                residuals[op.results[-1].name] = part
    return list(found.values()), residuals


def _by_rows(graph: Graph, op: Op) -> bool:
    if is_structural(op.kind):
        return False
    types = [graph.tensor(name) for name in op.operands]
    if not any(kind.has_rows for kind in types):
        return False
    declaration = ops.find(op.kind)
    attrs = complete(declaration, declared_attrs(op.attrs))
    return declaration.batch(types, attrs) == "rows"


def _wanted(part: _Part) -> list[Op]:
    """The forward ops that the gradients need a second time, in program order."""
    needed = {name for op in part.backward for name in op.operands}
    wanted: list[Op] = []
    for op in reversed(part.forward):
        if any(value.name in needed for value in op.results):
            needed.update(op.operands)
            wanted.append(op)
    wanted.reverse()
    return wanted


def _again(graph: Graph, part: _Part, wanted: list[Op], suffix: str) -> Iterator[Op]:
    """The ops that stand before the gradients of a part: each input with rows held
    until a cotangent is there, and the ops on them."""
    cotangent = part.backward[0].operands[-1]
    for op in wanted:
        for name in op.operands:
            if name not in part.names and graph.tensor(name).has_rows:
                part.names[name] = f"{name}.{suffix}"
                had = graph.values[name]
                value = Value(part.names[name], had.type, had.layout, had.over)
                yield Op(
                    "hold",
                    (name, cotangent),
                    (value,),
                    {"again": True},
                    op.place,
                    op.source,
                )
        for value in op.results:
            part.names[value.name] = _name(value, suffix)
        operands = tuple(part.names.get(name, name) for name in op.operands)
        results = tuple(
            Value(part.names[v.name], v.type, v.layout, v.over) for v in op.results
        )
        yield op.of(operands, results).with_attrs(again=True)


def _name(value: Value, suffix: str) -> str:
    if isinstance(value.type, ResidualType):
        return f"{value.name.removesuffix('.res')}.{suffix}.res"
    return f"{value.name}.{suffix}"


def _without_residual(op: Op) -> Op:
    plain = tuple(v for v in op.results if isinstance(v.type, TensorType))
    return op.of(op.operands, plain)
