"""Words for the content of a box: its title, first lines and reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.optax_groups import rule_text
from placer.place.ids import format_nodes
from placer.place.types import TensorType
from placer.plan.settings.data.sources import POSITION
from placer.report.numbers import plural
from placer.report.page.boxes import Box
from placer.report.page.facts import Line
from placer.report.page.layers import Layers

MAX_LINES: Final = 6
_MAX_LAYERS: Final = 60
"""Above this number, lines show ranges of layers."""
_MAX_REASONS: Final = 3
_TITLES: Final = {
    "store": "stores parameters",
    "read": "reads rows",
    "lookup": "looks up rows",
    "combine": "combines parts",
    "forward": "forward",
    "backward": "backward",
    "forward and backward": "forward and backward",
    "update": "updates parameters",
    "other": "other work",
}
_PARTS_OF_UPDATES: Final = {
    "trust_ratio": "computes trust ratios",
    "clip_scale": "clips gradients",
    "clip_value": "clips gradients",
    "sum_of_squares": "computes norms",
    "exact_squares": "computes norms",
    "rounded_sum": "computes norms",
}
"""The title of a box that prepares updates, by the kind of its ops; the first one counts."""
_COMBINED: Final = frozenset({"store", "read", "lookup", "update"})


def title_of(graph: Graph, box: Box) -> str:
    """Return the work of a box in words."""
    kinds = {op.kind for op in box.ops}
    if box.purpose == "lookup" and kinds.isdisjoint({"distributed_lookup_table"}):
        return "collects keys"
    if box.purpose == "store" and "local_parameter" in kinds:
        return "stores parameter copies"
    if box.purpose == "combine" and any(op.structure.receives for op in box.ops):
        sums = any(_sums_parts(graph, op) for op in box.ops)
        return "sums over nodes" if sums else "passes values on"
    if box.purpose == "update":
        if any(op.structure.update == "value" or op.kind == "store" for op in box.ops):
            return _TITLES["update"]
        if any(op.structure.update == "direction" for op in box.ops):
            return "computes updates"
        for kind, title in _PARTS_OF_UPDATES.items():
            if kind in kinds:
                return title
    return _TITLES[box.purpose]


def lines_of(graph: Graph, box: Box, layers: Layers) -> tuple[tuple[Line, ...], int]:
    """Return the first lines of a box, and the number of lines left out."""
    if box.purpose in _COMBINED:
        names, notes = _own_lines(box)
    else:
        counts: dict[str, int] = {}
        for op in box.ops:
            if op.is_computed and op.kind != "constant":
                layer = layers.of(op)
                counts[layer] = counts.get(layer, 0) + 1
        names = list(counts)
        notes = [layers.kinds.get(name, "") for name in names]
        if len(names) > _MAX_LAYERS:
            return tuple(_ranges(names, lambda name: counts[name], "op")), 0
        if not names:
            names, notes = _sums(graph, box)
    if len(names) > _MAX_LAYERS:
        return tuple(
            _ranges(names, lambda _: 1, _NOUNS.get(box.purpose, "parameter"))
        ), 0
    if not names:  # for example, a box that reads only the positions of rows
        names = [op.name for op in box.ops]
        notes = [op.kind for op in box.ops]
    lines = [Line(name, note) for name, note in zip(names, notes, strict=True)]
    return tuple(lines[:MAX_LINES]), max(0, len(lines) - MAX_LINES)


_NOUNS: Final = {"read": "input", "lookup": "table"}


def _own_lines(box: Box) -> tuple[list[str], list[str]]:
    """Return the names and notes of inputs, parameters, tables or updates in a box."""
    lines: dict[str, str] = {}
    for op in box.ops:
        structure = op.structure
        if op.kind == "read" and op.attrs["input"] != POSITION:
            lines[op.attrs["input"]] = str(op.result.type)
        elif op.kind in ("parameter", "sparse_table", "local_parameter"):
            lines[op.name] = str(op.result.type)
        elif op.kind == "distinct_keys":
            for table in op.attrs["tables"]:
                lines.setdefault(table, "keys")
        elif op.kind == "distributed_lookup_table":
            lines[op.operands[0]] = str(op.result.type)
        elif structure.update is not None:
            lines[op.operands[0]] = op.kind.partition(".")[0]
        elif op.kind == "store":
            lines.setdefault(op.operands[0], "store")
    if not lines:
        lines = {
            op.name: op.kind
            for op in box.ops
            if op.is_computed or op.structure.in_table
        }
    return list(lines), list(lines.values())


def _sums_parts(graph: Graph, op: Op) -> bool:
    """Return True if an op adds up the partial values that it receives."""
    edge = op.received_edge
    return edge is not None and any(
        graph.values[name].layout == "P" for name in graph.sends[edge].operands
    )


def _sums(graph: Graph, box: Box) -> tuple[list[str], list[str]]:
    """Return the names and notes of the values that a box receives and passes on."""
    lines = {op.name: op.kind for op in box.ops if op.results}
    for op in box.ops:
        edge = op.received_edge
        if edge is not None and not op.structure.sends:
            del lines[op.name]
            send = graph.sends[edge]
            nodes = graph.nodes(send)
            note = f"from {format_nodes(nodes)}"
            if _sums_parts(graph, op):
                note = f"sum of {plural(len(nodes), 'node')}"
            lines.update(dict.fromkeys(send.operands, note))
    return list(lines), list(lines.values())


def _ranges(
    names: Sequence[str], size: Callable[[str], int], noun: str
) -> Iterator[Line]:
    """Yield a line for each range of names."""
    for i in range(MAX_LINES):
        part = names[i * len(names) // MAX_LINES : (i + 1) * len(names) // MAX_LINES]
        yield Line(f"{part[0]} … {part[-1]}", plural(sum(map(size, part)), noun))


def reason_of(graph: Graph, box: Box, reasons: Mapping[str, str]) -> str:
    """Return why a box is at its place, as `placer explain` says it.

    Args:
        graph: the graph of the box.
        box: the box.
        reasons: the reason of each op with a choice of the compiler, by name.
    """
    found: dict[str, int] = {}
    for op in box.ops:
        results, structure = op.results, op.structure
        why = reasons.get(results[0].name if results else op.name)
        if why is not None and not (
            structure.sends or structure.receives or structure.copies
        ):
            found[why] = found.get(why, 0) + 1
    if not found:
        return _followed(graph, box) or "as written in the spec"
    first = sorted(found, key=lambda why: -found[why])[:_MAX_REASONS]
    return "; ".join(first)


def _followed(graph: Graph, box: Box) -> str:
    """Return the optimizers or the tables whose place a box has; empty for other boxes."""
    for op in box.ops:
        if op.kind == "distributed_lookup_table":
            tables = [each.operands[0] for each in box.ops if each.kind == op.kind]
            noun = "table" if len(tables) == 1 else "tables"
            return f"with the {noun} {' and '.join(tables)} at {op.place}"
        if op.kind in _PARTS_OF_UPDATES and graph.optimizers:
            optimizers = graph.optimizers.values()
            rules = dict.fromkeys(map(rule_text, optimizers))
            places = dict.fromkeys(str(each.place) for each in optimizers)
            noun = "optimizer" if len(optimizers) == 1 else "optimizers"
            return f"with the {noun} ({', '.join(rules)}) at {' and '.join(places)}"
    return ""


def bytes_of(kind: object, rows: int) -> int:
    """Return the bytes of a tensor for some rows; 0 for a residual."""
    return kind.nbytes(rows) if isinstance(kind, TensorType) else 0


def unique(ops: Iterable[Op]) -> list[Op]:
    return list(dict.fromkeys(ops))
