"""What several nodes compute for the whole batch, where each could have its rows."""

from __future__ import annotations

from collections.abc import Sequence

from placer.analysis.costs import Repeat, repeats
from placer.build.plan import Plan
from placer.graph.graph import Graph

LEAST = 0.01
"""The share of a step's FLOPs below which nothing is said."""
NAMED = 3


def repeated_line(plan: Plan, graph: Graph) -> str | None:
    """What of a step is computed again, in one line; None where it is little."""
    found = repeats(graph)
    total = sum(node.flops + node.replicated_flops for node in plan.nodes)
    again = sum(each.flops for each in found)
    if again <= LEAST * total:
        return None
    names = ", ".join(each.op.name for each in found[:NAMED])
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    share = f"{again / total:.0%} of a step's FLOPs ({flops(again)})"
    return f"{share} are computed again by other nodes: {names}{more}{_then(found)}"


def _then(found: Sequence[Repeat]) -> str:
    hint = next(filter(None, (_hint(each) for each in found[:NAMED])), None)
    return f"; hint: {hint}" if hint else ""


def explained(graph: Graph, name: str) -> str | None:
    """What is computed again of an op; None where nothing is."""
    for each in repeats(graph):
        if each.op.name == name:
            hint = _hint(each)
            return (
                f"each of {each.nodes} nodes computes it for the whole batch:"
                f" {flops(each.flops)} a step are computed again, with its gradient"
                + (f" (hint: {hint})" if hint else "")
            )
    return None


def _hint(each: Repeat) -> str | None:
    """What lets the nodes share the rows of the batch out."""
    op = each.op
    if op.kind != "call" or op.attrs.get("state"):
        return None
    said = 'batch="rows"' if op.attrs.get("args") else "batch: rows"
    name = op.name.partition(".")[0]  # of which this may be a region
    return f"say {said} of '{name}' if no row depends on another"


def flops(number: float) -> str:
    """FLOPs with a decimal unit.

    >>> flops(980), flops(32784061)
    ('980 FLOPs', '32.8 MFLOPs')
    """
    units = ("", "k", "M", "G", "T", "P")
    step = 0
    while number >= 999.95 and step + 1 < len(units):
        number, step = number / 1000, step + 1
    return f"{number:.1f} {units[step]}FLOPs" if step else f"{number:.0f} FLOPs"
