"""Finds the lookups of sparse tables, for the pass `sparse_tables`: their ops, places, whether
updates are asynchronous, and which tables have the same keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Iterable
from dataclasses import dataclass, field

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_ops import is_optimizer_part, is_update
from placer.errors import GraphError
from placer.place import Place
from placer.place.node_kinds import CPU, SERVER
from placer.plan.settings.sparse.table import PARTITIONS
from placer.plan.settings.training.update_modes import Geo

_LOOKUP = "embedding"
"""The op kind that looks up rows; its last operand is the table."""


def check_place_of_table(graph: Graph, table: Op) -> None:
    """Raise GraphError if a table is not in host memory."""
    place = table.known_place
    memory = graph.cluster.host_memory(place)
    if memory == place:
        return
    why = "it finds rows by hashing keys, and grows, which needs host memory"
    if place.device == CPU:
        why = "a node stores its sparse tables on its first CPU device"
    raise GraphError(
        f"the sparse table '{table.name}' cannot be at {place}: {why}",
        span=table.source,
        hint=f"place its optimizer at {memory}",
    )


@dataclass(slots=True, eq=False)
class Lookup:
    """The lookups of one table at one place.

    Attributes:
        table: the table.
        place: the host memory of the nodes that look up.
        users: the ops that use rows.
        keys: the keys of the lookup.
        rows: the name of the rows at the users.
        trained: the number of users with a gradient of their rows.
        gradients: the gradients found so far, each with its place.
    """

    table: Op
    place: Place
    users: list[Op] = field(default_factory=list)
    keys: LookupKeys = field(init=False)
    rows: str = ""
    trained: int = 0
    gradients: dict[str, Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.keys = LookupKeys([self])

    @property
    def ids(self) -> dict[Ids, Op]:
        """The indices of the users, in the order of their first use, each with its last user."""
        return {ids_of(op): op for op in self.users}


Ids = tuple[str, int | None]
"""The indices of an op that looks up rows, and the number among them that stands for no key."""


def ids_of(op: Op) -> Ids:
    """Return the indices of an op that looks up rows, and its padding."""
    return op.operands[0], op.attrs.get("padding")


@dataclass(slots=True, eq=False)
class LookupKeys:
    """The keys of lookups at one place, which several tables may share.

    Attributes:
        lookups: the lookups: one of each table.
        asked: the name of the keys at the nodes of the tables.
        positions: the positions that replace indices.
    """

    lookups: list[Lookup]
    asked: str = ""
    positions: dict[Ids, str] = field(default_factory=dict)

    @property
    def first(self) -> Lookup:
        """The first lookup: in all that concerns keys, the others are equal to it."""
        return self.lookups[0]


def find_lookups(graph: Graph) -> dict[Op, Lookup]:
    """Return the lookup of each op that uses a table's rows."""
    tables = {op.name: op for op in graph.sparse_tables}
    found: dict[tuple[str, Place, str], Lookup] = {}
    of_user: dict[Op, Lookup] = {}
    for op in graph.ops:
        for name in tables.keys() & set(op.operands):
            if op.kind != _LOOKUP:
                if is_optimizer_part(op.kind) or op.kind == "store":
                    continue
                raise _not_a_lookup(tables[name], op)
            place = graph.cluster.host_memory(op.known_place)
            is_input = graph.producers[op.operands[0]].structure.anywhere
            key = name, place, "" if is_input else op.name
            lookup = found.setdefault(key, Lookup(tables[name], place))
            lookup.users.append(op)
            of_user[op] = lookup
        if op.is_gradient:
            used = of_user.get(graph.producers[op.operands[0]])
            if used is not None and gradient_of_rows(op, used) is not None:
                used.trained += 1
    return of_user


def gradient_of_rows(op: Op, lookup: Lookup) -> int | None:
    """Return the index of the row gradient among the results of a gradient op, if any."""
    of_rows = (
        i for i, v in enumerate(op.results) if v.type == lookup.table.result.type
    )
    return next(of_rows, None)


def find_asynchronous_tables(graph: Graph, lookups: Iterable[Lookup]) -> set[str]:
    """Return the tables with asynchronous updates.

    Raises GraphError for a mode that sparse tables do not support, and if several places
    use rows of an asynchronous table.
    """
    asynchronous: dict[str, Lookup] = {}
    updated = {op.operands[0]: op for op in graph.ops if is_update(op.kind)}
    for lookup in dict.fromkeys(lookups):
        name = lookup.table.name
        if name not in updated:
            continue
        group = updated[name].attrs["group"]
        optimizer, mode = graph.optimizers[group], graph.modes[group]
        _refuse_backup(graph, name)
        if isinstance(mode, Geo):
            raise GraphError(
                f"the sparse table '{name}' does not support 'update: geo'",
                span=optimizer.source,
                hint="give the table a separate optimizer with 'update: sync' or async",
            )
        if mode is None:
            continue
        if mode.compensate is not None:
            raise GraphError(
                f"the sparse table '{name}' does not support 'compensate'",
                span=optimizer.source,
                hint="give the table a separate optimizer without compensate",
            )
        if graph.microbatches > 1:
            raise GraphError(
                f"the sparse table '{name}' cannot combine microbatches with asynchronous"
                " updates",
                span=optimizer.source,
                hint="leave out 'microbatches', or use 'update: sync' for the table",
            )
        place = lookup.table.known_place
        if place.node != SERVER:
            raise GraphError(
                f"the asynchronous sparse table '{name}' must be on servers, not at"
                f" {place}",
                span=optimizer.source,
                hint="place: /node:ps/cpu, or use 'update: sync'",
            )
        if (other := asynchronous.setdefault(name, lookup)) is not lookup:
            raise GraphError(
                f"the asynchronous table '{name}' is looked up at {other.place} and at"
                f" {lookup.place}, or by computed indices, but only one lookup can train"
                " it",
                span=lookup.users[0].source,
                hint="place the lookups together, or use 'update: sync'",
            )
    return {*asynchronous}


def share_keys(
    graph: Graph, lookups: Iterable[Lookup], asynchronous: Container[str]
) -> None:
    """Give lookups of tables over the same keys the same `keys`.

    These tables have one place, equal partitions and one update mode, and the same indices and
    padding in all their lookups. Anything else may differ.
    """
    of_table: dict[Op, list[Lookup]] = {}
    for lookup in dict.fromkeys(lookups):
        of_table.setdefault(lookup.table, []).append(lookup)
    shared: dict[Hashable, LookupKeys] = {}
    for table, own in of_table.items():
        is_free = table.name in asynchronous
        mode = graph.modes[table.attrs["group"]] if is_free else None
        partitions = table.attrs["sparse"].get("partitions", PARTITIONS)
        indices = [(lookup.place, frozenset(lookup.ids)) for lookup in own]
        same = table.known_place, partitions, mode, frozenset(Counter(indices).items())
        numbers: Counter[Hashable] = Counter()
        for lookup, each in zip(own, indices, strict=True):
            # Lookups of a table by the same computed indices stay separate.
            key = same, each, numbers[each]
            numbers[each] += 1
            if (keys := shared.setdefault(key, lookup.keys)) is not lookup.keys:
                keys.lookups.append(lookup)
                lookup.keys = keys


def _refuse_backup(graph: Graph, table: str) -> None:
    """Raise GraphError if a model that trains a sparse table has backup workers."""
    for group, optimizer in graph.optimizers.items():
        if graph.backups[group]:
            raise GraphError(
                f"backup workers do not work with the sparse table '{table}', whose update"
                " needs the keys of all workers",
                span=optimizer.source,
                hint="leave 'backup' out for all optimizers, or use 'update: async'",
            )


def _not_a_lookup(table: Op, op: Op) -> GraphError:
    return GraphError(
        f"{op.kind} uses the sparse table '{table.name}', but only lookups by key may use"
        " it",
        span=op.source or table.source,
    )
