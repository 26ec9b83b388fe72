"""Exchanges differences and new values in optimizer groups with `update: geo`.

The pass `local_updates` has placed the optimizer of the group on the workers. This module
sends the differences to servers by `push_delta`, and the servers' values back by `pull`.
Both happen once in several steps:

    %w.pull = pull(%w)
    %w.local = local_parameter(%w.pull)
    %w.delta.push = push_delta(%w.delta)
    %w.new = sgd(%w, %w.delta.push)

The result of a `push_delta` is the difference of one worker. A server runs the update once
per difference, in order of arrival. With `outer` it runs the update once per round, for the
differences of all workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.rewriter import Rewriter
from placer.plan.exchanges import EXCHANGES
from placer.plan.settings.training.update_modes import Geo


def exchange_deltas(graph: Graph, updates: Sequence[Op]) -> Graph:
    """Insert the exchange of these updates on servers."""
    if not updates:
        return graph
    by_parameter = {op.operands[0]: op for op in updates}
    moved = set(updates)
    rewriter = Rewriter(graph)
    for op in rewriter:
        if op.kind == "local_parameter":
            for name in op.operands:
                attrs, why = _settings(graph, by_parameter[name])
                attrs.pop("dtype", None)  # pulled values are not rounded
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
    """Return the attributes of a parameter's exchange ops, and the recorded reason."""
    group = update.attrs["group"]
    mode = graph.modes[group]
    assert isinstance(mode, Geo)
    attrs: dict[str, Any] = {"group": group, "every": mode.every}
    dtype = graph.tensor_type(update.operands[0]).dtype
    if mode.dtype not in (None, dtype):
        attrs["dtype"] = mode.dtype
    return attrs, EXCHANGES["push_delta"].why.format(**attrs)
