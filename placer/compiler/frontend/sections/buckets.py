"""Checks `train.bucket_cap_mb`, which is for gradients that go to servers in lockstep."""

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
    """Report the key of a section `train` that has it, where it has no effect: without a
    group that servers update in lockstep, and with several microbatches."""
    span = section.keys[KEY].span
    if microbatches > 1:
        problems.add(
            f"'{KEY}' is for steps of one microbatch: of {microbatches}, all gradients"
            " are complete after the last",
            span,
            f"leave {KEY} or microbatches out",
        )
    if cluster is None:
        return
    problem = None
    for group in groups:
        if not _is_on_servers(group, cluster):
            problem = problem or ("is not on servers", "place it on servers")
        elif group.attrs["update"] not in (Sync(), None):  # None: an error was reported
            problem = problem or ("has another 'update'", "use 'update: sync'")
        else:
            return
    if problem is not None:
        why, remedy = problem
        problems.add(
            f"'{KEY}' is for gradients that go to servers with 'update: sync': the"
            f" optimizer {why}",
            span,
            f"{remedy}, or leave {KEY} out",
        )


def _is_on_servers(group: Group, cluster: Cluster) -> bool:
    """Whether a group is on servers, which is also its place by default if there are
    some."""
    if group.place is None or group.place.node is None:
        return any(kind.name == SERVER for kind in cluster.kinds)
    return group.place.node == SERVER
