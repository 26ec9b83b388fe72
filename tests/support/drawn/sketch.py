"""A graph that is being drawn: its ops, where they stand, what they give."""

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
from placer.types import BATCH, Dim, TensorType
from support.drawn.clusters import Layout, Nodes, places_of_ops

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
TOPS = {"label": CLASSES, "click": 2, "length": 3, "seen": 2}
"""Integers are below this, or else below VOCABULARY."""


@dataclass
class Value:
    """A value: where it stands (None: it goes anywhere), a bound that keeps products
    from running away, and whether its elements are apart from each other and from 0,
    so that rounding changes neither their order nor their signs."""

    name: str
    type: TensorType
    nodes: Nodes | None = None
    bound: float = 1.0
    apart: bool = False

    @property
    def shape(self) -> Shape:
        return self.type.shape


@dataclass
class Sketch:
    """A graph that is being drawn."""

    draw: Any
    cluster: Layout
    block: bool
    ops: list[dict[str, Any]] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    states: set[str] = field(default_factory=set)

    def pick(self, choices: Iterable[Any]) -> Any:
        return self.draw(st.sampled_from(list(choices)))

    def rows(self, shape: Shape) -> int:
        return prod(TensorType("float32", shape).sizes(self.cluster.batch))

    def input(self, name: str) -> Value:
        kind = INPUTS[name]
        return Value(name, kind, None, 1.0, kind.is_float)

    def sources(self, fits: Callable[[Value], bool] = lambda v: True) -> list[Value]:
        """Float values that an op may take: inputs, and results so far, which stand
        there several times so that most ops are on a way to the loss."""
        inputs = [self.input(n) for n, kind in INPUTS.items() if kind.is_float]
        values = [v for v in self.values if v.name not in self.used]
        return [v for v in (*inputs, *self.values, *values, *values) if fits(v)]

    def parameter(self, name: str, shape: tuple[int, ...]) -> Value:
        self.shapes[name] = shape
        return Value(name, TensorType("float32", shape))

    def trained(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the parameters that are no state."""
        return {n: s for n, s in self.shapes.items() if n not in self.states}

    def declared(self, shape: tuple[int, ...]) -> Value:
        """A parameter that no layer makes."""
        name = f"p{len(self.ops)}"
        entry = {"name": name, "op": "parameter", "shape": list(shape)}
        self.ops.append({**entry, "init": "zeros"})
        return self.parameter(name, shape)

    def place(self, operands: list[Value]) -> tuple[str | None, Nodes]:
        """A place for an op: its text, or None, and its nodes."""
        given = [v.nodes for v in operands if v.nodes is not None]
        near = given[0] if given and not self.block else self.cluster.everywhere
        everywhere = (
            self.pick(("/node:worker", "/node:worker/cpu", "/node:worker:*")),
        )
        choices: list[tuple[str | None, Nodes]] = [(None, near)] * 4
        choices += [(text, self.cluster.everywhere) for text in everywhere * 3]
        choices += places_of_ops(self.cluster).items()
        found: tuple[str | None, Nodes] = self.pick(choices)
        return found

    def op(self, kind: str, operands: list[Value], **how: Any) -> Value:
        """The result of an op that has one, or the first."""
        return self.several(kind, operands, **how)[0]

    def several(
        self,
        kind: str,
        operands: list[Value],
        *,
        bound: float = 1.0,
        apart: bool = False,
        shared: dict[str, str] | None = None,
        **attrs: Any,
    ) -> list[Value]:
        """Add an op; its results, of at most `bound`, are typed as it declares them.

        `shared` are parameters of other ops that it takes.
        """
        declaration = _DECLARED.get(kind) or ops.find(kind)
        types = [v.type for v in operands]
        made: Sequence[LayerParameter] = ()
        if declaration.parameters is not None:
            made = declaration.parameters(
                types, complete(declaration, attrs, build=True)
            )
        types += [parameter.type for parameter in made]
        held = complete(declaration, condense(declaration, attrs))
        results = declaration.infer(types, held)
        named = getattr(declaration, "named", lambda count: [""])(len(results))
        name = f"h{len(self.ops)}"
        own = [p for p in made if p.operand not in (shared or {})]
        return self.add(
            {"op": kind, **attrs, **({"params": shared} if shared else {})},
            operands,
            {
                name if len(results) == 1 else f"{name}.{result}": type_
                for result, type_ in zip(named, results, strict=True)
            },
            own,
            list((shared or {}).values()),
            bound,
            apart,
        )

    def add(
        self,
        written: dict[str, Any],
        operands: list[Value],
        results: dict[str, TensorType],
        own: Sequence[LayerParameter],
        shared: list[str],
        bound: float,
        apart: bool,
    ) -> list[Value]:
        """Add an op as it is written, with the parameters that it makes."""
        name = f"h{len(self.ops)}"
        text, nodes = self.place(operands)
        for parameter in own:
            full = f"{name}.{parameter.operand}"
            self.parameter(full, parameter.type.sizes(1))
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
        found = [Value(n, t, nodes, bound, apart) for n, t in results.items()]
        if bound > 8:
            return [self._smaller(value) for value in found]
        self.values += [v for v in found if v.type.is_float]
        return found

    def _smaller(self, value: Value) -> Value:
        by = 2.0 / value.bound
        return self.op("scale", [value], bound=2.0, apart=value.apart, factor=by)

    def forget(self, value: Value) -> None:
        """Nothing takes it any more."""
        self.values = [v for v in self.values if v is not value]


_DECLARED = {composite.kind: composite for composite in COMPOSITES}


def broadcast(a: Shape, b: Shape) -> Shape | None:
    """The shape of two values put together, if they fit."""
    rank = max(len(a), len(b))
    left, right = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    found = []
    for m, n in zip(left, right, strict=True):
        if m != n and 1 not in (m, n):
            return None
        found.append(n if m == 1 else m)
    return tuple(found)


def is_rows(v: Value) -> bool:
    """Whether it is one vector a row."""
    return len(v.shape) == 2 and v.shape[0] == BATCH != v.shape[1]


def has_width(v: Value) -> bool:
    return len(v.shape) >= 2 and v.shape[-1] != BATCH


def is_sequence(v: Value) -> bool:
    return len(v.shape) == 3 and v.shape[0] == BATCH and BATCH not in v.shape[1:]


def is_image(v: Value) -> bool:
    return len(v.shape) == 4 and v.shape[0] == BATCH and BATCH not in v.shape[1:]
