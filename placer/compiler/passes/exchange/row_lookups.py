"""The lookups of sparse tables: which ops use rows, at which place, and for which tables
workers do not wait for one another. The pass `sparse_tables` rewrites them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_ops import is_optimizer_part, is_update
from placer.errors import GraphError
from placer.place import Place
from placer.place.node_kinds import CPU, SERVER
from placer.plan.settings.training.update_modes import Geo

_LOOKUP = "embedding"
"""The kind of op that looks up rows; its last operand is the table."""


def check_place_of_table(graph: Graph, table: Op) -> None:
    """Raise GraphError if a table is not in host memory."""
    place = table.known_place
    memory = graph.cluster.host_memory(place)
    if memory == place:
        return
    why = "its rows are found by a hash of their keys, and grow in host memory"
    if place.device == CPU:
        why = "of several CPU devices of a node, the first has its tables"
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


def find_lookups(graph: Graph) -> dict[Op, Lookup]:
    """Return the lookup of each op that uses rows of a table."""
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
    """Return which result of the gradient of a lookup is that of the rows, if one is."""
    of_rows = (
        i for i, v in enumerate(op.results) if v.type == lookup.table.result.type
    )
    return next(of_rows, None)


def find_free_tables(graph: Graph, lookups: Iterable[Lookup]) -> set[str]:
    """Return the tables that are updated without lockstep.

    Raises GraphError for a mode that sparse tables do not have, and for a table whose rows
    several places use without lockstep.
    """
    free: dict[str, Lookup] = {}
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
                f"the sparse table '{name}' cannot have 'update: geo'",
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


def _refuse_backup(graph: Graph, table: str) -> None:
    """Raise GraphError if an optimizer has backup workers, in a model that trains a sparse
    table."""
    for group, optimizer in graph.optimizers.items():
        if graph.backups[group]:
            raise GraphError(
                f"a model with the sparse table '{table}' cannot have backup workers: the"
                " update of a table needs the keys of all workers",
                span=optimizer.source,
                hint="leave 'backup' out for all optimizers, or use 'update: async'",
            )


def _not_a_lookup(table: Op, op: Op) -> GraphError:
    return GraphError(
        f"the sparse table '{table.name}' is used by {op.kind}: only lookups by key can"
        " use it",
        span=op.source or table.source,
    )
