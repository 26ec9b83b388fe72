"""The mode of exchange of a group with `update: geo`: differences and new values.

The pass `local_updates` has put the optimizer of the group at the workers. Here the
differences go to the servers by `push_delta`, and the values of the servers come back by
`pull`, both every so many steps:

    %w.pull = pull(%w)
    %w.local = local_parameter(%w.pull)
    %w.delta.push = push_delta(%w.delta)
    %w.new = sgd(%w, %w.delta.push)

The result of a `push_delta` is the difference of one worker: a server runs the update
once for each, in the order in which they arrive. With `outer` it runs it once for those
of all workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.rewriter import Rewriter
from placer.plan.exchanges import EXCHANGES
from placer.plan.settings.training.update_modes import Geo


def exchange_deltas(graph: Graph, updates: Sequence[Op]) -> Graph:
    """Return the graph with the exchange of these updates, which are those of servers."""
    if not updates:
        return graph
    by_parameter = {op.operands[0]: op for op in updates}
    moved = set(updates)
    rewriter = Rewriter(graph)
    for op in rewriter:
        if op.kind == "local_parameter":
            for name in op.operands:
                attrs, why = _settings(graph, by_parameter[name])
                attrs.pop("dtype", None)  # new values are not rounded
                pulled = rewriter.new_value(name, "pull")
                rewriter.insert(
                    Op("pull", (name,), (pulled,), attrs, op.place, op.source, why)
                )
                rewriter.replace_operands({name: pulled.name})
        elif op in moved:
            _, delta = op.operands
            attrs, why = _settings(graph, op)
            pushed = rewriter.new_value(delta, "push")
            rewriter.insert(
                Op("push_delta", (delta,), (pushed,), attrs, op.place, op.source, why)
            )
            rewriter.replace_operands({delta: pushed.name})
    return rewriter.graph()


def _settings(graph: Graph, update: Op) -> tuple[dict[str, Any], str]:
    """Return the attributes of the ops that exchange a parameter, and why they are
    there."""
    group = update.attrs["group"]
    mode = graph.modes[group]
    assert isinstance(mode, Geo)
    attrs: dict[str, Any] = {"group": group, "every": mode.every}
    dtype = graph.tensor_type(update.operands[0]).dtype
    if mode.dtype not in (None, dtype):
        attrs["dtype"] = mode.dtype
    return attrs, EXCHANGES["push_delta"].why.format(**attrs)
