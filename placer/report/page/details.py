"""Lists the content of boxes: the text of their ops, and their layers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from placer.compiler.graph.graph import Op
from placer.report.page import facts
from placer.report.page.boxes import Box
from placer.report.page.layers import Layers
from placer.report.page.placement import PlacedGraph
from placer.system.garbage_collection import garbage_collection_off

_Key = tuple[str, str]
"""The name and the kind of a layer."""


def list_details(placed: PlacedGraph) -> facts.Details:
    """Return the content of all boxes."""
    with garbage_collection_off():
        return _list_details(placed)


def _list_details(placed: PlacedGraph) -> facts.Details:
    graph = placed.graph
    texts = dict(zip(graph.ops, _op_lines(placed), strict=True))
    layers, positions = placed.layers, placed.build.positions
    file = Path(positions.spec).name
    ops: list[str] = []
    boxes: list[tuple[facts.LayerFacts, ...]] = []
    for box, flops in zip(placed.top_boxes, placed.flops, strict=False):
        nodes = len(placed.nodes[box.column])
        found = []
        for (name, kind), members in _group(box, layers).items():
            start = len(ops)
            ops += [texts[op] for op in members]
            found.append(
                facts.LayerFacts(
                    name,
                    kind,
                    _output(members[0], name, layers),
                    round(sum(flops.get(op, 0) for op in members) / nodes),
                    _line(positions.ops, file, name),
                    (start, len(ops)),
                )
            )
        boxes.append(tuple(found))
    return facts.Details(tuple(ops), tuple(boxes), _holders(placed))


def _op_lines(placed: PlacedGraph) -> list[str]:
    """Return the line of each op in graph.txt."""
    text = placed.build.read_text("graph.txt")
    start = text.index(f"graph @{placed.graph.name} ")
    end = text.index("\n}", start)
    return [line.strip() for line in text[start:end].split("\n")[1:]]


def _group(box: Box, layers: Layers) -> dict[_Key, list[Op]]:
    """Return the ops of a box by layer, in the order of their first ops."""
    groups: dict[_Key, list[Op]] = {}
    for op in box.ops:
        key = layers.key(op) if op.is_computed else _key(op)
        groups.setdefault(key, []).append(op)
    return groups


def _key(op: Op) -> _Key:
    structure = op.structure
    if op.kind == "read":
        return op.attrs["input"], "input"
    if structure.update is not None:
        return op.operands[0], op.kind.partition(".")[0]
    if structure.sends:
        return f"edge {op.attrs['edge']}", op.kind
    if structure.receives:
        return f"edge {op.attrs['edge']}", "receive"
    if op.kind == "record":
        return op.attrs["metric"], "metric"
    if op.kind == "output":
        return op.attrs["output"], "output"
    if structure.copies:
        return op.kind, "copy"
    if structure.directive:
        return op.attrs.get("rule", op.kind), op.kind
    return op.operands[0] if op.kind == "store" else op.name, op.kind


def _output(op: Op, name: str, layers: Layers) -> str:
    if op.is_computed:
        return layers.output(name)
    if op.structure.sends or op.structure.receives or op.structure.copies:
        return ""
    return str(op.results[0].type) if op.results else ""


def _line(positions: Mapping[str, tuple[int, int]], file: str, name: str) -> str:
    """Return the line of a layer in the spec; empty if it is unknown."""
    position = positions.get(name) or positions.get(name.partition(".")[0])
    return f"{file}:{position[0]}" if position else ""


def _holders(placed: PlacedGraph) -> dict[str, tuple[int, ...]]:
    """Return the boxes that store each parameter, block and sparse table."""
    found: dict[str, dict[int, None]] = {}
    for number, box in enumerate(placed.top_boxes):
        for op in box.ops:
            if op.kind in ("parameter", "sparse_table", "local_parameter"):
                found.setdefault(op.name, {})[number] = None
                if op.kind == "parameter" and "whole" in op.attrs:
                    found.setdefault(op.attrs["whole"], {})[number] = None
    return {name: tuple(boxes) for name, boxes in found.items()}
