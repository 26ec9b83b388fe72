"""Checks `train.bucket_cap_mb`, which is for gradients that go to servers in lockstep."""

from __future__ import annotations

from collections.abc import Iterable

from placer.config.update_modes import SYNC
from placer.place import SERVER, Cluster
from placer.spec.problems import Problems
from placer.spec.sections.parameters import Group
from placer.spec.tree import MappingNode

KEY = "bucket_cap_mb"


def check_buckets(
    section: MappingNode,
    groups: Iterable[Group],
    microbatches: int,
    cluster: Cluster | None,
    problems: Problems,
) -> None:
    """Report the key in the section `train` if it has no effect: without a group that
    servers update in lockstep, and with several microbatches."""
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
    has_servers = any(kind.name == SERVER for kind in cluster.kinds)
    reasons = []
    for group in groups:
        kind = None if group.place is None else group.place.node
        on_servers = has_servers if kind is None else kind == SERVER
        if on_servers and group.attrs["update"] == SYNC:
            return
        reasons.append("has another 'update'" if on_servers else "is not on servers")
    if reasons:
        problems.add(
            f"'{KEY}' is for gradients that go to servers with 'update: sync': the"
            f" optimizer {reasons[0]}",
            span,
            f"place the optimizer on servers, or leave {KEY} out",
        )
