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

from msgspec.structs import replace

from placer.compiler.graph.fresh_names import unique_name
from placer.compiler.graph.graph import Graph, Op, Value
from placer.plan.exchanges import EXCHANGES
from placer.plan.settings.training.update_modes import Geo


def exchange_deltas(graph: Graph, updates: Sequence[Op]) -> Graph:
    """Return the graph with the exchange of these updates, which are those of servers."""
    if not updates:
        return graph
    used_names = set(graph.values)
    by_parameter = {op.operands[0]: op for op in updates}
    pulled: dict[str, str] = {}

    def renamed(name: str, suffix: str) -> Value:
        value = graph.values[name]
        return replace(value, name=unique_name(f"{name}.{suffix}", used_names))

    ops: list[Op] = []
    for op in graph.ops:
        if op.kind == "local_parameter":
            for name in op.operands:
                attrs, why = _settings(graph, by_parameter[name])
                attrs.pop("dtype", None)  # new values are not rounded
                result = renamed(name, "pull")
                pulled[name] = result.name
                ops.append(
                    Op("pull", (name,), (result,), attrs, op.place, op.source, why)
                )
            op = op.with_operands(tuple(pulled[name] for name in op.operands))
        elif op in updates:
            name, delta = op.operands
            attrs, why = _settings(graph, op)
            result = renamed(delta, "push")
            ops.append(
                Op("push_delta", (delta,), (result,), attrs, op.place, op.source, why)
            )
            op = op.with_operands((name, result.name))
        ops.append(op)
    return graph.with_ops(ops)


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
