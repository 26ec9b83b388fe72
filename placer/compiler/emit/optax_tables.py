"""Plans and checks the tables of optax optimizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placer.compiler.graph.graph import Graph
from placer.compiler.graph.optax_groups import optax_optimizers
from placer.errors import GraphError
from placer.place.ids import format_nodes
from placer.place.node_kinds import WORKER, NodeId
from placer.plan.plan import Table
from placer.plan.settings.training.transformations import Transformation

Tables = Mapping[str, Sequence[Table]]
"""The tables of each node."""


def transformations_of(step: Graph) -> dict[str, Transformation]:
    """Return the optax optimizers of a step, by the numbers that tables refer to."""
    return {
        str(op.attrs["group"]): op.attrs["transformation"]
        for op in optax_optimizers(step)
    }


def check_optax_tables(step: Graph, tables: Tables) -> None:
    """Check that the nodes can compute the updates of each optax optimizer.

    Raises GraphError if a group of parameters that are updated together is on several
    nodes or in several tables, or if the values for evaluations need the state of workers.
    """
    for number, transformation in transformations_of(step).items():
        of_nodes = {
            node: [each for each in of_node if each.transformation == number]
            for node, of_node in tables.items()
        }
        optimizer = step.optimizers[int(number)]
        span, is_divided = optimizer.source, bool(optimizer.attrs.get("shard_state"))
        for names in transformation.together:
            if problem := _apart(names, of_nodes, is_divided):
                message, hint = problem
                raise GraphError(f"{transformation.fn} {message}", span=span, hint=hint)
        at_workers = any(
            table.local or (table.mode and NodeId(node).kind == WORKER)
            for node, each in of_nodes.items()
            for table in each
        )
        if transformation.eval_params and at_workers:
            raise GraphError(
                f"'eval_params: {transformation.eval_params}' needs the optimizer's state"
                " where the evaluated parameters are, but here each worker has its own"
                " state",
                span=span,
                hint="use 'update: sync' or 'update: async' with the optimizer on"
                " servers, or leave eval_params out",
            )


def _apart(
    names: Sequence[str], tables: Mapping[str, Sequence[Table]], is_divided: bool
) -> tuple[str, str] | None:
    """Return an error and its hint if no table has all of these parameters.

    `is_divided`: the optimizer has `shard_state`.
    """
    holders: dict[str, list[str]] = {}  # by table with a part of the parameters
    for node, each in tables.items():
        for table in each:
            held = {b.parameter for b in table.blocks if b.numel} & {*names}
            if held and held != {*names}:
                holders.setdefault(node, []).extend(sorted(held))
    if not holders:
        return None
    listed = f"'{names[0]}' and '{names[1]}'"
    if len(names) > 2:
        listed = f"'{names[0]}', '{names[1]}' and {len(names) - 2} more"
    nodes = format_nodes([*holders])
    if len(holders) == 1:
        message = f"updates {listed} together, but {nodes} has them in several tables"
        return message, "give these parameters the same dtype and devices"
    where = "place the optimizer on one server, as with place: /node:ps:0/cpu"
    if is_divided:
        where = "leave shard_state out, so that each worker updates all parameters"
    elif any(NodeId(node).kind == WORKER for node in holders):
        node = next(iter(holders))
        where = f"place the optimizer on one node, as with place: /node:{node}/cpu"
    return f"updates {listed} together, but they are on {nodes}", (
        f"{where}; a limit of the norm of all gradients works on several nodes if"
        " optax.clip_by_global_norm is first in the chain"
    )
