"""The SSA graph: values, ops, and the graph that holds them in program order.

Everything here is immutable: a pass makes a new graph. Values are known by name, a
name is defined once, and an op's operands are defined before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import is_
from typing import Any

from placer.errors import Span
from placer.layouts import Layout
from placer.place import Cluster, Place
from placer.types import ResidualType, TensorType, ValueType

TOGETHER: Mapping[Layout, str] = {
    "P": "sum_microbatches",
    "S": "join_microbatches",
    "R": "one_microbatch",
}
"""What makes one value of those of all microbatches, by how it lies over them."""
APART: Mapping[Layout, str] = {"S": "split_microbatches", "P": "first_microbatch"}
"""What gives every microbatch its own of a value that is made once a step."""


@dataclass(frozen=True, slots=True)
class Value:
    """One result of an op. `layout` is known once the graph is laid out. `over` says how
    it lies over the microbatches of a step, and is None where it is made once a step."""

    name: str
    type: ValueType
    layout: Layout | None = None
    over: Layout | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """One operation: a kind, the names of its operands, its results and attributes.

    `place` is None until somebody says it or the place pass chooses it. `source` is
    where the op was written; it takes no part in equality.
    """

    kind: str
    operands: tuple[str, ...] = ()
    results: tuple[Value, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    place: Place | None = None
    source: Span | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The op's name: its first result's, else its kind and first operand's."""
        if self.results:
            return self.results[0].name
        return f"{self.kind}.{self.operands[0]}" if self.operands else self.kind

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value

    @property
    def is_gradient(self) -> bool:
        return self.kind.endswith(".grad")

    @property
    def forward_kind(self) -> str:
        """The kind without `.grad`: the declaration that the op belongs to."""
        return self.kind.removesuffix(".grad")

    # A pass makes most ops anew, so these are written out: `dataclasses.replace` takes
    # several times as long.

    def at(self, place: Place | None) -> Op:
        """The op at another place."""
        return Op(
            self.kind, self.operands, self.results, self.attrs, place, self.source
        )

    def of(self, operands: tuple[str, ...], results: tuple[Value, ...]) -> Op:
        """The op on other operands, with other results."""
        return Op(self.kind, operands, results, self.attrs, self.place, self.source)

    def with_attrs(self, **attrs: Any) -> Op:
        """The op with these attributes beside its own."""
        return Op(
            self.kind,
            self.operands,
            self.results,
            {**self.attrs, **attrs},
            self.place,
            self.source,
        )


@dataclass(frozen=True)
class Graph:
    """A named list of ops in program order, for a cluster and a global batch size, whose
    rows go through in so many microbatches."""

    name: str
    cluster: Cluster
    batch: int
    ops: tuple[Op, ...]
    microbatches: int = 1

    def with_ops(self, ops: Iterable[Op]) -> Graph:
        """The graph of these ops instead; itself, with what it knows, where they are its
        own."""
        made = tuple(ops)
        if len(made) == len(self.ops) and all(map(is_, made, self.ops)):
            return self
        whole = self.name, self.cluster, self.batch
        return Graph(*whole, made, self.microbatches)

    def is_repeated(self, op: Op) -> bool:
        """Whether the op runs for every microbatch, and not once a step."""
        found = self._repeated.get(id(op))
        if found is None:
            values = op.results
            if not values or op.kind in TOGETHER.values():
                values = tuple(self.values[name] for name in op.operands)
            repeated = any(value.over is not None for value in values)
            found = self._repeated[id(op)] = repeated, op
        return found[0]

    @cached_property
    def _repeated(self) -> dict[int, tuple[bool, Op]]:
        """By the identity of an op, which is kept."""
        return {}

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)

    @cached_property
    def values(self) -> dict[str, Value]:
        """Every value by name."""
        return {value.name: value for op in self.ops for value in op.results}

    @cached_property
    def producers(self) -> dict[str, Op]:
        """The op that defines each value."""
        return {value.name: op for op in self.ops for value in op.results}

    @cached_property
    def uses(self) -> dict[str, tuple[Op, ...]]:
        """The ops that use each value, in program order; an op counts once."""
        found: dict[str, list[Op]] = {}
        for op in self.ops:
            for name in dict.fromkeys(op.operands):
                found.setdefault(name, []).append(op)
        return {name: tuple(ops) for name, ops in found.items()}

    def tensor(self, name: str) -> TensorType:
        """The type of a value that is a tensor."""
        kind = self.values[name].type
        if isinstance(kind, ResidualType):
            raise TypeError(f"'{name}' is a residual, not a tensor")
        return kind

    def nodes(self, op: Op) -> tuple[str, ...]:
        """The nodes (`worker:0`, …) of a placed op, in the order of the places."""
        found = self._nodes.get(id(op.place))
        if found is None:
            assert op.place is not None, op
            found = self._nodes[id(op.place)] = self.cluster.nodes(op.place), op.place
        return found[0]

    @cached_property
    def _nodes(self) -> dict[int, tuple[tuple[str, ...], Place]]:
        """Nodes by the identity of a place, which is kept: this is asked for often,
        and hashing a place costs more than looking."""
        return {}

    def devices(self, op: Op) -> str:
        """The devices of a placed op on each of its nodes, as `gpu:0-7`."""
        found = self._devices.get(id(op.place))
        if found is None:
            assert op.place is not None, op
            devices = self.cluster.devices(op.place)
            found = self._devices[id(op.place)] = devices, op.place
        return found[0]

    @cached_property
    def _devices(self) -> dict[int, tuple[str, Place]]:
        """Devices by the identity of a place, as `_nodes`."""
        return {}

    def on(self, node: str) -> tuple[Op, ...]:
        """The ops of a placed graph that one node runs, in program order."""
        return self._by_node.get(node, ())

    @cached_property
    def _by_node(self) -> dict[str, tuple[Op, ...]]:
        found: dict[str, list[Op]] = {}
        for op in self.ops:
            for node in self.nodes(op):
                found.setdefault(node, []).append(op)
        return {node: tuple(ops) for node, ops in found.items()}

    @cached_property
    def sends(self) -> dict[int, Op]:
        """The op that sends each edge."""
        return {op.attrs["edge"]: op for op in self.of_kind("send", "send_and_recv")}

    @cached_property
    def listens(self) -> dict[int, Op]:
        """The op whose results each edge's values are."""
        both = {op.attrs["back"]: op for op in self.of_kind("send_and_recv")}
        return both | {op.attrs["edge"]: op for op in self.of_kind("listen_and_serv")}

    def of_kind(self, *kinds: str) -> tuple[Op, ...]:
        return tuple(op for op in self.ops if op.kind in kinds)
