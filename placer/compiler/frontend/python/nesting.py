"""Nests recorded ops in scopes of a spec, as their guards were nested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile

from placer.compiler.frontend.entries.op_kinds import PARAMETER
from placer.compiler.frontend.python.tree import mapping_node, scalar_node
from placer.compiler.frontend.yaml.tree import MappingNode, SequenceNode, SpecNode
from placer.place.guard import GuardEntry, merge_entries


@dataclass(frozen=True, slots=True)
class RecordedOp:
    """A recorded op: its entry without a place, its guards, and its `remat`.

    Guards are ordered from the outermost to the innermost.
    """

    node: MappingNode
    guards: tuple[GuardEntry, ...] = ()
    remat: object | None = None


def nest_ops(entries: Sequence[RecordedOp]) -> list[SpecNode]:
    """Return the entries of a section `graph`, with ops nested in scopes by place."""
    nodes: list[SpecNode] = []
    for region, group in groupby(entries, key=lambda entry: entry.remat):
        inner = _nest_from(list(group), 0)
        nodes.extend(inner if region is None else [_remat_scope(inner)])
    return nodes


def _nest_from(entries: Sequence[RecordedOp], depth: int) -> list[SpecNode]:
    """Return the entries without their `depth` outermost places."""
    nodes: list[SpecNode] = []
    for at, members in groupby(entries, key=lambda entry: _place_at(entry, depth)):
        group = list(members)
        if at is None:
            nodes.extend(entry.node for entry in group)
            continue
        # The order in which places merge matters only inside other scopes
        # (`Place.merge`). At the top, one scope can merge all places that the ops
        # share.
        end = _shared_depth(group) if depth == 0 else depth + 1
        guards = group[0].guards[depth:end]
        place = scalar_node(str(merge_entries(guards)), guards[-1].span)
        if len(group) > 1 or len(group[0].guards) > end:
            ops = SequenceNode(place.span, _nest_from(group, end))
            nodes.append(mapping_node({"place": place, "ops": ops}, place.span))
        elif group[0].node.entries["op"].value == PARAMETER:
            nodes.append(group[0].node)  # Parameters have no place.
        else:
            nodes.append(_with_place(group[0].node, place))
    return nodes


def _place_at(entry: RecordedOp, depth: int) -> str | None:
    return str(entry.guards[depth].place) if len(entry.guards) > depth else None


def _shared_depth(group: Sequence[RecordedOp]) -> int:
    """Return how many of the outermost places all ops share."""
    chains = [[guard.place for guard in entry.guards] for entry in group]
    levels = zip(*chains, strict=False)
    return len(list(takewhile(lambda places: len({*places}) == 1, levels)))


def _with_place(op: MappingNode, place: SpecNode) -> MappingNode:
    node = mapping_node(op.entries, op.span)
    node.entries["place"] = place
    node.keys["place"] = scalar_node("place", place.span)
    return node


def _remat_scope(inner: list[SpecNode]) -> MappingNode:
    span = inner[0].span
    true = scalar_node(True, span)
    match inner:
        case [MappingNode(entries={"place": place, "ops": ops})]:
            return mapping_node({"place": place, "remat": true, "ops": ops}, span)
    return mapping_node({"remat": true, "ops": SequenceNode(span, inner)}, span)
