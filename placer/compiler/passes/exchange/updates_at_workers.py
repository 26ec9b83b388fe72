"""Exchanges gradients between asynchronous workers that run the optimizer themselves.

Every worker has its own parameters and slots. Before a step, it applies the gradients
received from all workers so far.

- Without a server, each worker sends its gradients to all workers. The result of a
  `push_all` is the sum of the received gradients:
      %w.grad.push_all = push_all(%w.grad)
      %w.new = adam(%w, %w.grad.push_all)

- With `sum`, each worker sends its gradients to servers, which store ranges of them
  (layout F) and add them up separately for each worker. The result of a `pull_sum` is the
  sum since the worker's last request:

      %w.grad.push_sum F = push_sum(%w.grad)
      %w.grad.pull_sum = pull_sum(%w.grad.push_sum)
      %w.new = adam(%w, %w.grad.pull_sum)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.if_training import is_training_effect, resolve_if_training
from placer.compiler.graph.rewriter import Rewriter
from placer.compiler.graph.structural_ops import is_optimizer_part
from placer.compiler.passes.exchange.all_reduce import divide, place_of_sums
from placer.errors import GraphError
from placer.place import Place
from placer.place.layouts import Layout
from placer.place.layouts.ranges import Flat
from placer.place.node_kinds import WORKER
from placer.plan.settings.training.update_modes import (
    OF_SERVERS,
    GradientMode,
    changed_settings,
    name_of,
)

_Exchange = Callable[[Rewriter, Op, str], Sequence[Op]]
"""A function that returns the exchange ops for an update and its gradient's name. The last op
gives the value that the update uses."""


def push_to_workers(graph: Graph, updates: Sequence[Op]) -> Graph:
    """Insert the exchange of these updates between workers, without a server.

    Raises GraphError if an optimizer group does not support such updates.
    """
    for optimizer, mode in _optimizers(graph, updates):
        if mode.bound is None:
            why = (
                "without a server, fast workers queue gradients at slow ones: set"
                " 'max_staleness' to bound the queue"
            )
            _check(optimizer, why, "update: {async: {max_staleness: 4}}")
        if mode.max_merge > 1:
            why = "'max_merge' works only with gradients that are sent to a server"
            _check(optimizer, why, "leave 'max_merge' out")
        _check(optimizer, _why_not_at_workers(mode), "leave this setting out")

    def exchange(rewriter: Rewriter, update: Op, name: str) -> Sequence[Op]:
        place = graph.cluster.host_memory(update.known_place)
        return [_op(rewriter, "push_all", update, name, place)]

    return _with_exchanged_gradients(graph, updates, exchange)


def push_to_sums(graph: Graph, updates: Sequence[Op]) -> Graph:
    """Insert the exchange of these updates by servers that only sum.

    Raises GraphError if an optimizer group does not support asynchronous updates.
    """
    for optimizer, mode in _optimizers(graph, updates):
        _check(optimizer, _why_not_at_workers(mode), "leave this setting out")
    flats = divide(graph, updates)

    def exchange(rewriter: Rewriter, update: Op, name: str) -> Sequence[Op]:
        at_sums, flat = place_of_sums(graph, update), flats[update.operands[0]]
        push = _op(rewriter, "push_sum", update, name, at_sums, flat)
        place = graph.cluster.host_memory(update.known_place)
        pull = _op(rewriter, "pull_sum", update, name, place)
        return [push, pull.with_operands((push.name,))]

    return _with_exchanged_gradients(graph, updates, exchange)


def _with_exchanged_gradients(
    graph: Graph, updates: Sequence[Op], exchange: _Exchange
) -> Graph:
    if not updates:
        return graph
    by_parameter = {op.operands[0]: op for op in updates}
    _check_users(graph, by_parameter)
    rewriter = Rewriter(graph)
    for op in rewriter:
        # A two-phase rule uses the gradient in its first phase.
        if op.structure.update and op.operands[0] in by_parameter:
            update, name = by_parameter.pop(op.operands[0]), op.operands[1]
            _check_gradient(graph, update, name)
            exchanged = exchange(rewriter, update, name)
            rewriter.insert(*exchanged)
            rewriter.replace_operands({name: exchanged[-1].name})
    return rewriter.graph()


def _op(
    rewriter: Rewriter,
    kind: str,
    update: Op,
    name: str,
    place: Place,
    flat: Flat | None = None,
) -> Op:
    """Return an exchange op of a gradient."""
    layout: Layout | None = None if flat is None else "F"
    result = rewriter.new_value(name, kind, layout=layout, flat=flat)
    attrs = {"group": update.attrs["group"]}
    return Op(kind, (name,), (result,), attrs, place, update.source)


def _optimizers(graph: Graph, updates: Sequence[Op]) -> list[tuple[Op, GradientMode]]:
    """Return the optimizers of updates with their modes."""
    found = []
    for group in dict.fromkeys(op.attrs["group"] for op in updates):
        optimizer, mode = graph.optimizers[group], graph.modes[group]
        assert isinstance(mode, GradientMode), group
        for setting in ("shard_state", "all_reduce"):
            if setting in optimizer.attrs:
                name = name_of(optimizer.attrs["update"])
                why = (
                    f"'{setting}' needs all workers in each step, but 'update: {name}'"
                )
                hint = f"leave {setting} out, or use 'update: sync'"
                _check(optimizer, f"{why} is asynchronous", hint)
        found.append((optimizer, mode))
    return found


def _check(optimizer: Op, why: str, hint: str) -> None:
    if why:
        raise GraphError(why, span=optimizer.source, hint=hint)


def _why_not_at_workers(mode: GradientMode) -> str:
    """Return an error if a setting needs updates on servers, else ""."""
    for name in changed_settings(mode):
        if name in OF_SERVERS:
            return f"'{name}' works only with updates on servers, not on workers"
    return ""


def _check_gradient(graph: Graph, update: Op, name: str) -> None:
    """Raise GraphError unless the nodes of an update compute its gradient."""
    nodes, producer = graph.nodes(update), graph.producers[name]
    if any(node.kind != WORKER for node in nodes):
        raise GraphError(
            "an asynchronous optimizer must be on workers or on servers, not at"
            f" {update.place}",
            span=graph.optimizers[update.attrs["group"]].source,
            hint="place: /node:ps/cpu",
        )
    if graph.nodes(producer) != nodes:
        raise GraphError(
            f"the gradient of '{update.operands[0]}' is computed at {producer.place}, but"
            f" its optimizer is at {update.place}",
            span=update.source,
            hint="place the optimizer on the workers that compute the gradient",
        )


def _check_users(graph: Graph, updates: Mapping[str, Op]) -> None:
    """Raise GraphError if a step uses a parameter on a node that does not update it."""
    for op in resolve_if_training(graph, 0, is_training_effect):
        if op.kind == "store" or is_optimizer_part(op.kind):
            continue
        for name in filter(updates.__contains__, op.operands):
            update = updates[name]
            if not set(graph.nodes(op)) <= set(graph.nodes(update)):
                optimizer = graph.optimizers[update.attrs["group"]]
                mode = name_of(optimizer.attrs["update"])
                raise GraphError(
                    f"'{op.name if op.results else op.kind}' at {op.place} uses '{name}',"
                    f" but its optimizer at {update.place} has 'update: {mode}'",
                    span=op.source or optimizer.source,
                    hint="place the op on the same workers, or use 'update: sync'",
                )
