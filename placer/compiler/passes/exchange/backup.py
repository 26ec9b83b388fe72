"""Exchanges gradients in steps with backup workers: offer and sum_of_first.

A step uses the gradients of the fastest workers and ignores the stragglers (Chen et al.,
"Revisiting distributed synchronous SGD", 2016):

    %w.offer = offer(%w)
    %w.pulled = if_training(%w.offer, %w)
    %w.grad.sum_of_first = sum_of_first(%w.grad) {first = 3}
    %w.new = adam(%w, %w.grad.sum_of_first)

Servers compute everything else from these sums as well, such as the norm for clipping.
A straggler abandons its step, so no other op of the step may need its values.
"""

from __future__ import annotations

from collections.abc import Sequence

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.if_training import is_training_effect, resolve_if_training
from placer.compiler.graph.rewriter import Rewriter
from placer.compiler.graph.structural_ops import is_optimizer_part, is_update
from placer.compiler.passes.exchange.asynchronous import pulled
from placer.compiler.passes.gradients.updates import owning_parameters
from placer.errors import GraphError
from placer.place import Place
from placer.place.node_kinds import HETER, SERVER, WORKER


def backup(graph: Graph, updates: Sequence[Op]) -> Graph:
    """Insert the exchange of these updates, all with backup workers.

    Raises GraphError if an optimizer group does not support backup workers.
    """
    if not updates:
        return graph
    groups = {op.attrs["group"] for op in updates}
    first = _check_groups(graph, groups)
    blocks = {op.operands[0]: op for op in updates}
    users: dict[str, list[Op]] = {name: [] for name in blocks}
    others: dict[str, Op] = {}  # by block: the first server op that uses it
    for op in resolve_if_training(graph, 0, is_training_effect):
        for name in filter(users.__contains__, dict.fromkeys(op.operands)):
            if op.known_place.node == WORKER:
                users[name].append(op)
            elif op.known_place.node == HETER:
                raise _used_elsewhere(graph, name, op)
            elif not is_optimizer_part(op.kind):
                others.setdefault(name, op)
    for name, op in others.items():
        if not users[name]:
            raise _used_elsewhere(graph, name, op)
    rewriter = Rewriter(graph)
    offers = {
        name: pulled(rewriter, graph, op, "offer", users[name])
        for name, op in blocks.items()
    }
    sums: dict[tuple[str, Place], str] = {}  # sums of worker values, by value and place
    owners = owning_parameters(graph)
    for op in rewriter:
        for name in dict.fromkeys(op.operands):
            if op.known_place.node == WORKER and name in offers:
                rewriter.replace_operands({name: offers[name][-1].name})
            elif _comes_from_workers(graph, op, name):
                key = name, op.known_place
                if key not in sums:
                    update = blocks.get(owners.get(name, ""))
                    if update is None:
                        raise _waits_for_workers(op, name)
                    sums[key] = _insert_sum(rewriter, name, update, first)
                rewriter.replace_operands({name: sums[key]})
        if op.kind == "parameter":
            rewriter.insert_after(*offers.get(op.name, ()))
    return rewriter.graph()


def _check_groups(graph: Graph, groups: set[int]) -> int:
    """Return how many workers a step waits for."""
    # GraphError is raised if settings contradict the nodes or each other.
    number = min(groups)
    op = graph.optimizers[number]
    count = graph.backups[number]
    updated = {each.attrs["group"] for each in graph.ops if is_update(each.kind)}
    for other in sorted(updated):
        different = graph.optimizers[other]
        if graph.backups[other] != count:
            raise GraphError(
                f"another optimizer has {count} backup {_workers(count)}, so this one"
                " must have the same 'update'",
                span=different.source,
                hint=f"use 'update: {{sync: {{backup: {count}}}}}' for all optimizers",
            )
    for group in sorted(groups):
        if graph.optimizers[group].known_place.node != SERVER:
            raise GraphError(
                f"backup workers need the optimizer on servers, not at {op.place}",
                span=graph.optimizers[group].source,
                hint="place: /node:ps/cpu, with nodes of kind ps",
            )
    workers = graph.cluster.workers
    if count >= workers:
        raise GraphError(
            f"{count} backup {_workers(count)} of {workers} leave no worker that a step"
            " waits for",
            span=op.source,
            hint=f"use at most backup: {workers - 1}, or more nodes of kind worker",
        )
    return workers - count


def _workers(count: int) -> str:
    return "worker" if count == 1 else "workers"


def _comes_from_workers(graph: Graph, op: Op, name: str) -> bool:
    """Whether a non-worker op uses a value of workers."""
    made = graph.producers[name].known_place
    return made.node == WORKER and op.known_place.node != WORKER


def _used_elsewhere(graph: Graph, name: str, op: Op) -> GraphError:
    whole = graph.producers[name].attrs.get("whole", name)
    return GraphError(
        f"'{whole}' is used at {op.place}, but a step with backup workers uses only the"
        " gradients of the fastest workers",
        span=op.source,
        hint="place the op on workers, or use 'update: sync'",
    )


def _waits_for_workers(op: Op, name: str) -> GraphError:
    return GraphError(
        f"{op.forward_kind} at {op.place} needs '{name}' of all workers, but a step with"
        " backup workers does not wait for stragglers",
        span=op.source,
        hint="place the op on workers, or use 'update: sync'",
    )


def _insert_sum(rewriter: Rewriter, name: str, update: Op, first: int) -> str:
    """Insert the sum of the first workers' values at the update's place; return its name."""
    kind = "sum_of_first"
    result = rewriter.new_value(name, kind)
    attrs = {"group": update.attrs["group"], "first": first}
    rewriter.insert(Op(kind, (name,), (result,), attrs, update.place, update.source))
    return result.name
