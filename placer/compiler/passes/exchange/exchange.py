"""exchange: insert the ops by which nodes exchange gradients and parameters.

Needs a sliced graph. The place and the settings of an optimizer group determine its mode
of exchange. Each mode has a module, whose docstring shows the resulting ops:

- `all_reduce`: the optimizer is on several nodes.
- `asynchronous`: servers update asynchronously, as with `update: async`.
- `updates_at_workers`: workers update asynchronously.
- `geo`: workers train local values, which the pass `local_updates` has created for
  `update: geo`.
- `backup`: a step ignores stragglers.

With asynchronous workers or backup workers, `state_of_first_worker` decides which worker
keeps state such as running statistics.

Other updates on a single node, such as blocks on servers, do not change. The layout pass
sums their gradients where needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.keyed import is_keyed
from placer.compiler.graph.structural_ops import is_update
from placer.compiler.passes.exchange.all_reduce import all_reduce
from placer.compiler.passes.exchange.asynchronous import asynchronous
from placer.compiler.passes.exchange.backup import backup
from placer.compiler.passes.exchange.geo import exchange_deltas
from placer.compiler.passes.exchange.state_of_first_worker import state_of_first_worker
from placer.compiler.passes.exchange.updates_at_workers import (
    push_to_sums,
    push_to_workers,
)
from placer.errors import GraphError
from placer.place.node_kinds import SERVER
from placer.plan.settings.training.optimizers import OF_SEVERAL_NODES
from placer.plan.settings.training.update_modes import Geo

_Exchange = Callable[[Graph, Sequence[Op]], Graph]
"""A function that inserts the exchange of some updates into a graph."""
_EXCHANGES: Final[tuple[_Exchange, ...]] = (
    all_reduce,
    asynchronous,
    push_to_workers,
    push_to_sums,
    backup,
    exchange_deltas,
)


def exchange(graph: Graph) -> Graph:
    """Run the pass.

    Raises GraphError if an optimizer's settings do not suit its place or rule.
    """
    updates: dict[_Exchange, list[Op]] = {each: [] for each in _EXCHANGES}
    for op in graph.ops:
        if not is_update(op.kind) or _is_local(graph, op):
            continue
        if is_keyed(graph, op.operands[0]):  # handled by `sparse_tables`
            _check_settings(graph, op)
            continue
        chosen = _choose(graph, op)
        if chosen not in (all_reduce, push_to_workers, push_to_sums):
            _check_settings(graph, op)
        if chosen is not None:
            updates[chosen].append(op)
    for each, ops in updates.items():
        graph = each(graph, ops)
    is_asynchronous = any(op.is_push for op in graph.ops)
    if is_asynchronous or any(
        ops for each, ops in updates.items() if each is not all_reduce
    ):
        return state_of_first_worker(graph)
    return graph


def _is_local(graph: Graph, update: Op) -> bool:
    """Whether an update changes a worker's local values, which are not exchanged."""
    return graph.producers[update.operands[0]].kind == "local_parameter"


def _choose(graph: Graph, update: Op) -> _Exchange | None:
    """Return the exchange of an update, if any."""
    group = update.attrs["group"]
    mode = graph.modes[group]
    if isinstance(mode, Geo):
        return exchange_deltas
    if mode is not None:
        if update.known_place.node == SERVER:
            return asynchronous
        is_summed = "sum" in graph.optimizers[group].attrs
        return push_to_sums if is_summed else push_to_workers
    if graph.backups[group]:
        return backup
    return all_reduce if len(graph.nodes(update)) > 1 else None


def _check_settings(graph: Graph, update: Op) -> None:
    optimizer = graph.optimizers[update.attrs["group"]]
    for setting in OF_SEVERAL_NODES:
        if setting not in optimizer.attrs:
            continue
        if is_keyed(graph, update.operands[0]):
            raise GraphError(
                f"'{setting}' works only with dense parameters, but"
                f" '{update.operands[0]}' is a sparse table",
                span=optimizer.source,
                hint=f"give the table a separate optimizer without {setting}",
            )
        at = "servers" if update.known_place.node == SERVER else "one node"
        raise GraphError(
            f"'{setting}' needs an optimizer on several workers, but"
            f" '{update.operands[0]}' is updated on {at}",
            span=optimizer.source,
            hint=f"place the optimizer on several workers, or leave {setting} out",
        )
