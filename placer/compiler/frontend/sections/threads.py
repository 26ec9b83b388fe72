"""Turns the threads of each process into nodes of the cluster.

They come from `train.threads`, and from heter nodes that compute for several
asynchronous workers.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from placer.compiler.frontend.sections.parameters import Group
from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.tree import ScalarNode
from placer.errors import PlaceError
from placer.place import Cluster, NodeKind
from placer.place.node_kinds import HETER, WORKER
from placer.plan.settings.training.update_modes import mode_of


def with_threads(
    cluster: Cluster,
    threads: ScalarNode | None,
    groups: Sequence[Group],
    problems: Problems,
) -> Cluster:
    """Return the cluster with the threads of each process as nodes.

    Each worker runs `threads` step loops. With asynchronous workers, a heter node has a
    thread for each worker that it computes for, so no worker waits for another.

    Args:
        cluster: The declared nodes.
        threads: The value of the key `train.threads`.
        groups: The optimizers.
        problems: Collects the errors: no workers, or too many threads.
    """
    if threads is not None:
        if not cluster.workers:
            message = f"'threads' needs nodes of kind '{WORKER}', and the spec declares no workers"
            problems.add(message, threads.span, "nodes: {worker: {count: 2}}")
            return cluster
        count = int(str(threads.value))
        if count > 1:
            kind = cluster.kind(WORKER)
            try:
                threaded = replace(kind, threads=kind.count * count)
            except PlaceError as error:
                problems.add_error(error, span=threads.span)
                return cluster
            cluster = _with_kind(cluster, threaded)
    synchronous = all(mode_of(group.attrs.get("update")) is None for group in groups)
    heter = next((kind for kind in cluster.kinds if kind.name == HETER), None)
    if synchronous or heter is None or heter.count >= cluster.workers:
        return cluster
    return _with_kind(cluster, replace(heter, threads=cluster.workers))


def _with_kind(cluster: Cluster, changed: NodeKind) -> Cluster:
    return Cluster(
        tuple(changed if kind.name == changed.name else kind for kind in cluster.kinds)
    )
