"""What was recorded as blocks and ops of a spec, nested as the guards were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from placer.front.tree import mapping, scalar, sequence
from placer.place.guard import Said, merged
from placer.spec.op_kinds import PARAMETER
from placer.spec.tree import Mapping, Node


@dataclass(frozen=True, slots=True)
class Entry:
    """An op as it is recorded: its mapping without a place, what the open guards said
    of it, outermost first, and the `remat` that it stands in."""

    op: Mapping
    said: tuple[Said, ...] = ()
    remat: object | None = None


def blocks(entries: Sequence[Entry]) -> list[Node]:
    """The entries of a section `graph`: ops that share a place stand in a block."""
    found: list[Node] = []
    for region, group in groupby(entries, key=lambda entry: entry.remat):
        inner = _placed(list(group), 0)
        found.extend(inner if region is None else [_again(inner)])
    return found


def _placed(entries: Sequence[Entry], depth: int) -> list[Node]:
    """The entries, whose first `depth` places the blocks around them say."""
    found: list[Node] = []
    for at, members in groupby(entries, key=lambda entry: _place_at(entry, depth)):
        group = list(members)
        if at is None:
            found.extend(entry.op for entry in group)
            continue
        # At the top there is nothing around that the order of merging would matter to.
        end = _shared(group) if depth == 0 else depth + 1
        said = group[0].said[depth:end]
        place = scalar(str(merged(said)), said[-1].span)
        if len(group) > 1 or len(group[0].said) > end:
            ops = sequence(_placed(group, end), place.span)
            found.append(mapping({"place": place, "ops": ops}, place.span))
        elif group[0].op.entries["op"].value == PARAMETER:
            found.append(group[0].op)  # it has no place
        else:
            found.append(_with(group[0].op, place))
    return found


def _place_at(entry: Entry, depth: int) -> str | None:
    return str(entry.said[depth].place) if len(entry.said) > depth else None


def _shared(group: Sequence[Entry]) -> int:
    """How many of the outermost places all of them have."""
    chains = [[said.place for said in entry.said] for entry in group]
    count = 0
    while all(len(c) > count and c[count] == chains[0][count] for c in chains):
        count += 1
    return count


def _with(op: Mapping, place: Node) -> Mapping:
    made = mapping(op.entries, op.span)
    made.entries["place"] = place
    made.keys["place"] = scalar("place", place.span)
    return made


def _again(inner: list[Node]) -> Mapping:
    """A block that is computed again for backward."""
    span = inner[0].span
    again = scalar(True, span)
    if len(inner) == 1 and isinstance(inner[0], Mapping) and "ops" in inner[0].entries:
        place, ops = inner[0].entries["place"], inner[0].entries["ops"]
        return mapping({"place": place, "remat": again, "ops": ops}, span)
    return mapping({"remat": again, "ops": sequence(inner, span)}, span)
