"""The graph of a step, in SSA form: values, ops, and the graph with its ops in order.

Everything is immutable: a pass returns a new graph. A value is identified by its name.
Each name is defined once, before the ops that use it.

Values and ops are msgspec structs. Frozen dataclasses take ten times as long to
construct, and a compilation constructs dozens for each op of a spec.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import merge
from operator import is_, itemgetter
from typing import Any

import msgspec

from placer.compiler.graph.structural_kind import StructuralKind
from placer.compiler.graph.structural_ops import COMPUTED, KINDS
from placer.errors import Span
from placer.place import Cluster, NodeId, Place
from placer.place.layouts import Layout
from placer.place.layouts.companions import goes_between_companions
from placer.place.layouts.ranges import Flat, Ranges
from placer.place.types import ITEM_BYTES, ResidualType, TensorType, ValueType
from placer.plan.exchanges import EXCHANGES, Exchange
from placer.plan.settings.training.update_modes import Mode, Sync, mode_of


class Value(msgspec.Struct, frozen=True):
    """One result of an op.

    Attributes:
        layout: How the nodes of the place share the value; None before the layout pass.
        microbatch_layout: How the microbatches of a step share the value: S (each has
            its own rows), P (the value is the sum over them) or R (the same in all).
            None if the value is computed once a step.
        flat: For layout F, the position among the values that are divided together.
    """

    name: str
    type: ValueType
    layout: Layout | None = None
    microbatch_layout: Layout | None = None
    flat: Flat | None = None


class Op(msgspec.Struct, frozen=True, eq=False):
    """One operation: a kind, operand names, results and attributes.

    Ops are compared by identity, so they can be keys of dictionaries. Graphs compare
    the content of their ops.

    Attributes:
        place: None if the spec sets no place and the place pass has not run.
        source: The position in the spec.
        why: Why a pass chose the place or inserted the op; otherwise empty.
    """

    kind: str
    operands: tuple[str, ...] = ()
    results: tuple[Value, ...] = ()
    attrs: Mapping[str, Any] = msgspec.field(default_factory=dict)
    place: Place | None = None
    source: Span | None = None
    why: str = ""
    structure: StructuralKind = COMPUTED
    """The declaration of the structural kind; `COMPUTED` for a computed op."""

    def __post_init__(self) -> None:
        structure = KINDS.get(self.kind, COMPUTED)
        msgspec.structs.force_setattr(self, "structure", structure)

    def __repr__(self) -> str:
        shown = self.kind, self.operands, self.results, self.attrs, str(self.place)
        return f"Op({', '.join(map(repr, shown))})"

    @property
    def name(self) -> str:
        """The name of the first result, or else the kind and the first operand."""
        if self.results:
            return self.results[0].name
        return f"{self.kind}.{self.operands[0]}" if self.operands else self.kind

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value

    @property
    def tensors(self) -> tuple[Value, ...]:
        """The results without a residual. A residual is always last."""
        if self.has_residual:
            return self.results[:-1]
        return self.results

    @property
    def has_residual(self) -> bool:
        results = self.results
        return bool(results) and isinstance(results[-1].type, ResidualType)

    @property
    def known_place(self) -> Place:
        """The place of an op of a placed graph."""
        assert self.place is not None, self
        return self.place

    @property
    def is_computed(self) -> bool:
        """Whether the op is part of a jitted function."""
        return self.structure is COMPUTED

    @property
    def sent_edge(self) -> int | None:
        """The number of the edge whose message the op sends, if any."""
        return int(self.attrs["edge"]) if self.structure.sends else None

    @property
    def received_edge(self) -> int | None:
        """The number of the edge whose message the op receives, if any."""
        if not self.structure.receives:
            return None
        # An op that also sends receives the reply.
        return int(self.attrs["back" if self.structure.sends else "edge"])

    @property
    def exchange(self) -> Exchange | None:
        """The exchange of the op, or of its edge's message; None if it has none."""
        return EXCHANGES.get(self.attrs.get("exchange", self.kind))

    @property
    def is_asynchronous(self) -> bool:
        """True if the exchange is asynchronous: no node waits for all others."""
        exchange = self.exchange
        return exchange is not None and exchange.is_free("group" in self.attrs)

    @property
    def is_push(self) -> bool:
        """True if the op sends one worker's gradients or changes, for other nodes
        to apply.
        """
        exchange = self.exchange
        return exchange is not None and exchange.is_push and self.is_asynchronous

    @property
    def is_once(self) -> bool:
        """True if an evaluation runs the op once, before its first batch."""
        return bool(self.attrs.get("once", False))

    @property
    def is_gradient(self) -> bool:
        return self.kind.endswith(".grad")

    @property
    def forward_kind(self) -> str:
        """The kind without `.grad`. Its declaration covers the gradient op too."""
        return self.kind.removesuffix(".grad")

    # Passes copy most ops, and `msgspec.structs.replace` takes longer.

    def with_place(self, place: Place | None, why: str = "") -> Op:
        """Return the op at another place. `why` is the reason for this place."""
        why = why or self.why
        same = self.kind, self.operands, self.results, self.attrs
        return Op(*same, place, self.source, why)

    def with_values(self, operands: tuple[str, ...], results: tuple[Value, ...]) -> Op:
        """Return the op with other operands and results."""
        same = self.attrs, self.place, self.source, self.why
        return Op(self.kind, operands, results, *same)

    def with_operands(self, operands: tuple[str, ...]) -> Op:
        """Return the op with other operands. Returns the same op if nothing changes."""
        if operands == self.operands:
            return self
        return self.with_values(operands, self.results)

    def with_attrs(self, **attrs: Any) -> Op:
        """Return the op with these attributes added."""
        new, same = {**self.attrs, **attrs}, (self.place, self.source, self.why)
        return Op(self.kind, self.operands, self.results, new, *same)


@dataclass(frozen=True, eq=False)
class Graph:
    """A named list of ops in program order, for one cluster and one batch size.

    Attributes:
        batch: The number of rows of the global batch.
        microbatches: The number of equal parts in which the batch passes through the
            ops.
        evaluation_batch: The number of rows of an evaluation batch, if the graph will
            also become an evaluation.
        first_edge: The messages of the graph are numbered from here.
    """

    name: str
    cluster: Cluster
    batch: int
    ops: tuple[Op, ...]
    microbatches: int = 1
    evaluation_batch: int | None = None
    first_edge: int = 1

    def with_ops(self, ops: Iterable[Op]) -> Graph:
        """Return the graph with other ops. Returns the same graph if the ops are its
        own. It keeps its cached properties, and the verifier recognizes it."""
        new_ops = tuple(ops)
        if len(new_ops) == len(self.ops) and all(map(is_, new_ops, self.ops)):
            return self
        return replace(self, ops=new_ops)

    def __eq__(self, other: object) -> bool:
        """Compare headers and ops, but not positions and reasons."""
        if not isinstance(other, Graph):
            return NotImplemented
        return self._content() == other._content()

    __hash__ = None  # type: ignore[assignment]

    def _content(self) -> tuple[object, ...]:
        ops = [(op.kind, op.operands, op.results, op.attrs, op.place) for op in self]
        numbers = self.batch, self.microbatches, self.evaluation_batch, self.first_edge
        return self.name, self.cluster, numbers, ops

    def is_repeated(self, op: Op) -> bool:
        """Return True if the op runs once per microbatch, rather than once per step.
        Such an op uses or computes values of single microbatches."""
        return op in self._repeated

    @cached_property
    def _repeated(self) -> set[Op]:
        of_one = {n for n, v in self.values.items() if v.microbatch_layout is not None}
        return {
            op
            for op in self.ops
            if not of_one.isdisjoint(op.operands)
            or not of_one.isdisjoint(value.name for value in op.results)
        }

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)

    @cached_property
    def values(self) -> dict[str, Value]:
        """All values, by name."""
        return {value.name: value for op in self.ops for value in op.results}

    @cached_property
    def producers(self) -> dict[str, Op]:
        """The op that defines each value, by the name of the value."""
        return {value.name: op for op in self.ops for value in op.results}

    @cached_property
    def result_indices(self) -> dict[str, int]:
        """The index of each value among the results of its op."""
        return {v.name: i for op in self.ops for i, v in enumerate(op.results)}

    @cached_property
    def uses(self) -> dict[str, list[Op]]:
        """The ops that use each value, in program order; each op is listed once."""
        users: dict[str, list[Op]] = {}
        for op in self.ops:
            for name in op.operands:
                ops = users.setdefault(name, [])
                if not ops or ops[-1] is not op:
                    ops.append(op)
        return users

    def tensor_type(self, name: str) -> TensorType:
        """Return the type of a tensor. Raises TypeError for a residual."""
        value_type = self.values[name].type
        if isinstance(value_type, ResidualType):
            raise TypeError(f"'{name}' is a residual, not a tensor")
        return value_type

    def operand_types(self, op: Op) -> list[TensorType]:
        """Return the types of an op's operands, which must be tensors."""
        return [self.tensor_type(name) for name in op.operands]

    def layout(self, name: str) -> Layout:
        """Return the layout of a value. The graph must be laid out."""
        layout = self.values[name].layout
        assert layout is not None, name
        return layout

    def ranges(self, name: str) -> Ranges:
        """Return the ranges of a value of layout F over the nodes of its place."""
        flat, kind = self.values[name].flat, self.tensor_type(name)
        assert flat is not None, name
        parts = len(self.nodes(self.producers[name]))
        return Ranges(flat, kind.numel(), ITEM_BYTES[kind.dtype], parts)

    def nodes(self, op: Op) -> tuple[NodeId, ...]:
        """Return the nodes (`worker:0`, …) of a placed op, in the order of its
        place.
        """
        entry = self._nodes.get(id(op.place))
        if entry is None:
            place = op.known_place
            entry = self._nodes[id(place)] = self.cluster.nodes(place), place
        return entry[0]

    @cached_property
    def _nodes(self) -> dict[int, tuple[tuple[NodeId, ...], Place]]:
        """Nodes by `id(place)`. `nodes` is called often, and hashing a place costs more
        than the lookup. Each entry keeps its place alive, so the id stays valid."""
        return {}

    def devices(self, op: Op) -> str:
        """Return the devices of a placed op on each node, such as `gpu:0-7`."""
        entry = self._devices.get(id(op.place))
        if entry is None:
            place = op.known_place
            entry = self._devices[id(place)] = self.cluster.devices(place), place
        return entry[0]

    @cached_property
    def _devices(self) -> dict[int, tuple[str, Place]]:
        """Devices by `id(place)`, as in `_nodes`."""
        return {}

    def ops_on(self, node: str) -> list[Op]:
        """Return the ops that a node runs, in program order. The graph must be
        placed.
        """
        at = (ops for nodes, ops in self._by_place if node in nodes)
        return [op for _, op in merge(*at, key=itemgetter(0))]

    @cached_property
    def _by_place(self) -> list[tuple[tuple[NodeId, ...], list[tuple[int, Op]]]]:
        """The nodes of each place, and its ops with their position in program order."""
        places: dict[int, tuple[tuple[NodeId, ...], list[tuple[int, Op]]]] = {}
        for i, op in enumerate(self.ops):
            entry = places.get(id(op.place))
            if entry is None:
                entry = places[id(op.place)] = self.nodes(op), []
            entry[1].append((i, op))
        return [*places.values()]

    @cached_property
    def parameters(self) -> tuple[Op, ...]:
        """The parameters, or blocks of parameters, in program order."""
        return self.of_kind("parameter")

    @cached_property
    def sparse_tables(self) -> tuple[Op, ...]:
        """The parameters with a row for each key, in program order."""
        return self.of_kind("sparse_table")

    @cached_property
    def weights(self) -> tuple[Op, ...]:
        """The parameters and the sparse tables, in program order."""
        return self.of_kind("parameter", "sparse_table")

    @cached_property
    def optimizers(self) -> dict[int, Op]:
        """The optimizers, by index."""
        return {op.attrs["group"]: op for op in self.of_kind("optimizer")}

    @cached_property
    def modes(self) -> dict[int, Mode | None]:
        """The update mode of each optimizer; None if it is synchronous."""
        return {g: mode_of(op.attrs.get("update")) for g, op in self.optimizers.items()}

    @cached_property
    def backups(self) -> dict[int, int]:
        """The number of backup workers of each optimizer."""
        updates = {g: op.attrs.get("update") for g, op in self.optimizers.items()}
        return {
            g: each.backup if isinstance(each, Sync) else 0
            for g, each in updates.items()
        }

    @cached_property
    def sends(self) -> dict[int, Op]:
        """The op that sends the message of each edge, by edge number."""
        return {edge: op for op in self.ops if (edge := op.sent_edge) is not None}

    @cached_property
    def receives(self) -> dict[int, Op]:
        """The op that receives the message of each edge, by edge number. Its results
        are the values of the edge."""
        return {edge: op for op in self.ops if (edge := op.received_edge) is not None}

    @cached_property
    def paired_edges(self) -> frozenset[int]:
        """The edges whose messages all go between a worker and its heter node."""
        workers = self.cluster.worker_nodes
        return frozenset(
            edge
            for edge, send in self.sends.items()
            if all(
                goes_between_companions(
                    (self.layout(name), self.layout(result.name)),
                    self.nodes(send),
                    self.nodes(self.receives[edge]),
                    workers,
                )
                for name, result in zip(
                    send.operands, self.receives[edge].results, strict=True
                )
            )
        )

    @property
    def next_edge(self) -> int:
        """The number after the graph's last edge."""
        return max(self.sends, default=self.first_edge - 1) + 1

    def of_kind(self, *kinds: str) -> tuple[Op, ...]:
        """Return the ops of these kinds, in program order."""
        return tuple(op for op in self.ops if op.kind in kinds)
