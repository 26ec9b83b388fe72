"""The state of the pods of a job, from the output of `kubectl get --output=json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from placer.launcher.engines.kubernetes.groups import Group
from placer.launcher.engines.kubernetes.manifests import (
    COMPLETION_INDEX,
    COMPONENT,
    CONTAINER,
    DISRUPTED,
    JOBSET_UID,
)
from placer.launcher.engines.kubernetes.objects import (
    Condition,
    ContainerState,
    EventList,
    Metadata,
    Object,
    ObjectList,
    Owner,
    Status,
)
from placer.runtime.signals.signals import status_of_shell

_NORMAL: Final = ("", "ContainerCreating", "PodInitializing")
"""Reasons of a waiting container during a normal start."""
_SILENT: Final = ("", "Completed", "Error")
"""Reasons of an ended container that say no more than its exit status."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of a container and its time; see `NodeEnded`."""

    status: int | None
    why: str
    time: str = ""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of a job.

    Attributes:
        node: the node in the pod.
        name: the name of the pod.
        uid: distinguishes the pod from an earlier one with the same name.
        host: the machine of the pod, or "".
        has_log: True if its container has started, so that it has a log.
        waiting: the reason and the message of a container that does not start, unless
            this is part of a normal start.
        deleted: the seconds that the pod has to end, if it is being deleted.
        disrupted: the reason why Kubernetes ends the pod, or "".
        end: the end of its container.
    """

    node: str
    name: str
    uid: str
    host: str
    has_log: bool
    waiting: tuple[str, str] | None
    deleted: float | None
    disrupted: str
    end: End | None


@dataclass(frozen=True, slots=True)
class Pods:
    """The state of a job.

    Attributes:
        pods: the newest pod of each node that has one.
        earlier: the other pods, by uid.
        is_there: True if the JobSet, or a Job, exists.
        is_replaced: True if a later job with the same name exists.
        over: True or False for a group whose Job, or the JobSet, has succeeded or failed.
            No more pods are created for these groups.
        suspended: True if the job waits to be admitted, for example by a queue.
    """

    pods: Mapping[str, Pod]
    earlier: Mapping[str, Pod]
    is_there: bool
    is_replaced: bool
    over: Mapping[str, bool]
    suspended: bool


@dataclass(slots=True)
class Identity:
    """Distinguishes a job and its pods from other jobs with the same name and labels.

    For example, the pods of an earlier job may still be ending.

    Args:
        name: the name of the JobSet, or the beginning of the names of the Jobs.
        groups: the nodes of the job.
        jobset: True for a JobSet, False for Jobs.

    Attributes:
        uids: the uids of the JobSet, or of the Jobs.
        created: the creation time of the first of them, such as 2026-11-28T18:00:00Z.
    """

    name: str
    groups: Sequence[Group]
    jobset: bool
    uids: set[str] = field(default_factory=set)
    created: str = "~"

    def add(self, uid: str, created: str) -> None:
        """Add the JobSet, or a Job, that was created."""
        self.uids.add(uid)
        self.created = min(self.created, created)

    @property
    def names(self) -> list[str]:
        """The name of the JobSet, or the names of the Jobs."""
        if self.jobset:
            return [self.name]
        return [f"{self.name}-{group.name}" for group in self.groups]

    def nodes(self) -> dict[tuple[str, str], str]:
        """Return the nodes by the name of the Job of their pod and the number of the
        pod. The number is "" if the Job has only one pod."""
        if self.jobset:
            return {
                (f"{self.name}-{group.name}-{i}", ""): node
                for group in self.groups
                for i, node in enumerate(group.nodes)
            }
        return {
            (f"{self.name}-{group.name}", str(i)): node
            for group in self.groups
            for i, node in enumerate(group.nodes)
        }


def read_pods(printed: bytes, job: Identity) -> Pods:
    """Read a list of pods with the JobSet, or the Jobs, of a job. Raises ValueError if
    the text is not such a list."""
    items = msgspec.json.decode(printed, type=ObjectList).items
    kind = "JobSet" if job.jobset else "Job"
    named = [i for i in items if i.kind == kind and i.metadata.name in job.names]
    jobs = [each for each in named if each.metadata.uid in job.uids]
    later = [
        each.metadata.created
        for each in named
        if each.metadata.uid not in job.uids and each.metadata.created >= job.created
    ]
    until = min(later, default="~")
    pods = [each for each in items if each.kind == "Pod"]
    pods.sort(key=lambda pod: (pod.metadata.created, not pod.metadata.is_deleted))
    nodes = job.nodes()
    newest: dict[str, Pod] = {}
    earlier: dict[str, Pod] = {}
    for item in pods:
        owner = item.metadata.owner("Job")
        if owner is None or not _is_of(item.metadata, owner, job, until):
            continue
        number = (item.metadata.annotations or {}).get(COMPLETION_INDEX, "")
        node = nodes.get((owner.name, "" if job.jobset else number))
        if node is None:
            continue
        if node in newest:
            earlier[newest[node].uid] = newest[node]
        newest[node] = _pod(item, node)
    over: dict[str, bool] = {}
    for each in jobs:
        if (success := _success(each.status)) is not None:
            own = (each.metadata.labels or {}).get(COMPONENT, "")
            names = [group.name for group in job.groups] if job.jobset else [own]
            over.update(dict.fromkeys(names, success))
    suspended = any(each.spec.suspend for each in jobs)
    return Pods(newest, earlier, bool(jobs), bool(later), over, suspended)


def _is_of(pod: Metadata, owner: Owner, job: Identity, until: str) -> bool:
    """Return True if a pod belongs to this job, not an earlier or later one of its name."""
    uid = (pod.labels or {}).get(JOBSET_UID) if job.jobset else owner.uid
    if uid is not None:
        return uid in job.uids
    # The times come from clocks of API servers, in whole seconds.
    return job.created <= pod.created < until


def _pod(item: Object, node: str) -> Pod:
    metadata, status = item.metadata, item.status
    containers = status.container_statuses or ()
    state = next((c.state for c in containers if c.name == CONTAINER), None)
    state = state or ContainerState()
    deleted = None
    if metadata.is_deleted:
        deleted = float(metadata.deletion_grace_period_seconds or 0)
    disruption = _condition(status, DISRUPTED, "True")
    return Pod(
        node,
        metadata.name,
        metadata.uid,
        item.spec.node_name,
        state.running is not None or state.terminated is not None,
        _waiting(status, state),
        deleted,
        joined(disruption.reason, disruption.message) if disruption else "",
        _end(item, state),
    )


def _condition(status: Status, kind: str, value: str) -> Condition | None:
    found = (c for c in status.conditions or () if (c.type, c.status) == (kind, value))
    return next(found, None)


def _waiting(status: Status, state: ContainerState) -> tuple[str, str] | None:
    if status.phase not in ("", "Pending"):
        return None
    if state.waiting is not None and state.waiting.reason not in _NORMAL:
        return state.waiting.reason, state.waiting.message
    unscheduled = _condition(status, "PodScheduled", "False")
    return None if unscheduled is None else (unscheduled.reason, unscheduled.message)


def _end(item: Object, state: ContainerState) -> End | None:
    status, ended = item.status, state.terminated
    if ended is None and status.phase not in ("Failed", "Succeeded"):
        return None
    # The reason can be `Evicted`, for example.
    why = joined(status.reason, status.message)
    disruption = _condition(status, DISRUPTED, "True")
    if disruption is not None and not why:
        why = joined(disruption.reason, disruption.message)
    if ended is None:
        return End(None, why or "its container did not start")
    reason = "" if ended.reason in _SILENT else ended.reason
    if reason == "OOMKilled":
        containers = item.spec.containers or ()
        own = next((c for c in containers if c.name == CONTAINER), None)
        limits = (own and own.resources and own.resources.limits) or {}
        reason = f"OOMKilled: its memory limit is {limits.get('memory', 'unknown')}"
    code = status_of_shell(ended.exit_code)
    return End(code, joined(reason, ended.message, why), ended.finished_at or "")


def joined(*parts: str) -> str:
    """Join parts of a message of Kubernetes into one line."""
    return ": ".join(" ".join(part.split()) for part in parts if part)


def _success(status: Status) -> bool | None:
    """Return True if a Job or JobSet succeeded, False if it failed, None before its end."""
    if _condition(status, "Failed", "True"):
        return False
    done = (_condition(status, kind, "True") for kind in ("Complete", "Completed"))
    return True if any(done) else None


def read_warnings(printed: bytes) -> dict[str, str]:
    """Return the last warning about each object, by its name, from a list of events.
    Raises ValueError if the text is not such a list."""
    events = msgspec.json.decode(printed, type=EventList).items
    found = {}
    for event in sorted(events, key=lambda event: event.last_timestamp or ""):
        found[event.involved_object.name] = joined(event.reason, event.message)
    return found
