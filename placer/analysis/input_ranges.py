"""Which values an input may have: those that the ops which take it as an index allow."""

from __future__ import annotations

import re

from placer import ops
from placer.analysis.if_training import resolved
from placer.build.plan import Range
from placer.graph.graph import Graph, Op
from placer.graph.kinds import STRUCTURAL, declared_attrs
from placer.ops.attributes import complete
from placer.types import TensorType

_REARRANGED = frozenset(
    {"reshape", "flatten", "transpose", "squeeze", "expand_dims", "tile", "concat"}
    | {"stop_gradient"}
)
"""Ops whose result has all values of each operand. A slice has some only: what takes it
says nothing of the others."""


def index_ranges(graph: Graph, *, evaluating: bool) -> dict[str, Range]:
    """The range of each input that a step, or an evaluation, uses as an index.

    `graph` is as written. Where several ops take an input, the least range counts.
    """
    found: dict[str, Range] = {}
    inputs: dict[str, frozenset[str]] = {}  # by value: the inputs that it is made of
    for op in resolved(graph, int(evaluating), lambda op: _is_root(op, evaluating)):
        if op.kind == "read":
            inputs[op.result.name] = frozenset({op.attrs["input"]})
        if op.kind in STRUCTURAL:
            continue
        if _keeps(op, graph):
            inputs[op.result.name] = frozenset[str]().union(
                *(inputs.get(name, frozenset()) for name in op.operands)
            )
        for index, size in _indexes(op, graph).items():
            for name in inputs.get(op.operands[index], ()):
                if name not in found or size <= found[name].high:
                    found[name] = Range(low=0, high=size - 1, op=op.name, kind=op.kind)
    return found


def _is_root(op: Op, evaluating: bool) -> bool:
    if evaluating:
        return op.kind == "record" and not op.attrs.get("watched")
    return op.kind in ("record", "minimize")


def _indexes(op: Op, graph: Graph) -> dict[int, int]:
    declaration = ops.find(op.kind)
    types = [graph.tensor(name) for name in op.operands]
    attrs = complete(declaration, declared_attrs(op.attrs))
    return dict(declaration.indexes(types, attrs))


def _keeps(op: Op, graph: Graph) -> bool:
    """Whether every value of its operands is a value of its result."""
    if op.kind != "cast":
        return op.kind in _REARRANGED
    given, made = (
        _bits(graph.tensor(op.operands[0])),
        _bits(graph.tensor(op.result.name)),
    )
    return given is not None and made is not None and given <= made


def _bits(kind: TensorType) -> int | None:
    """How large the numbers of an integer type can be, in bits; None of any other."""
    match = re.fullmatch(r"(u?)int(\d+)", kind.dtype)
    return int(match[2]) - (not match[1]) if match else None
