"""recompute: in blocks with `remat`, compute again for backward what forward let go.

Needs a differentiated graph. Afterwards the gradients of a block take nothing of its
forward ops but what these were given: the ops that work row by row stand a second time
before the block's gradients, `%h.again`, on inputs that `hold` keeps apart, so that
what is equal is not merged. What mixes rows, a sum over the batch above all, is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from placer import ops
from placer.graph.graph import Graph, Op, Value
from placer.graph.structure import declared_attrs, is_structural
from placer.graph.types import ResidualType
from placer.ops.attributes import complete


def recompute(graph: Graph) -> Graph:
    blocks = _blocks(graph)
    if not blocks:
        return graph
    block_of = {
        value.name: number
        for number, found in blocks.items()
        for op in found
        for value in op.results
    }
    copied: set[int] = set()
    before: dict[int, list[Op]] = {}  # by the block: what stands before its gradients
    for number, found in blocks.items():
        again = list(_again(graph, number, found, block_of))
        before[number] = [op for op, _ in again]
        copied.update(original for _, original in again if original)
    out: list[Op] = []
    for op in graph.ops:
        if id(op) in copied:
            op = _without_residual(op)
        elif op.is_gradient and op.operands[0] in block_of:
            out.extend(before.pop(block_of[op.operands[0]], ()))
            made = {value.name for each in out for value in each.results}
            op = op.of(
                tuple(
                    _again_name(name) if _again_name(name) in made else name
                    for name in op.operands
                ),
                op.results,
            )
        out.append(op)
    return graph.with_ops(out)


def _blocks(graph: Graph) -> dict[int, list[Op]]:
    """The forward ops of each block with `remat` that are computed row by row."""
    found: dict[int, list[Op]] = {}
    for op in graph.ops:
        if "remat" in op.attrs and not op.is_gradient and _by_rows(graph, op):
            found.setdefault(op.attrs["remat"], []).append(op)
    return found


def _by_rows(graph: Graph, op: Op) -> bool:
    if is_structural(op.kind):
        return False
    types = [graph.tensor(name) for name in op.operands]
    if not any(kind.has_rows for kind in types):
        return False
    declaration = ops.find(op.kind)
    attrs = complete(declaration, declared_attrs(op.attrs))
    return declaration.batch(types, attrs) == "rows"


def _again_name(name: str) -> str:
    if name.endswith(".res"):
        return f"{name.removesuffix('.res')}.again.res"
    return f"{name}.again"


def _again(
    graph: Graph, number: int, found: list[Op], block_of: Mapping[str, int]
) -> Iterator[tuple[Op, int]]:
    """The ops that stand before the block's gradients, with the id of the op that each
    repeats (0 for those that hold an input)."""
    gradients = [
        op for op in graph.ops
        if op.is_gradient and block_of.get(op.operands[0]) == number
    ]  # fmt: skip
    if not gradients:
        return
    needed = {name for op in gradients for name in op.operands}
    wanted: list[Op] = []
    for op in reversed(found):
        if any(value.name in needed for value in op.results):
            needed.update(op.operands)
            wanted.append(op)
    cotangent = gradients[0].operands[-1]
    after = (cotangent,) if graph.tensor(cotangent).has_rows else ()
    held: set[str] = set()
    for op in reversed(wanted):
        operands = []
        for name in op.operands:
            inside = block_of.get(name) == number
            if not inside and graph.tensor(name).has_rows and name not in held:
                held.add(name)
                result = Value(_again_name(name), graph.tensor(name))
                attrs = {"again": True}
                yield (
                    Op("hold", (name, *after), (result,), attrs, op.place, op.source),
                    0,
                )
            operands.append(_again_name(name) if inside or name in held else name)
        results = tuple(Value(_again_name(v.name), v.type) for v in op.results)
        yield op.of(tuple(operands), results).with_attrs(again=True), id(op)


def _without_residual(op: Op) -> Op:
    plain = tuple(v for v in op.results if not isinstance(v.type, ResidualType))
    return op.of(op.operands, plain)
