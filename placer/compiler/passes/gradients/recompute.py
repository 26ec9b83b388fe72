"""recompute: recompute the forward values of `remat` blocks for the backward pass.

Needs a laid-out training step. Afterwards the gradient ops of a block use recomputed
values, so that forward values need no memory until the backward pass. At each place, copies
of the block's forward ops precede the first gradient op, with results such as `%h.again`.
Only row-by-row ops are recomputed. Results of other ops, such as sums over the batch, are
kept. Values received from other places are also kept, so nothing is sent twice.

The inputs of the copies go through `hold` ops, which wait for a cotangent. Otherwise XLA
would merge each copy with the equal original op, and keep its value in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from placer.compiler.graph.declared import works_by_rows
from placer.compiler.graph.graph import Graph, Op, Value
from placer.compiler.graph.needed_ops import needed_ops
from placer.compiler.graph.rewriter import Rewriter
from placer.place import Place
from placer.place.types import ResidualType


def recompute(graph: Graph) -> Graph:
    """Run the pass."""
    parts, part_of_residual = _block_parts(graph)
    for op in graph.ops:
        if op.is_gradient and op.operands[0] in part_of_residual:
            part_of_residual[op.operands[0]].backward.append(op)
    recomputed_before: dict[Op, list[Op]] = {}  # by first gradient op of a part
    recomputed: set[Op] = set()
    used_parts = [part for part in parts if part.backward and part.forward]
    for number, part in enumerate(used_parts, 1):
        needed = _needed_forward_ops(part)
        recomputed.update(needed)
        suffix = "again" if number == 1 else f"again.{number}"
        copies = list(_recomputed_ops(graph, part, needed, suffix))
        recomputed_before[part.backward[0]] = copies
    rewriter = Rewriter(graph)
    for op in rewriter:
        rewriter.insert(*recomputed_before.get(op, ()))
        if op in recomputed:
            rewriter.replace(op.with_values(op.operands, op.tensors))
        elif op.is_gradient and op.operands[0] in part_of_residual:
            rewriter.replace_operands(part_of_residual[op.operands[0]].names)
    return rewriter.graph()


@dataclass(slots=True)
class _BlockPart:
    """The ops of a `remat` block at one place that run equally often in a step.

    Attributes:
        forward: the ops that can be recomputed.
        backward: the gradient ops of all ops of the block.
        names: the name of the recomputed value, by value.
    """

    forward: list[Op] = field(default_factory=list)
    backward: list[Op] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)


def _block_parts(graph: Graph) -> tuple[list[_BlockPart], dict[str, _BlockPart]]:
    """Return the parts in program order, and the part of each residual."""
    # The caller fills in the gradient ops of each part.
    parts: dict[tuple[int, Place | None, bool], _BlockPart] = {}
    part_of_residual: dict[str, _BlockPart] = {}
    for op in graph.ops:
        if "remat" in op.attrs and not op.is_gradient:
            # Ops that run once a step are separate: they must not wait for a
            # microbatch's cotangents.
            key = op.attrs["remat"], op.place, graph.is_repeated(op)
            part = parts.setdefault(key, _BlockPart())
            if works_by_rows(graph, op):
                part.forward.append(op)
            if op.has_residual:
                part_of_residual[op.results[-1].name] = part
    return list(parts.values()), part_of_residual


def _needed_forward_ops(part: _BlockPart) -> list[Op]:
    """Return the forward ops to recompute, in program order."""
    used = {name for op in part.backward for name in op.operands}
    return needed_ops(
        part.forward, lambda op: any(value.name in used for value in op.results)
    )


def _recomputed_ops(
    graph: Graph, part: _BlockPart, needed: list[Op], suffix: str
) -> Iterator[Op]:
    """Yield copies of the needed ops, with a `hold` for each input that has rows."""
    # A `hold` waits for the first cotangent of the part, to delay the recomputation.
    cotangent = part.backward[0].operands[-1]
    for op in needed:
        for name in op.operands:
            if name not in part.names and graph.tensor_type(name).has_rows:
                part.names[name] = f"{name}.{suffix}"
                value = replace(graph.values[name], name=part.names[name])
                waits, attrs = (name, cotangent), {"again": True}
                yield Op("hold", waits, (value,), attrs, op.place, op.source)
        for value in op.results:
            part.names[value.name] = _recomputed_name(value, suffix)
        operands = tuple(part.names.get(name, name) for name in op.operands)
        results = tuple(replace(v, name=part.names[v.name]) for v in op.results)
        attrs = {**op.attrs, "again": True}
        yield Op(op.kind, operands, results, attrs, op.place, op.source)


def _recomputed_name(value: Value, suffix: str) -> str:
    if isinstance(value.type, ResidualType):
        return f"{value.name.removesuffix('.res')}.{suffix}.res"
    return f"{value.name}.{suffix}"
