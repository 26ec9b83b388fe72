"""Checks a place against the nodes that a cluster declares."""

from __future__ import annotations

import re

from placer.errors import PlaceError, Span, did_you_mean, nearest
from placer.place.ids import Ids, format_ids, ids_suffix
from placer.place.nodes import NodeKind
from placer.place.place import Place

_ACCELERATORS = {"gpu": "gpu", "cuda": "gpu", "rocm": "gpu", "tpu": "tpu"}
"""Device kinds of accelerators, including names from other frameworks."""


def find_kind(kinds: tuple[NodeKind, ...], name: str, span: Span | None) -> NodeKind:
    """Return the node kind called `name`. Raises PlaceError at `span` if the cluster
    lacks it. The hint is the nearest name."""
    for kind in kinds:
        if kind.name == name:
            return kind
    declared = ", ".join(map(str, kinds)) or "no nodes"
    raise PlaceError(
        f"no node '{name}' in this cluster, which declares {declared}",
        span=_narrow(span, "/node:|/job:", name),
        hint=_nearest_kind([kind.name for kind in kinds], name),
    )


def _nearest_kind(declared: list[str], name: str) -> str:
    if close := nearest(name, declared):
        return f"did you mean '{close}'?"
    others = f", or use {' or '.join(declared)}" if declared else ""
    return f"declare it under 'nodes': {name}: {{count: 1}}{others}"


def check_place(kinds: tuple[NodeKind, ...], place: Place, span: Span | None) -> None:
    """Raise PlaceError at `span` if the place names an undeclared node, device or id.
    If the place has no node, at least one node kind must declare the device."""
    if span is None:
        text = str(place)
        span = Span("<place>", 1, 1, max(1, len(text)), text)
    if place.node is not None:
        kind = find_kind(kinds, place.node, span)
        where = f"in this cluster, which declares {kind}"
        _check_ids(kind.name, place.node_ids, kind.count, where, "/node:|/job:", span)
        _check_ids("thread", place.threads, kind.most_threads, where, "/", span)
        kinds = (kind,)
    if place.device is None:
        return
    owner = f"node '{place.node}'" if place.node else "any node"
    counts = [
        kind.counts[place.device] for kind in kinds if place.device in kind.counts
    ]
    if not counts:
        declared = sorted({device for kind in kinds for device in kind.counts})
        hint = did_you_mean(place.device, declared)
        if place.node is None and place.device in {kind.name for kind in kinds}:
            hint = (
                f"'{place.device}' is a node: write"
                f" /node:{place.device}{ids_suffix(place.device_ids)}"
            )
        if kind_name := _ACCELERATORS.get(place.device):
            hint = f"declare it for its nodes: devices: {{cpu: 1, {kind_name}: 1}}"
            if kind_name != place.device:
                hint = f"write '{kind_name}'" + (
                    "" if kind_name in declared else f", and {hint}"
                )
        raise PlaceError(
            f"no device '{place.device}' on {owner}, which declares"
            f" {', '.join(declared) or 'none'}",
            span=_narrow(span, "/device:|/", place.device),
            hint=hint,
        )
    count = max(counts)
    where = f"on {owner}, which declares {count} '{place.device}'"
    _check_ids(place.device, place.device_ids, count, where, "/device:|/", span)


def _check_ids(
    name: str, ids: Ids, count: int, where: str, lead: str, span: Span
) -> None:
    """Raise PlaceError if an id is `count` or more. `lead` precedes the name."""
    if ids is None or ids == "*" or ids[-1] < count:
        return
    missing = format_ids([number for number in ids if number >= count])
    raise PlaceError(
        f"no '{name}:{missing}' {where}",
        span=_narrow(span, lead, f"{name}{ids_suffix(ids)}"),
        hint=f"valid ids of '{name}' are {format_ids(range(count))}",
    )


def _narrow(span: Span | None, lead: str, piece: str) -> Span | None:
    """Return the part of `span` with `piece` after `lead`, or else all of `span`."""
    if span is None:
        return None
    match = re.compile(f"(?:{lead})({re.escape(piece)})(?![a-z0-9_])").search(
        span.text, span.column - 1, span.column - 1 + span.length
    )
    # The place is spelled differently, or merged from several places.
    if match is None:
        return span
    return Span(span.file, span.line, match.start(1) + 1, len(piece), span.text)
