"""Exchanges the gradients of asynchronous workers with servers: push and pull.

In an optimizer group with `update: async`, workers receive each block of a parameter by
`pull`, and send its gradient by `push`. A `pull` gives every worker the newest version
that it has received, which may differ between workers. The result of a `push` is the
gradient of one worker. A server runs the ops that use it once for each push, in order
of arrival:

    %w.pull = pull(%w)
    %w.pulled = if_training(%w.pull, %w)
    %w.grad.push = push(%w.grad)
    %w.new = adam(%w, %w.grad.push)

A two-phase rule, such as `lamb`, uses the gradient in its first phase. Its norms need the
whole parameter on one server.

Afterwards the updates of such a group use pushed gradients only. Other ops use pulled
parameters only in a training step; evaluations and predictions use the parameters on the
server.
"""

from __future__ import annotations

from collections.abc import Sequence

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.if_training import (
    IF_TRAINING,
    is_training_effect,
    resolve_if_training,
)
from placer.compiler.graph.rewriter import Rewriter
from placer.compiler.graph.structural_ops import is_optimizer_part
from placer.errors import GraphError
from placer.place import HETER, WORKER
from placer.plan.settings.training.update_modes import name_of


def asynchronous(graph: Graph, updates: Sequence[Op]) -> Graph:
    """Insert the exchange of these asynchronous updates.

    Raises GraphError if an optimizer group does not support asynchronous updates.
    """
    if not updates:
        return graph
    for group in {op.attrs["group"] for op in updates}:
        _check_optimizer(graph, graph.optimizers[group])
    step_ops = resolve_if_training(graph, 0, is_training_effect)
    uses: dict[str, list[Op]] = {op.operands[0]: [] for op in updates}
    for op in step_ops:
        if not _is_of_server(op):
            for name in uses.keys() & set(op.operands):
                uses[name].append(op)
    rewriter = Rewriter(graph)
    pulls = {
        op.operands[0]: pulled(rewriter, graph, op, "pull", uses[op.operands[0]])
        for op in updates
    }
    names = {block: pull[-1].name for block, pull in pulls.items()}
    # A two-phase rule uses the gradient in its first phase.
    not_pushed = {*names}
    for op in rewriter:
        if op.structure.update and op.operands[0] in not_pushed:
            not_pushed.remove(op.operands[0])
            push = _push(rewriter, graph, op, pulls[op.operands[0]][0])
            rewriter.insert(push)
            rewriter.replace_operands({op.operands[1]: push.name})
        elif not _is_of_server(op):
            rewriter.replace_operands(names)
        if op.kind == "parameter":
            rewriter.insert_after(*pulls.get(op.name, ()))
    return rewriter.graph()


def _is_of_server(op: Op) -> bool:
    """Whether an op is part of an update, and so uses the server's values."""
    return op.kind == "store" or is_optimizer_part(op.kind)


def _check_optimizer(graph: Graph, op: Op) -> None:
    """Raise GraphError if the optimizer's place does not allow its settings."""
    mode = graph.modes[op.attrs["group"]]
    in_memory = graph.cluster.host_memory(op.known_place) == op.known_place
    if mode is not None and mode.compensate and not in_memory:
        raise GraphError(
            "'compensate' needs the optimizer in host memory, which stores the parameters"
            f" that each worker pulled, not at {op.place}",
            span=op.source,
            hint="place: /node:ps/cpu",
        )


def _push(rewriter: Rewriter, graph: Graph, update: Op, pull: Op) -> Op:
    """Return the op that sends a gradient to its update, given the pull op."""
    name = update.operands[1]
    nodes = graph.nodes(graph.producers[name])
    if nodes != graph.nodes(pull) or len(update.operands) > 2:
        raise GraphError(
            f"the gradient of '{update.operands[0]}' is not computed on the nodes that"
            " use the parameter",
            span=update.source,
            hint="let each worker compute the gradient where it uses the parameter, or use"
            " 'update: sync'",
        )
    pushed = rewriter.new_value(name, "push")
    attrs = {"group": update.attrs["group"]}
    return Op("push", (name,), (pushed,), attrs, update.place, update.source)


def pulled(
    rewriter: Rewriter, graph: Graph, update: Op, kind: str, users: Sequence[Op]
) -> tuple[Op, Op]:
    """Return the pull op for training, and the `if_training` that gives other graphs the
    stored block."""
    name, group = update.operands[0], update.attrs["group"]
    parameter, optimizer = graph.producers[name], graph.optimizers[group]
    kinds = (WORKER, HETER) if kind == "pull" else (WORKER,)
    for op in users:
        if op.known_place.node not in kinds:
            mode = name_of(optimizer.attrs["update"])
            raise GraphError(
                f"'{parameter.attrs.get('whole', name)}' is used at {op.place}, but its"
                f" optimizer has 'update: {mode}'",
                span=op.source or optimizer.source,
                hint="place the ops that use it on workers, or use 'update: sync'",
            )
    place = graph.cluster.union([op.known_place for op in users])
    if users and place is None:
        other = next(
            op for op in users if op.known_place.node != users[0].known_place.node
        )
        raise GraphError(
            f"'{parameter.attrs.get('whole', name)}' is used at {users[0].place} and at"
            f" {other.place}, but only one kind of node can train it asynchronously",
            span=other.source or optimizer.source,
            hint="place the ops that use it on workers, or all on heter nodes, or use"
            " 'update: sync'",
        )
    source = parameter.source
    new = rewriter.new_value(name, kind)
    pull = Op(kind, (name,), (new,), {"group": group}, place, source)
    chosen = rewriter.new_value(name, "pulled")
    return pull, Op(IF_TRAINING, (new.name, name), (chosen,), {}, place, source)
