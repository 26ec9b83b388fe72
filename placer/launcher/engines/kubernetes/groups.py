"""Groups the nodes of a Kubernetes job by pod template, and chooses their names.

A name that becomes part of a host name must be a DNS label: at most 63 of a-z, 0-9 and
`-`, beginning with a letter (RFC 1035).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from placer.launcher.engines.engine import Needs
from placer.place.node_kinds import NodeId

MAX_LABEL: Final = 63
"""The largest length of a DNS label."""
_MAX_KIND: Final = 20
"""The largest length of a node kind in names."""
_SUFFIX: Final = len("-abcde")
"""The length of the suffix that Kubernetes adds to the name of a pod."""


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive nodes of a kind with equal needs.

    Attributes:
        name: such as `worker`, or `worker-2-3` if other workers have other needs.
        kind: such as `worker`.
        first: the number of the first node.
        count: the number of nodes.
        needs: the resources that each node needs.
    """

    name: str
    kind: str
    first: int
    count: int
    needs: Needs

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes."""
        return tuple(f"{self.kind}:{self.first + i}" for i in range(self.count))


def group_nodes(needs: Mapping[str, Needs]) -> tuple[Group, ...]:
    """Return the groups of the nodes of a job, in the order of the plan."""
    kinds: dict[str, list[NodeId]] = {}
    for name in needs:
        kinds.setdefault(NodeId(name).kind, []).append(NodeId(name))
    groups: dict[str, Group] = {}
    for kind, nodes in kinds.items():
        label = _cut(_letters(kind), _MAX_KIND, kind)
        runs = list(_runs(nodes, needs))
        for run in runs:
            first, last = run[0].number, run[-1].number
            numbers = f"-{first}" if first == last else f"-{first}-{last}"
            name = label if len(runs) == 1 else label + numbers
            if name in groups:  # The kinds `a_b` and `a__b` have the same letters.
                name = _with_digest(name, _MAX_KIND, f"{kind}{numbers}")
            groups[name] = Group(name, kind, first, len(run), needs[run[0]])
    return tuple(groups.values())


def _runs(
    nodes: Sequence[NodeId], needs: Mapping[str, Needs]
) -> Iterator[list[NodeId]]:
    run: list[NodeId] = []
    for node in sorted(nodes, key=lambda node: node.number):
        if run and needs[node] != needs[run[0]]:
            yield run
            run = []
        run.append(node)
    yield run


def job_name(name: str, groups: Sequence[Group]) -> str:
    """Return the name of the objects of a job. It uses only letters that host names may
    have, and is short enough for the names of pods."""
    rest = max(len(f"-{group.name}-{group.count - 1}-0") for group in groups)
    label = _letters(name)
    if not label[:1].isalpha():
        label = f"run-{label}".rstrip("-")
    return _cut(label, MAX_LABEL - _SUFFIX - rest, name)


def host_names(name: str, groups: Sequence[Group], jobset: bool) -> dict[str, str]:
    """Return the DNS name of the pod of each node, relative to the namespace. A JobSet
    has a Job for each node, and its pods are called `JOB-GROUP-NUMBER-0`. Pods of
    Indexed Jobs are called `JOB-GROUP-NUMBER`. NUMBER counts within the group."""
    pod = "-0" if jobset else ""
    return {
        node: f"{name}-{group.name}-{i}{pod}.{name}"
        for group in groups
        for i, node in enumerate(group.nodes)
    }


def _letters(name: str) -> str:
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")


def _cut(label: str, limit: int, name: str) -> str:
    """Return a label of at most `limit` letters. A shortened label gets a hash of `name`."""
    return label if len(label) <= limit else _with_digest(label, limit, name)


def _with_digest(label: str, limit: int, name: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()[:5]
    return f"{label[: limit - 6].rstrip('-')}-{digest}"
