"""sparse_tables: look up the rows of sparse tables by key, and update them by key.

Needs a placed graph. In it, an `embedding` has a whole sparse table as its operand, and
gives a gradient of the whole. Afterwards each place that uses a table has the distinct
keys of its batch, asks the nodes that hold the table for their rows, and computes with
these rows as with a small dense table, whose indices are the positions of the keys:

    %v.keys, %v.position = distinct_keys(%ids)
    %v.keys.ask_rows = ask_rows(%v.keys)
    %v.found = distributed_lookup_table(%v.table, %v.keys.ask_rows)
    %v.rows = give_rows(%v.found)
    %v = embedding(%v.position, %v.rows)

The gradients of these rows go back the same way, and the nodes of the table add them up
by key:

    %v.rows.grad.push_rows = push_rows(%v.rows.grad)
    %v.table.grad.sum = sum_by_key(%v.keys.ask_rows, %v.rows.grad.push_rows)
    %v.table.new = adam(%v.table, %v.table.grad.sum)

Without lockstep (`update: async`), what moves has the `group` of the optimizer: each push is
applied by itself.

A node that alone holds a table and alone looks up its rows sends nothing. Lookups at one
place whose indices are inputs are one; those with computed indices are apart.
"""

from __future__ import annotations

from collections.abc import (
    Container,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from placer.analysis.declared import declared
from placer.config.sparse import PARTITIONS
from placer.config.update_modes import Geo, read_backup, read_mode
from placer.errors import GraphError
from placer.graph.fresh_names import unique_name
from placer.graph.graph import Graph, Op, Value
from placer.graph.kinds import (
    CLIP_PART,
    DISTINCT_KEYS,
    SCALES,
    is_optimizer_part,
    is_update,
)
from placer.node_kinds import SERVER
from placer.passes.place import scale_of_sums
from placer.place import Place
from placer.types import TensorType, ValueType

LOOKUP = "embedding"
"""The kind of op that looks up rows; its last operand is the table."""


def sparse_tables(graph: Graph) -> Graph:
    """Run the pass.

    Raises GraphError for a table on accelerators, and for a use of a table that is not a
    lookup.
    """
    tables = graph.sparse_tables
    if not tables:
        return graph
    for table in tables:
        _check_place(graph, table)
    lookups = _find_lookups(graph)
    free = _find_free(graph, lookups.values())
    writer = _Writer(graph, lookups, free, set(graph.values))
    return graph.with_ops(new for op in graph.ops for new in writer.rewrite(op))


def _check_place(graph: Graph, table: Op) -> None:
    place = table.known_place
    if graph.cluster.host_memory(place) != place:
        raise GraphError(
            f"the sparse table '{table.name}' cannot be at {place}: its rows are found by"
            " a hash of their keys, and grow in host memory",
            span=table.source,
            hint=f"place its optimizer at {graph.cluster.host_memory(place)}",
        )


@dataclass(slots=True, eq=False)
class _Lookup:
    """The lookups of one table at one place.

    Attributes:
        table: the table.
        place: the host memory of the nodes that look up.
        users: the ops that use rows.
        asked: the keys as the nodes of the table have them.
        rows: the rows as the users have them.
        positions: what replaces the indices of each user.
        trained: how many users have a gradient of their rows.
        gradients: these gradients, so far, each with its place.
    """

    table: Op
    place: Place
    users: list[Op] = field(default_factory=list)
    asked: str = ""
    rows: str = ""
    positions: dict[Op, str] = field(default_factory=dict)
    trained: int = 0
    gradients: dict[str, Place] = field(default_factory=dict)


def _find_lookups(graph: Graph) -> dict[Op, _Lookup]:
    """Return the lookup of each op that uses rows of a table."""
    tables = {op.name: op for op in graph.sparse_tables}
    found: dict[tuple[str, Place, str], _Lookup] = {}
    of_user: dict[Op, _Lookup] = {}
    for op in graph.ops:
        for name in tables.keys() & set(op.operands):
            if op.kind != LOOKUP:
                if is_optimizer_part(op.kind) or op.kind == "store":
                    continue
                raise _not_a_lookup(tables[name], op)
            place = graph.cluster.host_memory(op.known_place)
            is_input = graph.producers[op.operands[0]].structure.anywhere
            key = name, place, "" if is_input else op.name
            lookup = found.setdefault(key, _Lookup(tables[name], place))
            lookup.users.append(op)
            of_user[op] = lookup
        if op.is_gradient:
            used = of_user.get(graph.producers[op.operands[0]])
            if used is not None and _gradient_of_rows(op, used) is not None:
                used.trained += 1
    return of_user


def _gradient_of_rows(op: Op, lookup: _Lookup) -> int | None:
    """Return which result of the gradient of a lookup is that of the rows, if one is."""
    of_rows = (
        i for i, v in enumerate(op.results) if v.type == lookup.table.result.type
    )
    return next(of_rows, None)


def _find_free(graph: Graph, lookups: Iterable[_Lookup]) -> set[str]:
    """Return the tables that are updated without lockstep.

    Raises GraphError for a mode that sparse tables do not have, and for a table whose rows
    several places use without lockstep.
    """
    free: dict[str, _Lookup] = {}
    updated = {op.operands[0]: op for op in graph.ops if is_update(op.kind)}
    for lookup in dict.fromkeys(lookups):
        name = lookup.table.name
        if name not in updated:
            continue
        optimizer = graph.optimizers[updated[name].attrs["group"]]
        setting = optimizer.attrs.get("update")
        mode = read_mode(setting)
        if read_backup(setting) or isinstance(mode, Geo):
            chosen = next(iter(setting or ()))
            raise GraphError(
                f"the sparse table '{name}' cannot have 'update: {chosen}'",
                span=optimizer.source,
                hint="match it by an optimizer of its own, with 'update: sync' or async",
            )
        if mode is None:
            continue
        if mode.compensate is not None:
            raise GraphError(
                f"the sparse table '{name}' cannot have 'compensate'",
                span=optimizer.source,
                hint="match it by an optimizer of its own",
            )
        if graph.microbatches > 1:
            raise GraphError(
                f"the sparse table '{name}' cannot have microbatches without lockstep:"
                " each push would be of one of them",
                span=optimizer.source,
                hint="leave out 'microbatches', or use 'update: sync' for the table",
            )
        place = lookup.table.known_place
        if place.node != SERVER:
            raise GraphError(
                f"the sparse table '{name}' is at {place}: without lockstep tables are on"
                " servers",
                span=optimizer.source,
                hint="place: /node:ps/cpu, or use 'update: sync'",
            )
        if (other := free.setdefault(name, lookup)) is not lookup:
            raise GraphError(
                f"rows of '{name}' are used at {other.place} and at {lookup.place}, or by"
                " computed indices: without lockstep one lookup gets them, and sends"
                " their gradients",
                span=lookup.users[0].source,
                hint="place the ops together, or use 'update: sync'",
            )
    return {*free}


def _not_a_lookup(table: Op, op: Op) -> GraphError:
    return GraphError(
        f"the sparse table '{table.name}' is used by {op.kind}: only lookups by key can"
        " use it",
        span=op.source or table.source,
    )


@dataclass(slots=True)
class _Writer:
    """Rewrites ops in program order.

    Attributes:
        graph: the graph before the pass.
        lookups: the lookup of each op that uses rows.
        free: the tables that are updated without lockstep.
        used_names: the names of all values.
        sums: the sum by key that replaces each gradient of a table.
        norms: the sums of squares that replace one of gradients of tables, by its name.
        limits: what the update clips elements of the sum to, by the clipped gradient.
        read: the ops that read inputs, so far.
    """

    graph: Graph
    lookups: Mapping[Op, _Lookup]
    free: Container[str]
    used_names: set[str]
    sums: dict[str, str] = field(default_factory=dict)
    norms: dict[str, list[Op]] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    read: set[Op] = field(default_factory=set)

    def rewrite(self, op: Op) -> Iterator[Op]:
        """Yield what replaces an op."""
        if op.structure.anywhere:
            yield from self._read(op)
        elif op in self.lookups:
            yield from self._look_up(op, self.lookups[op])
        elif op.is_gradient and self._forward(op) in self.lookups:
            yield self._gradient(op)
        elif op.kind == "accumulate" and self._is_table(op.attrs["of"]):
            pass  # the gradients are summed by key
        elif op.kind == "sum_of_squares":
            yield from self._norm(op)
        elif op.kind in SCALES and not self.norms.keys().isdisjoint(op.operands):
            sums = [each for name in op.operands for each in self._sums_of(name)]
            yield scale_of_sums(self.graph.cluster, op, sums)
        elif op.kind == CLIP_PART:
            yield from self._clip_part(op)
        elif op.kind == "clip_value" and self._is_of_table(op.name):
            # The sum of all microbatches is clipped, by the update.
            yield from self._sum_by_key(op.operands[0])
            self.sums[op.name] = self.sums[op.operands[0]]
            self.limits[op.name] = op.attrs["limit"]
        elif op.structure.update is not None and self._is_table(op.operands[0]):
            yield from self._update(op)
        else:
            yield op

    def _read(self, op: Op) -> Iterator[Op]:
        """Yield an op that reads an input, unless it is there: it comes before the first
        op that has need of it."""
        if op not in self.read:
            self.read.add(op)
            yield op

    def _read_input(self, name: str, kind: str, lookup: _Lookup) -> Op:
        """Return the op that reads an input where keys are looked up."""
        for op in self.graph.ops:
            is_read = op.structure.anywhere and op.attrs.get("input") == name
            if is_read and op.place == lookup.place:
                return op
        value = self._value(name, TensorType.parse(kind))
        source = lookup.users[0].source
        return Op("read", (), (value,), {"input": name}, lookup.place, source)

    def _look_up(self, op: Op, lookup: _Lookup) -> Iterator[Op]:
        if not lookup.rows:
            yield from self._begin(lookup)
        _, *others, _ = op.operands
        operands = lookup.positions[op], *others, lookup.rows
        attrs = dict(op.attrs)
        if "padding" in attrs:
            attrs["padding"] = PADDED
        yield replace(op, operands=operands, attrs=attrs)

    def _begin(self, lookup: _Lookup) -> Iterator[Op]:
        """Yield the ops that give a place the rows of its keys."""
        graph, table = self.graph, lookup.table
        stem, source = lookup.users[0].name, lookup.users[0].source
        for user in lookup.users:
            indices = graph.producers[user.operands[0]]
            if indices.structure.anywhere:
                yield from self._read(indices)
        # Ops that look up the same indices share their positions.
        ids = {(op.operands[0], op.attrs.get("padding")): op for op in lookup.users}
        keys = self._value(f"{stem}.keys", DISTINCT_KEYS)
        positions = {}
        for (name, padding), user in ids.items():
            kind = TensorType("int32", graph.tensor_type(name).shape)
            positions[name, padding] = self._value(f"{user.name}.position", kind)
        attrs: dict[str, Any] = {"table": table.name}
        inputs = {}
        for key, (name, kind_text) in table.attrs.get("inputs", {}).items():
            read = self._read_input(name, kind_text, lookup)
            yield from self._read(read)
            inputs[key] = read.name
        if inputs:
            attrs["inputs"] = tuple(inputs)
        if any(padding is not None for _, padding in ids):
            attrs["padding"] = tuple(padding for _, padding in ids)
        yield Op(
            "distinct_keys",
            (*(name for name, _ in ids), *inputs.values()),
            (keys, *positions.values()),
            attrs,
            lookup.place,
            source,
        )
        for user in lookup.users:
            key = user.operands[0], user.attrs.get("padding")
            lookup.positions[user] = positions[key].name
        lookup.asked = keys.name
        if not self._is_local(lookup):
            ask = self._move("ask_rows", keys, lookup, table.known_place)
            lookup.asked = ask.name
            yield ask
        group = self._group(table)
        rows = self._value(f"{stem}.rows", table.result.type)
        lookup.rows = rows.name
        operands = table.name, lookup.asked
        at = table.known_place
        if self._is_local(lookup):
            yield Op(LOOK_UP, operands, (rows,), {}, at, source)
            return
        found = self._value(f"{stem}.found", table.result.type)
        yield Op(LOOK_UP, operands, (found,), {}, at, source)
        yield Op("give_rows", (found.name,), (rows,), group, lookup.place, source)

    def _gradient(self, op: Op) -> Op:
        """Return the op that computes a gradient of the rows."""
        forward = self._forward(op)
        lookup = self.lookups[forward]
        declaration, types, attrs = declared(self.graph, forward)
        _, *others, _ = forward.operands
        operands = lookup.positions[forward], *others, lookup.rows
        saved = [operands[i] for i in declaration.saves(types, attrs)]
        residual, *rest = op.operands
        results = list(op.results)
        if (index := _gradient_of_rows(op, lookup)) is not None:
            name = f"{lookup.rows}.grad"
            if lookup.trained > 1:
                name += f".{lookup.users.index(forward)}"
            results[index] = self._value(name, lookup.table.result.type)
            lookup.gradients[results[index].name] = op.known_place
        changed = (residual, *saved, *rest[len(saved) :])
        new_attrs = dict(op.attrs)
        if "padding" in new_attrs:
            new_attrs["padding"] = PADDED
        return replace(op, operands=changed, results=tuple(results), attrs=new_attrs)

    def _sum_by_key(self, gradient: str) -> Iterator[Op]:
        """Yield the ops that add up the gradients of a table by key, unless they are
        there."""
        if gradient in self.sums:
            return
        table = self._table_of(gradient)
        place, kind = table.known_place, table.result.type
        terms: list[str] = []
        for lookup in dict.fromkeys(self.lookups.values()):
            if lookup.table is not table or not lookup.gradients:
                continue
            term = yield from self._gradient_of(lookup)
            if not self._is_local(lookup):
                push = self._move("push_rows", Value(term, kind), lookup, place)
                yield push
                term = push.name
            terms += [lookup.asked, term]
        result = self._value(f"{gradient}.sum", kind)
        yield Op("sum_by_key", tuple(terms), (result,), {}, place, table.source)
        self.sums[gradient] = result.name

    def _clip_part(self, op: Op) -> Iterator[Op]:
        """Yield the op that clips what one worker has computed, on the sum of the
        gradients of each table."""
        operands = []
        for name, result in zip(op.operands, op.results, strict=True):
            if self._is_of_table(name):
                table = self._table_of(name)
                for lookup in dict.fromkeys(self.lookups.values()):
                    if lookup.table is table:
                        name = yield from self._gradient_of(lookup)
                        lookup.gradients = {result.name: op.known_place}
            operands.append(name)
        yield op.with_operands(tuple(operands))

    def _gradient_of(self, lookup: _Lookup) -> Generator[Op, None, str]:
        """Yield the sum of the gradients of rows over their users, if it is one; return
        the name of the gradient."""
        term, *more = lookup.gradients
        if not more:
            return term
        total = self._value(f"{lookup.rows}.grad", lookup.table.result.type)
        at = lookup.gradients[term]
        attrs, operands = {"of": lookup.rows}, tuple(lookup.gradients)
        source = lookup.users[0].source
        yield Op("accumulate", operands, (total,), attrs, at, source)
        return total.name

    def _norm(self, op: Op) -> Iterator[Op]:
        """Yield the sums of squares that replace one with gradients of tables."""
        of_tables = [name for name in op.operands if self._is_of_table(name)]
        if not of_tables:
            yield op
            return
        sums = []
        rest = tuple(name for name in op.operands if name not in of_tables)
        if rest:
            sums.append(op.with_operands(rest))
        for name in of_tables:
            yield from self._sum_by_key(name)
            table = self._table_of(name)
            partitions = table.attrs["sparse"].get("partitions", PARTITIONS)
            attrs = {"partitions": partitions}
            kind = table.result.type
            assert isinstance(kind, TensorType)
            norms = self._value(f"{name}.norms", TensorType(kind.dtype, (partitions,)))
            at = table.known_place
            yield Op(
                "partition_norms", (self.sums[name],), (norms,), attrs, at, op.source
            )
            square = self._value(f"{name}.square", op.result.type)
            sums.append(
                replace(op, operands=(norms.name,), results=(square,), place=at)
            )
        yield from sums
        self.norms[op.name] = sums

    def _sums_of(self, name: str) -> Sequence[Op]:
        return self.norms.get(name) or [self.graph.producers[name]]

    def _update(self, op: Op) -> Iterator[Op]:
        if op.structure.update != "value":
            rule = op.kind.partition(".")[0]
            raise GraphError(
                f"'{rule}' needs norms of a whole parameter, which the sparse table"
                f" '{op.operands[0]}' does not have",
                span=op.source,
                hint="use adam, or another rule without trust ratios",
            )
        name, gradient, *scales = op.operands
        yield from self._sum_by_key(gradient)
        if gradient in self.limits:
            op = op.with_attrs(limit=self.limits[gradient])
        yield op.with_operands((name, self.sums[gradient], *scales))

    def _move(self, kind: str, value: Value, lookup: _Lookup, to: Place) -> Op:
        result = self._value(f"{value.name}.{kind}", value.type)
        attrs, source = self._group(lookup.table), lookup.users[0].source
        return Op(kind, (value.name,), (result,), attrs, to, source)

    def _group(self, table: Op) -> dict[str, Any]:
        """Return the attributes of what moves rows of a table."""
        return {"group": table.attrs["group"]} if table.name in self.free else {}

    def _value(self, name: str, kind: ValueType) -> Value:
        return Value(unique_name(name, self.used_names), kind)

    def _is_local(self, lookup: _Lookup) -> bool:
        """Whether the one node that holds a table is the one that looks up."""
        nodes = self.graph.cluster.nodes(lookup.place)
        return len(nodes) == 1 and nodes == self.graph.nodes(lookup.table)

    def _forward(self, op: Op) -> Op:
        return self.graph.producers[op.operands[0]]

    def _is_table(self, name: str) -> bool:
        producer = self.graph.producers.get(name)
        return producer is not None and producer.kind == "sparse_table"

    def _is_of_table(self, gradient: str) -> bool:
        """Whether a value is the gradient of a table."""
        kind = self.graph.values[gradient].type
        return isinstance(kind, TensorType) and kind.is_keyed

    def _table_of(self, gradient: str) -> Op:
        """Return the table that a value is the gradient of."""
        op = self.graph.producers[gradient]
        if op.kind == "accumulate":
            return self.graph.producers[op.attrs["of"]]
        if op.kind in ("clip_value", CLIP_PART):
            index = self.graph.result_indices[gradient]
            return self._table_of(op.operands[index])
        return self.lookups[self._forward(op)].table


LOOK_UP = "distributed_lookup_table"
PADDED = -1
"""The position of a key that stands for none."""
