"""Sparse table lookups of an exported model, done before the model runs.

Keys never enter the model. It takes their rows, and a mask of padding.
"""

from __future__ import annotations

from dataclasses import dataclass

from placer.compiler.emit.names import Names
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.serving.errors import OpNotExportableError
from placer.place.types import TensorType


@dataclass(frozen=True)
class Lookup:
    """A lookup of rows of a sparse table by the keys of an input.

    Attributes:
        table: the name of the table.
        input: the name of the input with the keys.
        ids: the value with the keys.
        padding: the key that means no row, if any.
        rows: the model's argument with the rows.
        kind: its type: a row for each key.
        present: the model's argument that masks keys other than padding; None without
            padding.
    """

    table: str
    input: str
    ids: str
    padding: int | None
    rows: str
    kind: TensorType
    present: str | None

    @property
    def arguments(self) -> dict[str, TensorType]:
        """The types of the model's arguments, by name."""
        types = {self.rows: self.kind}
        if self.present is not None:
            types[self.present] = TensorType("bool", self.kind.shape[:-1])
        return types


def find_lookups(graph: Graph, names: Names) -> dict[str, Lookup]:
    """Return the lookup of each op that reads a sparse table, by op name.

    Ops with the same keys and table share a lookup. Raises PlacerError if keys are
    computed, because they are unknown before the model runs.
    """
    tables = {op.name: op for op in graph.sparse_tables}
    made: dict[tuple[str, str, int | None], Lookup] = {}
    found: dict[str, Lookup] = {}
    for op in graph.ops:
        if not tables.keys() & {*op.operands}:
            continue
        ids, table = op.operands[0], op.operands[-1]
        padding = op.attrs.get("padding")
        key = ids, table, padding
        if key not in made:
            made[key] = _lookup(graph, names, op, padding)
        found[op.name] = made[key]
    return found


def _lookup(graph: Graph, names: Names, op: Op, padding: int | None) -> Lookup:
    ids, table = op.operands[0], op.operands[-1]
    read = graph.producers[ids]
    if read.kind != "read":
        raise OpNotExportableError(
            op.name,
            f"'{op.name}' looks up keys that are computed ({ids}); an exported"
            " model can look up only keys that are inputs",
            hint="leave out the outputs that depend on it, or compute the keys in the"
            " data",
        )
    kind, keys = graph.tensor_type(table), graph.tensor_type(ids)
    own = names.name_of(op.name)
    return Lookup(
        table,
        read.attrs["input"],
        ids,
        padding,
        names.new_name(f"{own}_rows"),
        TensorType(kind.dtype, (*keys.shape, kind.shape[1])),
        None if padding is None else names.new_name(f"{own}_present"),
    )


def keys_only(graph: Graph) -> set[str]:
    """Return the values that only lookups use: keys that the model does not take."""
    tables = {op.name for op in graph.sparse_tables}
    return {
        op.name
        for op in graph.of_kind("read")
        if all(
            tables & {*use.operands} and op.name not in use.operands[1:]
            for use in graph.uses[op.name]
        )
    }
