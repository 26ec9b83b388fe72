"""Reports work that several nodes repeat for the whole batch.

Such an op has replicated operands on all its nodes. With the batch rule `rows`, each
node could compute only its own rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placer.compiler.graph.graph import Graph
from placer.compiler.schedule.costs import RepeatedOp, find_repeated_ops
from placer.plan.plan import Plan
from placer.report.numbers import format_flops
from placer.system.listed import list_names

MIN_SHARE = 0.01
"""Repeated work below this share of a step's FLOPs is not reported."""
MAX_NAMED = 3


def repeated_line(plan: Plan, graph: Graph) -> Iterator[str]:
    """Yield one line about the repeated work of a step, unless it is small."""
    repeated = find_repeated_ops(graph)
    total = sum(node.flops + node.replicated_flops for node in plan.nodes)
    flops = sum(each.flops for each in repeated)
    if flops <= MIN_SHARE * total:
        return
    names = list_names([each.op.name for each in repeated], MAX_NAMED)
    share = f"{flops / total:.0%} of a step's FLOPs ({format_flops(flops)})"
    yield f"{share} are repeated on several nodes: {names}{_first_hint(repeated)}"


def _first_hint(repeated: Sequence[RepeatedOp]) -> str:
    hint = next(filter(None, (_hint(each) for each in repeated[:MAX_NAMED])), None)
    return f"; hint: {hint}" if hint else ""


def explain_repeat(graph: Graph, name: str) -> Iterator[str]:
    """Yield a note if several nodes repeat the work of an op."""
    for each in find_repeated_ops(graph):
        if each.op.name == name:
            hint = _hint(each)
            yield (
                f"  each of {each.nodes} nodes computes it for the whole batch:"
                f" {format_flops(each.flops)} per step are repeated, including its"
                " gradient" + (f" (hint: {hint})" if hint else "")
            )


def _hint(each: RepeatedOp) -> str | None:
    """Return how to let the nodes split the rows of the batch, if possible."""
    op = each.op
    if op.kind != "call" or op.attrs.get("state") or op.attrs.get("parts"):
        return None
    name = op.name.partition(".")[0]  # The op may be a region of this function.
    if not op.attrs.get("args"):
        return f"declare batch: rows for '{name}' if each row is computed independently"
    return (
        f"declare batch=\"rows\" for '{name}' if each row is computed independently, or"
        ' batch="replica" if it reduces over an axis of the batch'
    )
