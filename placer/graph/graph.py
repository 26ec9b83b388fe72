"""The SSA graph: values, ops, and the graph, which lists ops in program order.

Everything here is immutable: a pass returns a new graph. Values are identified by name,
a name is defined once, and the operands of an op are defined before the op.
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

MICROBATCH_REDUCTIONS: Mapping[Layout, str] = {
    "P": "sum_microbatches",
    "S": "join_microbatches",
    "R": "one_microbatch",
}
"""The op kind that reduces the values of all microbatches to one value of the step, by
the microbatch layout of the value."""
MICROBATCH_SCATTERS: Mapping[Layout, str] = {
    "S": "split_microbatches",
    "P": "first_microbatch",
}
"""The op kind that distributes a value that is computed once a step over the
microbatches, by the microbatch layout that the users need."""


@dataclass(frozen=True, slots=True)
class Value:
    """One result of an op.

    `layout` is how the value is distributed over the nodes of its place, and None
    before the layout pass. `microbatch_layout` is how it is distributed over the
    microbatches of a step in the same sense: S if each microbatch has its own rows, P
    if the value is the sum over the microbatches, R if it is the same in all of them.
    It is None for a value that is computed once a step.
    """

    name: str
    type: ValueType
    layout: Layout | None = None
    microbatch_layout: Layout | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """One operation: a kind, the names of its operands, its results and attributes.

    `place` is None if the spec names no place and the place pass has not run. `source`
    is the position in the spec; ops are compared without it.
    """

    kind: str
    operands: tuple[str, ...] = ()
    results: tuple[Value, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    place: Place | None = None
    source: Span | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The name of the first result; without results, the kind and first operand."""
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

    # Passes copy most ops, so the copies below are written out: `dataclasses.replace`
    # takes several times as long.

    def with_place(self, place: Place | None) -> Op:
        """Return the op at another place."""
        return Op(
            self.kind, self.operands, self.results, self.attrs, place, self.source
        )

    def with_values(self, operands: tuple[str, ...], results: tuple[Value, ...]) -> Op:
        """Return the op with other operands and results."""
        return Op(self.kind, operands, results, self.attrs, self.place, self.source)

    def with_attrs(self, **attrs: Any) -> Op:
        """Return the op with these attributes added to its own."""
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
    """A named list of ops in program order, for one cluster and one batch size.

    `batch` is the number of rows of the global batch; it passes through the ops in
    `microbatches` equal parts.
    """

    name: str
    cluster: Cluster
    batch: int
    ops: tuple[Op, ...]
    microbatches: int = 1

    def with_ops(self, ops: Iterable[Op]) -> Graph:
        """Return the graph with these ops instead.

        If they are the graph's own ops, return the graph itself: it keeps its cached
        properties, and the verifier recognizes it.
        """
        new_ops = tuple(ops)
        if len(new_ops) == len(self.ops) and all(map(is_, new_ops, self.ops)):
            return self
        header = self.name, self.cluster, self.batch
        return Graph(*header, new_ops, self.microbatches)

    def is_repeated(self, op: Op) -> bool:
        """Whether the op runs once per microbatch, rather than once per step."""
        entry = self._repeated.get(id(op))
        if entry is None:
            # The result of a microbatch reduction exists once a step, but the op adds
            # to it in every microbatch, so its operands decide.
            values = op.results
            if not values or op.kind in MICROBATCH_REDUCTIONS.values():
                values = tuple(self.values[name] for name in op.operands)
            repeated = any(value.microbatch_layout is not None for value in values)
            entry = self._repeated[id(op)] = repeated, op
        return entry[0]

    @cached_property
    def _repeated(self) -> dict[int, tuple[bool, Op]]:
        """The answers of `is_repeated` by `id(op)`. An entry references its op, so that
        the id stays valid."""
        return {}

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)

    @cached_property
    def values(self) -> dict[str, Value]:
        """All values by name."""
        return {value.name: value for op in self.ops for value in op.results}

    @cached_property
    def producers(self) -> dict[str, Op]:
        """The op that defines each value, by the name of the value."""
        return {value.name: op for op in self.ops for value in op.results}

    @cached_property
    def result_indices(self) -> dict[str, int]:
        """Which result of its op each value is."""
        return {v.name: i for op in self.ops for i, v in enumerate(op.results)}

    @cached_property
    def uses(self) -> dict[str, tuple[Op, ...]]:
        """The ops that use each value, in program order; each op is listed once."""
        users: dict[str, list[Op]] = {}
        for op in self.ops:
            for name in dict.fromkeys(op.operands):
                users.setdefault(name, []).append(op)
        return {name: tuple(ops) for name, ops in users.items()}

    def tensor_type(self, name: str) -> TensorType:
        """Return the type of a value that is a tensor.

        Raises TypeError if the value is a residual.
        """
        value_type = self.values[name].type
        if isinstance(value_type, ResidualType):
            raise TypeError(f"'{name}' is a residual, not a tensor")
        return value_type

    def nodes(self, op: Op) -> tuple[str, ...]:
        """Return the nodes (`worker:0`, …) of a placed op, in the order of its
        place."""
        entry = self._nodes.get(id(op.place))
        if entry is None:
            assert op.place is not None, op
            entry = self._nodes[id(op.place)] = self.cluster.nodes(op.place), op.place
        return entry[0]

    @cached_property
    def _nodes(self) -> dict[int, tuple[tuple[str, ...], Place]]:
        """Nodes by `id(place)`. An entry references its place, so that the id stays
        valid. The key is not the place itself, because hashing a place costs more than
        the lookup, and `nodes` is called often."""
        return {}

    def devices(self, op: Op) -> str:
        """Return the devices of a placed op on each of its nodes, as `gpu:0-7`."""
        entry = self._devices.get(id(op.place))
        if entry is None:
            assert op.place is not None, op
            devices = self.cluster.devices(op.place)
            entry = self._devices[id(op.place)] = devices, op.place
        return entry[0]

    @cached_property
    def _devices(self) -> dict[int, tuple[str, Place]]:
        """Devices by `id(place)`, as in `_nodes`."""
        return {}

    def ops_on(self, node: str) -> tuple[Op, ...]:
        """Return the ops that one node runs, in program order. The graph is placed."""
        return self._by_node.get(node, ())

    @cached_property
    def _by_node(self) -> dict[str, tuple[Op, ...]]:
        node_ops: dict[str, list[Op]] = {}
        for op in self.ops:
            for node in self.nodes(op):
                node_ops.setdefault(node, []).append(op)
        return {node: tuple(ops) for node, ops in node_ops.items()}

    @cached_property
    def sends(self) -> dict[int, Op]:
        """The op that sends the message of each edge, by the edge's number."""
        return {op.attrs["edge"]: op for op in self.of_kind("send", "send_and_recv")}

    @cached_property
    def receives(self) -> dict[int, Op]:
        """The op that receives the message of each edge, by the edge's number; its
        results are the values of the edge."""
        replies = {op.attrs["back"]: op for op in self.of_kind("send_and_recv")}
        return replies | {
            op.attrs["edge"]: op for op in self.of_kind("listen_and_serv")
        }

    def of_kind(self, *kinds: str) -> tuple[Op, ...]:
        """Return the ops of these kinds, in program order."""
        return tuple(op for op in self.ops if op.kind in kinds)
