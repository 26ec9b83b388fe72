"""sparse_tables: look up and update the rows of sparse tables by key.

Needs a placed graph, in which an `embedding` has the whole table as its operand, and its
gradient op gives a gradient of the whole table. Afterwards each place collects the distinct
keys of its batch, requests their rows from the nodes of the table, and computes with these
rows. The rows act as a small dense table, and the indices are the positions of the keys:

    %v.keys, %v.position = distinct_keys(%ids)
    %v.keys.ask_rows = ask_rows(%v.keys)
    %v.found = distributed_lookup_table(%v.table, %v.keys.ask_rows)
    %v.rows = give_rows(%v.found)
    %v = embedding(%v.position, %v.rows)

The gradients of the rows go back the same way, and the nodes of the table add them up by
key:

    %v.rows.grad.push_rows = push_rows(%v.rows.grad)
    %v.table.grad.sum = sum_by_key(%v.keys.ask_rows, %v.rows.grad.push_rows)
    %v.table.new = adam(%v.table, %v.table.grad.sum)

With asynchronous updates (`update: async`), the messages have the `group` of the
optimizer, and each push is applied separately.

If a single node both stores a table and looks up all its rows, it sends nothing. Lookups at
one place share their keys if their indices are inputs; lookups with computed indices stay
separate.

Tables over the same keys share the op that collects them, the messages, and the sum:

    %ids.distinct, %ids.position = distinct_keys(%ids)
    %ids.distinct.ask_rows = ask_rows(%ids.distinct)
    %v.table.grad.sum, %w.table.grad.sum = sum_by_key(%ids.distinct.ask_rows, …, …)

`share_keys` in `row_lookups.py` says which tables these are.
"""

from __future__ import annotations

from collections.abc import (
    Container,
    Mapping,
    Set,
)
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from placer.compiler.graph.declared import declared
from placer.compiler.graph.graph import Graph, Op, Value
from placer.compiler.graph.keyed import is_keyed
from placer.compiler.graph.rewriter import Rewriter
from placer.compiler.graph.split_sums import combine_sums
from placer.compiler.graph.structural_ops import (
    CLIP_PART,
    SCALES,
)
from placer.compiler.graph.structural_types import DISTINCT_KEYS, EXACT_SUM
from placer.compiler.passes.exchange.row_lookups import (
    Lookup,
    LookupKeys,
    check_place_of_table,
    find_asynchronous_tables,
    find_lookups,
    gradient_of_rows,
    ids_of,
    share_keys,
)
from placer.errors import GraphError
from placer.place import SERVER, Place
from placer.place.types import TensorType, ValueType

LOOK_UP = "distributed_lookup_table"
"""The op kind that finds the rows of keys in a table."""
PADDED = -1
"""The position that stands for padding."""


def sparse_tables(graph: Graph, *, shares_keys: bool = True) -> Graph:
    """Run the pass. Tests let tables over the same keys not share them (`shares_keys`).

    Raises GraphError if a table is on accelerators, or if an op other than a lookup uses a
    table.
    """
    tables = graph.sparse_tables
    if not tables:
        return graph
    for table in tables:
        check_place_of_table(graph, table)
    lookups = find_lookups(graph)
    asynchronous = find_asynchronous_tables(graph, lookups.values())
    if shares_keys:
        share_keys(graph, lookups.values(), asynchronous)
    exact = _norms_with_tables(graph)
    rewriter = Rewriter(graph)
    updated = _summed_gradients(graph)
    writer = _Writer(graph, rewriter, lookups, asynchronous, exact, updated)
    for op in rewriter:
        writer.rewrite(op)
    return rewriter.graph()


def _summed_gradients(graph: Graph) -> dict[Op, str]:
    """Return the gradient of each trained table that its update sums by key."""
    found = {}
    for op in graph.ops:
        if op.structure.update == "value" and is_keyed(graph, op.operands[0]):
            name = op.operands[1]
            while graph.producers[name].kind == "clip_value":
                (name,) = graph.producers[name].operands
            found[graph.producers[op.operands[0]]] = name
    return found


def _norms_with_tables(graph: Graph) -> set[str]:
    """Return the sums of squares whose norm includes gradients of tables."""
    names: set[str] = set()
    for op in graph.ops:
        sums = [graph.producers[name] for name in op.operands if op.kind in SCALES]
        if any(is_keyed(graph, name) for each in sums for name in each.operands):
            names.update(op.operands)
    return names


@dataclass(slots=True)
class _Writer:
    """Rewrites ops in program order.

    Attributes:
        graph: the graph before the pass.
        rewriter: the rewriter of this graph.
        lookups: the lookup of each op that uses rows.
        asynchronous: the tables with asynchronous updates.
        exact: the names of sums of squares in norms that include gradients of tables.
        updated: by table, the gradient that its update sums by key.
        sums: by gradient of a table, the sum by key that replaces it.
        exact_parts, rounded_parts: by sum of squares, the sums that replace it.
        limits: by clipped gradient, the limit to which the update clips elements.
        read: the input ops inserted so far.
    """

    graph: Graph
    rewriter: Rewriter
    lookups: Mapping[Op, Lookup]
    asynchronous: Container[str]
    exact: Set[str]
    updated: Mapping[Op, str]
    sums: dict[str, str] = field(default_factory=dict)
    exact_parts: dict[str, list[Op]] = field(default_factory=dict)
    rounded_parts: dict[str, list[Op]] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    read: set[Op] = field(default_factory=set)

    def rewrite(self, op: Op) -> None:
        """Rewrite the current op of the rewriter."""
        rewriter = self.rewriter
        if op.structure.anywhere:
            self._read(op)
            rewriter.erase()
        elif op in self.lookups:
            rewriter.replace(self._look_up(op, self.lookups[op]))
        elif op.is_gradient and self._forward(op) in self.lookups:
            rewriter.replace(self._gradient(op))
        elif op.kind == "accumulate" and self._is_table(op.attrs["of"]):
            rewriter.erase()  # `sum_by_key` replaces this sum
        elif op.kind == "sum_of_squares" and op.name in self.exact:
            self._insert_sums_of_squares(op)
            rewriter.erase()
        elif op.kind in SCALES and not self.exact.isdisjoint(op.operands):
            rewriter.replace(self._scale(op))
        elif op.kind == CLIP_PART:
            rewriter.replace(self._clip_part(op))
        elif op.kind == "clip_value" and self._is_of_table(op.name):
            # The update clips the sum of all microbatches.
            self.sums[op.name] = self._sum_by_key(op.operands[0])
            self.limits[op.name] = op.attrs["limit"]
            rewriter.erase()
        elif op.structure.update is not None and self._is_table(op.operands[0]):
            rewriter.replace(self._update(op))

    def _read(self, op: Op) -> None:
        """Insert the read op of an input once, before its first user."""
        if op not in self.read:
            self.read.add(op)
            self.rewriter.insert(op)

    def _read_input(self, name: str, kind: str, lookup: Lookup) -> Op:
        """Return the op that reads an input at the place of a lookup."""
        for op in self.graph.ops:
            is_read = op.structure.anywhere and op.attrs.get("input") == name
            if is_read and op.place == lookup.place:
                return op
        value = self._value(name, TensorType.parse(kind))
        source = lookup.users[0].source
        return Op("read", (), (value,), {"input": name}, lookup.place, source)

    def _look_up(self, op: Op, lookup: Lookup) -> Op:
        """Return a lookup that uses the rows at its place."""
        if not lookup.rows:
            self._begin(lookup)
        _, *others, _ = op.operands
        operands = lookup.keys.positions[ids_of(op)], *others, lookup.rows
        attrs = dict(op.attrs)
        if "padding" in attrs:
            attrs["padding"] = PADDED
        return replace(op, operands=operands, attrs=attrs)

    def _begin(self, lookup: Lookup) -> None:
        """Insert the ops that bring the rows of a lookup's keys to its place."""
        if not lookup.keys.asked:
            self._collect(lookup.keys)
        table, source = lookup.table, lookup.users[0].source
        stem, at = lookup.users[0].name, table.known_place
        rows = self._value(f"{stem}.rows", table.result.type)
        lookup.rows = rows.name
        operands = table.name, lookup.keys.asked
        if self._is_local(lookup):
            self.rewriter.insert(Op(LOOK_UP, operands, (rows,), {}, at, source))
            return
        found = self._value(f"{stem}.found", table.result.type)
        self.rewriter.insert(Op(LOOK_UP, operands, (found,), {}, at, source))
        given, group = (found.name,), self._group(lookup)
        self.rewriter.insert(
            Op("give_rows", given, (rows,), group, lookup.place, source)
        )

    def _collect(self, shared: LookupKeys) -> None:
        """Insert the ops that bring the keys of lookups to the nodes of their tables."""
        graph, first = self.graph, shared.first
        for name, _ in first.ids:
            indices = graph.producers[name]
            if indices.structure.anywhere:
                self._read(indices)
        (stem, _), *_ = first.ids
        is_shared = len(shared.lookups) > 1
        name = f"{stem}.distinct" if is_shared else f"{first.users[0].name}.keys"
        keys = self._value(name, DISTINCT_KEYS)
        results = [keys]
        # Ops with the same indices share the positions.
        for ids, user in first.ids.items():
            kind = TensorType("int32", graph.tensor_type(ids[0]).shape)
            of = ids[0] if is_shared else user.name
            results.append(self._value(f"{of}.position", kind))
            shared.positions[ids] = results[-1].name
        tables = [lookup.table for lookup in shared.lookups]
        attrs: dict[str, Any] = {"tables": tuple(table.name for table in tables)}
        operands = [name for name, _ in first.ids]
        inputs = {}
        for table in tables:
            of_table = table.attrs.get("inputs", {})
            for name, kind_text in of_table.values():
                read = self._read_input(name, kind_text, first)
                self._read(read)
                operands.append(read.name)
            if of_table:
                inputs[table.name] = tuple(of_table)
        if inputs:
            attrs["inputs"] = inputs
        if any(padding is not None for _, padding in first.ids):
            attrs["padding"] = tuple(padding for _, padding in first.ids)
        place, source = first.place, first.users[0].source
        self.rewriter.insert(
            Op("distinct_keys", tuple(operands), tuple(results), attrs, place, source)
        )
        shared.asked = keys.name
        if not self._is_local(first):
            at = first.table.known_place
            shared.asked = self._move("ask_rows", keys, first, at)

    def _gradient(self, op: Op) -> Op:
        """Return a gradient op with the rows in place of the table."""
        forward = self._forward(op)
        lookup = self.lookups[forward]
        declaration, types, attrs = declared(self.graph, forward)
        _, *others, _ = forward.operands
        operands = lookup.keys.positions[ids_of(forward)], *others, lookup.rows
        saved = [operands[i] for i in declaration.saves(types, attrs)]
        residual, *rest = op.operands
        results = list(op.results)
        if (index := gradient_of_rows(op, lookup)) is not None:
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

    def _sum_by_key(self, gradient: str) -> str:
        """Insert the sum by key of a table's gradients, once. Return its name.

        The gradients of tables over the same keys are summed together.
        """
        if gradient in self.sums:
            return self.sums[gradient]
        keys = self._keys_of_gradients(self._table_of(gradient))
        tables = [
            lookup.table
            for lookup in keys[0].lookups
            if lookup.table in self.updated
            and self._keys_of_gradients(lookup.table) == keys
        ]
        terms: list[str] = []
        for each in keys:
            terms.append(each.asked)
            for lookup in each.lookups:
                if lookup.table in tables:
                    terms.append(self._pushed(lookup))
        results = []
        for table in tables:
            name = self.updated[table]
            results.append(self._value(f"{name}.sum", table.result.type))
            self.sums[name] = results[-1].name
        place, source = tables[0].known_place, tables[0].source
        self.rewriter.insert(
            Op("sum_by_key", tuple(terms), tuple(results), {}, place, source)
        )
        return self.sums[gradient]

    def _pushed(self, lookup: Lookup) -> str:
        """Return the name of the row gradient at the nodes of the table."""
        term, table = self._gradient_of(lookup), lookup.table
        if self._is_local(lookup):
            return term
        value = Value(term, table.result.type)
        return self._move("push_rows", value, lookup, table.known_place)

    def _keys_of_gradients(self, table: Op) -> list[LookupKeys]:
        """Return the keys of the lookups of a table that have a gradient."""
        lookups = dict.fromkeys(self.lookups.values())
        return [each.keys for each in lookups if each.table is table and each.gradients]

    def _clip_part(self, op: Op) -> Op:
        """Return a per-worker clip op that clips the sum of each table's gradients."""
        operands = []
        for name, result in zip(op.operands, op.results, strict=True):
            if self._is_of_table(name):
                table = self._table_of(name)
                for lookup in dict.fromkeys(self.lookups.values()):
                    if lookup.table is table:
                        name = self._gradient_of(lookup)
                        lookup.gradients = {result.name: op.known_place}
            operands.append(name)
        return op.with_operands(tuple(operands))

    def _gradient_of(self, lookup: Lookup) -> str:
        """Return the name of the row gradient; insert a sum if it has several users."""
        term, *more = lookup.gradients
        if not more:
            return term
        total = self._value(f"{lookup.rows}.grad", lookup.table.result.type)
        at = lookup.gradients[term]
        attrs, operands = {"of": lookup.rows}, tuple(lookup.gradients)
        source = lookup.users[0].source
        self.rewriter.insert(Op("accumulate", operands, (total,), attrs, at, source))
        return total.name

    def _insert_sums_of_squares(self, op: Op) -> None:
        """Replace a sum of squares in a norm that includes gradients of tables."""
        # Sums of tables and sums at servers are exact, so the bits of the norm do not
        # depend on the number of servers.
        tables = [name for name in op.operands if self._is_of_table(name)]
        rest = tuple(name for name in op.operands if name not in tables)
        exact = []
        if rest and op.known_place.node == SERVER:
            exact.append(self._exact_squares(op, op.name, rest, op.known_place))
        elif rest:
            dense = op.with_operands(rest)
            self.rounded_parts[op.name] = [dense]
            self.rewriter.insert(dense)
        for name in tables:
            total, place = self._sum_by_key(name), self._table_of(name).known_place
            square = f"{name}.square"
            exact.append(self._exact_squares(op, square, (total,), place))
        self.rewriter.insert(*exact)
        self.exact_parts[op.name] = exact

    def _exact_squares(
        self, op: Op, name: str, operands: tuple[str, ...], place: Place
    ) -> Op:
        result = self._value(f"{name}.exact", EXACT_SUM)
        return Op("exact_squares", operands, (result,), {}, place, op.source)

    def _scale(self, op: Op) -> Op:
        """Return the scale computed from a norm that includes gradients of tables."""
        cluster, names = self.graph.cluster, op.operands
        exact = [part for name in names for part in self.exact_parts[name]]
        others = [part for name in names for part in self.rounded_parts.get(name, ())]
        first = self.graph.values[names[0]]
        assert isinstance(first.type, TensorType)
        rounded = Op(
            "rounded_sum",
            (),
            (self._value(f"{names[0]}.rounded", first.type),),
            {"dtype": first.type.dtype},
            source=op.source,
        )
        rounded = combine_sums(cluster, rounded, exact)
        self.rewriter.insert(rounded)
        return combine_sums(cluster, op, [rounded, *others])

    def _update(self, op: Op) -> Op:
        if op.structure.update != "value":
            rule = op.kind.partition(".")[0]
            raise GraphError(
                f"'{rule}' needs norms of whole parameters, which sparse tables such as"
                f" '{op.operands[0]}' do not support",
                span=op.source,
                hint="use adam, or another rule without trust ratios",
            )
        name, gradient, *scales = op.operands
        total = self._sum_by_key(gradient)
        if gradient in self.limits:
            op = op.with_attrs(limit=self.limits[gradient])
        return op.with_operands((name, total, *scales))

    def _move(self, kind: str, value: Value, lookup: Lookup, to: Place) -> str:
        """Insert the op that moves a value to a place; return the result's name."""
        result = self._value(f"{value.name}.{kind}", value.type)
        attrs, source = self._group(lookup), lookup.users[0].source
        self.rewriter.insert(Op(kind, (value.name,), (result,), attrs, to, source))
        return result.name

    def _group(self, lookup: Lookup) -> dict[str, Any]:
        """Return the attributes of ops that move keys or rows of a lookup."""
        table = lookup.keys.first.table
        if table.name not in self.asynchronous:
            return {}
        return {"group": table.attrs["group"]}

    def _value(self, name: str, kind: ValueType) -> Value:
        return Value(self.rewriter.new_name(name), kind)

    def _is_local(self, lookup: Lookup) -> bool:
        """Whether a single node both stores the table and looks up its rows."""
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
        """Return the table of a gradient."""
        op = self.graph.producers[gradient]
        if op.kind == "accumulate":
            return self.graph.producers[op.attrs["of"]]
        if op.kind in ("clip_value", CLIP_PART):
            index = self.graph.result_indices[gradient]
            return self._table_of(op.operands[index])
        return self.lookups[self._forward(op)].table
