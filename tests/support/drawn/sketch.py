"""A random graph under construction: its ops, their places and their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from hypothesis import strategies as st

from placer import ops
from placer.ops.attributes import complete, condense
from placer.ops.composites import COMPOSITES
from placer.ops.declaration import LayerParameter
from placer.place.types import BATCH, Dim, TensorType
from support.drawn.clusters import DrawnCluster, Nodes, op_places

Shape = tuple[Dim, ...]
INPUTS: dict[str, TensorType] = {
    name: TensorType.parse(text)
    for name, text in {
        "x": "float32[batch, 3]",
        "z": "float32[batch, 2, 3]",
        "v": "float32[batch]",
        "y": "float32[batch]",
        "image": "float32[batch, 4, 3, 2]",
        "ids": "int32[batch]",
        "pairs": "int64[batch, 2]",
        "label": "int32[batch]",
        "click": "int32[batch]",
        "length": "int32[batch]",
        "seen": "bool[batch, 2]",
    }.items()
}
VOCABULARY = 6
CLASSES = 4
UPPER_BOUNDS = {"label": CLASSES, "click": 2, "length": 3, "seen": 2}
"""The exclusive upper bounds of integer inputs; VOCABULARY for the others."""


@dataclass
class Value:
    """A value of the graph.

    Attributes:
        nodes: the nodes that compute it, None if it can be used anywhere.
        bound: a bound of its elements, which keeps products from diverging.
        separated: whether its elements differ from each other and from 0 by more than
            rounding errors, so that rounding changes neither their order nor their
            signs.
    """

    name: str
    type: TensorType
    nodes: Nodes | None = None
    bound: float = 1.0
    separated: bool = False

    @property
    def shape(self) -> Shape:
        return self.type.shape


@dataclass
class Sketch:
    """A random graph under construction."""

    draw: Any
    cluster: DrawnCluster
    in_scope: bool
    ops: list[dict[str, Any]] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    states: set[str] = field(default_factory=set)

    def pick(self, choices: Iterable[Any]) -> Any:
        return self.draw(st.sampled_from(list(choices)))

    def size_of(self, shape: Shape) -> int:
        return prod(TensorType("float32", shape).sizes(self.cluster.batch))

    def input(self, name: str) -> Value:
        kind = INPUTS[name]
        return Value(name, kind, None, 1.0, kind.is_float)

    def sources(self, fits: Callable[[Value], bool] = lambda v: True) -> list[Value]:
        """Return the float values that an op can use: inputs and results so far.

        Unused results are repeated, so that most ops are on a path to the loss.
        """
        inputs = [self.input(n) for n, kind in INPUTS.items() if kind.is_float]
        values = [v for v in self.values if v.name not in self.used]
        return [v for v in (*inputs, *self.values, *values, *values) if fits(v)]

    def add_parameter(self, name: str, shape: tuple[int, ...]) -> Value:
        self.shapes[name] = shape
        return Value(name, TensorType("float32", shape))

    def trainable_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the parameters that are not state."""
        return {n: s for n, s in self.shapes.items() if n not in self.states}

    def declare_parameter(self, shape: tuple[int, ...]) -> Value:
        """Add an op `parameter`, and return its value."""
        name = f"p{len(self.ops)}"
        entry = {"name": name, "op": "parameter", "shape": list(shape)}
        self.ops.append({**entry, "init": "zeros"})
        return self.add_parameter(name, shape)

    def draw_place(self, operands: list[Value]) -> tuple[str | None, Nodes]:
        """Draw a place for an op: its text, or None, and its nodes."""
        operand_nodes = [v.nodes for v in operands if v.nodes is not None]
        default = (
            operand_nodes[0]
            if operand_nodes and not self.in_scope
            else self.cluster.all_workers
        )
        everywhere = (
            self.pick(("/node:worker", "/node:worker/cpu", "/node:worker:*")),
        )
        choices: list[tuple[str | None, Nodes]] = [(None, default)] * 4
        choices += [(text, self.cluster.all_workers) for text in everywhere * 3]
        choices += op_places(self.cluster).items()
        choice: tuple[str | None, Nodes] = self.pick(choices)
        return choice

    def add_op(self, kind: str, operands: list[Value], **how: Any) -> Value:
        """Add an op, and return its first result."""
        return self.add_multi_result_op(kind, operands, **how)[0]

    def add_multi_result_op(
        self,
        kind: str,
        operands: list[Value],
        *,
        bound: float = 1.0,
        separated: bool = False,
        shared: dict[str, str] | None = None,
        **attrs: Any,
    ) -> list[Value]:
        """Add an op, and return its results, with types from its declaration.

        `bound` is the bound of the results; `shared` maps operands to parameters of
        other ops.
        """
        declaration = _COMPOSITES.get(kind) or ops.find(kind)
        types = [v.type for v in operands]
        layer_parameters: Sequence[LayerParameter] = ()
        if declaration.creates is not None:
            layer_parameters = declaration.parameters(
                types, complete(declaration, attrs, for_parameters=True)
            )
        types += [parameter.type for parameter in layer_parameters]
        attributes = complete(declaration, condense(declaration, attrs))
        results = declaration.infer(types, attributes)
        result_names = getattr(declaration, "result_names", lambda count: [""])(
            len(results)
        )
        name = f"h{len(self.ops)}"
        own = [p for p in layer_parameters if p.operand not in (shared or {})]
        return self.add_entry(
            {"op": kind, **attrs, **({"params": shared} if shared else {})},
            operands,
            {
                name if len(results) == 1 else f"{name}.{result}": type_
                for result, type_ in zip(result_names, results, strict=True)
            },
            own,
            list((shared or {}).values()),
            bound,
            separated,
        )

    def add_entry(
        self,
        written: dict[str, Any],
        operands: list[Value],
        results: dict[str, TensorType],
        own: Sequence[LayerParameter],
        shared: list[str],
        bound: float,
        separated: bool,
    ) -> list[Value]:
        """Add an entry with its own parameters, and return its results."""
        name = f"h{len(self.ops)}"
        text, nodes = self.draw_place(operands)
        for parameter in own:
            full = f"{name}.{parameter.operand}"
            self.add_parameter(full, parameter.type.sizes(1))
            if parameter.state:
                self.states.add(full)
        entry: dict[str, Any] = {"name": name, "op": written["op"]}
        if operands:
            names = [v.name for v in operands]
            entry["in"] = names[0] if len(names) == 1 else names
        entry |= written
        if text is not None:
            entry["place"] = text
        self.ops.append(entry)
        self.used |= {v.name for v in operands}
        values = [Value(n, t, nodes, bound, separated) for n, t in results.items()]
        if bound > 8:
            return [self._scale_down(value) for value in values]
        self.values += [v for v in values if v.type.is_float]
        return values

    def _scale_down(self, value: Value) -> Value:
        by = 2.0 / value.bound
        return self.add_op(
            "scale", [value], bound=2.0, separated=value.separated, factor=by
        )

    def forget(self, value: Value) -> None:
        """Remove a value, so that no other op uses it."""
        self.values = [v for v in self.values if v is not value]


_COMPOSITES = {composite.kind: composite for composite in COMPOSITES}


def broadcast(a: Shape, b: Shape) -> Shape | None:
    """Return the broadcast shape of two shapes, or None if they do not fit."""
    rank = max(len(a), len(b))
    left, right = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    dims = []
    for m, n in zip(left, right, strict=True):
        if m != n and 1 not in (m, n):
            return None
        dims.append(n if m == 1 else m)
    return tuple(dims)


def is_rows(v: Value) -> bool:
    """Whether the value has one vector per row."""
    return len(v.shape) == 2 and v.shape[0] == BATCH != v.shape[1]


def has_width(v: Value) -> bool:
    return len(v.shape) >= 2 and v.shape[-1] != BATCH


def is_sequence(v: Value) -> bool:
    return len(v.shape) == 3 and v.shape[0] == BATCH and BATCH not in v.shape[1:]


def is_image(v: Value) -> bool:
    return len(v.shape) == 4 and v.shape[0] == BATCH and BATCH not in v.shape[1:]
