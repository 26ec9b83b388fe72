"""Checks `train.bucket_cap_mb`: buckets are for gradients of synchronous servers."""

from __future__ import annotations

from collections.abc import Iterable

from placer.compiler.frontend.sections.parameters import Group
from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.tree import MappingNode
from placer.place import SERVER, Cluster
from placer.plan.settings.training.update_modes import Sync

KEY = "bucket_cap_mb"


def check_buckets(
    section: MappingNode,
    groups: Iterable[Group],
    microbatches: int,
    cluster: Cluster | None,
    problems: Problems,
) -> None:
    """Report `bucket_cap_mb` if it has no effect. It needs an optimizer that servers
    update synchronously, and a single microbatch."""
    span = section.keys[KEY].span
    if microbatches > 1:
        problems.add(
            f"'{KEY}' needs steps of one microbatch: with {microbatches}, all"
            " gradients are complete only after the last one",
            span,
            f"leave {KEY} or microbatches out",
        )
    if cluster is None:
        return
    problem = None
    for group in groups:
        if not _is_on_servers(group, cluster):
            problem = problem or ("is not on servers", "place it on servers")
        # None: an error was reported.
        elif group.attrs["update"] not in (Sync(), None):
            problem = problem or ("has a different 'update'", "use 'update: sync'")
        else:
            return
    if problem is not None:
        why, remedy = problem
        problems.add(
            f"'{KEY}' is for gradients that go to servers with 'update: sync', but the"
            f" optimizer {why}",
            span,
            f"{remedy}, or leave {KEY} out",
        )


def _is_on_servers(group: Group, cluster: Cluster) -> bool:
    """Return True if servers store the optimizer's parameters, as by default."""
    if group.place is None or group.place.node is None:
        return any(kind.name == SERVER for kind in cluster.kinds)
    return group.place.node == SERVER
