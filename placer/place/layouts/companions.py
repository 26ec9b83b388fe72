"""Finds the worker that each node computes for.

A worker computes for itself, a heter node for one or several workers. A worker and a
heter node that computes only for it are companions. In this module, `workers` are all
nodes of kind `worker`, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placer.place.layouts import Layout
from placer.place.layouts.moved_pieces import Conversion
from placer.place.layouts.partition import row_shard
from placer.place.node_kinds import HETER, WORKER, NodeId


def worker_of(nodes: Sequence[str], index: int, workers: Sequence[str]) -> str | None:
    """Return the worker that `nodes[index]` computes for. A worker
    computes for itself, a heter node for its only worker. None for other nodes."""
    node = NodeId(nodes[index])
    if node.kind == WORKER:
        return node
    if node.kind == HETER:
        parts = row_shard(nodes, index, len(workers)).part_indices
        return workers[parts[0]] if len(parts) == 1 else None
    return None


def joins_workers(
    layouts: tuple[Layout, Layout],
    sources: Sequence[str],
    targets: Sequence[str],
    workers: Sequence[str],
) -> bool:
    """Return True if a node receives data of a worker other than its own. `layouts` are
    the layouts at the sources and at the targets."""
    # With this number of rows, no part is empty.
    count = len(sources) * len(targets) * max(1, len(workers))
    conversion = Conversion(layouts, sources, targets, count, len(workers))
    of_source = dict(_workers_of(sources, workers))
    for target, own in _workers_of(targets, workers):
        pieces = conversion.pieces_for(target)
        found = {of_source[piece.source] for piece in pieces} - {None}
        if len(found) > 1 or (own is not None and found - {own}):
            return True
    return False


def goes_between_companions(
    layouts: tuple[Layout, Layout],
    sources: Sequence[str],
    targets: Sequence[str],
    workers: Sequence[str],
) -> bool:
    """Return True if all data moves between a worker and its companion."""
    sides = _workers_of(sources, workers), _workers_of(targets, workers)
    if any(own is None for side in sides for _, own in side):
        return False
    return not joins_workers(layouts, sources, targets, workers)


def _workers_of(
    nodes: Sequence[str], workers: Sequence[str]
) -> Iterator[tuple[str, str | None]]:
    for index, node in enumerate(nodes):
        yield node, worker_of(nodes, index, workers)
