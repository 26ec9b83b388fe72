"""The nodes of a job on Kubernetes in groups that have one pod template, and their names.

A name of Kubernetes that becomes a part of a host's name is a label of DNS: at most 63 of
a-z, 0-9 and `-`, the first one a letter (RFC 1035).
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
"""The letters of a label of DNS at most."""
_MAX_KIND: Final = 20
"""The letters of a kind in names at most."""
_SUFFIX: Final = len("-abcde")
"""The letters that Kubernetes adds to the name of a pod."""


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes of a kind, with consecutive numbers, that need the same.

    Attributes:
        name: such as `worker`, or `worker-2-3` if other workers need something else.
        kind: such as `worker`.
        first: the number of the first node.
        count: the number of nodes.
        needs: what each of them needs.
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
            if name in groups:  # of the kinds `a_b` and `a__b`
                name = _with_digest(name, _MAX_KIND, f"{kind}{numbers}")
            groups[name] = Group(name, kind, first, len(run), needs[run[0]])
    return tuple(groups.values())


def _runs(
    nodes: Sequence[NodeId], needs: Mapping[str, Needs]
) -> Iterator[list[NodeId]]:
    """Yield the nodes of a kind in runs of those that need the same."""
    run: list[NodeId] = []
    for node in sorted(nodes, key=lambda node: node.number):
        if run and needs[node] != needs[run[0]]:
            yield run
            run = []
        run.append(node)
    yield run


def job_name(name: str, groups: Sequence[Group]) -> str:
    """Return the name of the objects of a job: that of the job, in letters that names of
    hosts may have, and short enough for the names of its pods."""
    rest = max(len(f"-{group.name}-{group.count - 1}-0") for group in groups)
    label = _letters(name)
    if not label[:1].isalpha():
        label = f"run-{label}".rstrip("-")
    return _cut(label, MAX_LABEL - _SUFFIX - rest, name)


def host_names(name: str, groups: Sequence[Group], jobset: bool) -> dict[str, str]:
    """Return the name in the cluster's DNS, within the namespace, of the pod of each
    node of a job.

    Pods of a JobSet are `JOB-GROUP-NUMBER-0`: a Job each, with the pod 0. Those of
    Indexed Jobs are `JOB-GROUP-NUMBER`. The number is that within the group.
    """
    pod = "-0" if jobset else ""
    return {
        node: f"{name}-{group.name}-{i}{pod}.{name}"
        for group in groups
        for i, node in enumerate(group.nodes)
    }


def _letters(name: str) -> str:
    """Return a name with `-` for all that labels do not have."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")


def _cut(label: str, limit: int, name: str) -> str:
    """Return a label of at most `limit` letters; `name` makes one that is cut unique."""
    return label if len(label) <= limit else _with_digest(label, limit, name)


def _with_digest(label: str, limit: int, name: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()[:5]
    return f"{label[: limit - 6].rstrip('-')}-{digest}"
