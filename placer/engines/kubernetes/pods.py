"""The state of the pods of a job, from what `kubectl get --output=json` prints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from placer.engines.kubernetes.groups import Group
from placer.engines.kubernetes.manifests import COMPLETION_INDEX, COMPONENT, JOB_INDEX
from placer.runtime.run.signals import status_of_shell

_NORMAL: Final = ("", "ContainerCreating", "PodInitializing")
"""Why a container waits if all is well."""
_SILENT: Final = ("", "Completed", "Error")
"""Why a container has ended if its exit status says as much."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of a container, and when it was; see `NodeEnded`."""

    status: int | None
    why: str
    time: str = ""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of a job.

    Attributes:
        node: the node that it is.
        name: its name.
        uid: tells it from an earlier pod of that name.
        host: the machine that it is on, or empty.
        has_log: whether its container has begun, so that it has a log.
        waiting: why the container does not begin, and what Kubernetes says about it, if
            that is no normal part of its start.
        deleted: the seconds that it has to end, if it is being deleted.
        end: the end of its container.
    """

    node: str
    name: str
    uid: str
    host: str
    has_log: bool
    waiting: tuple[str, str] | None
    deleted: float | None
    end: End | None


@dataclass(frozen=True, slots=True)
class Pods:
    """The state of a job.

    Attributes:
        pods: the newest pod of each node that has one.
        is_there: whether the JobSet, or a Job, is there.
        over: the groups of which no more pods are made, since their Job, or the JobSet,
            has ended; and whether that has succeeded.
        suspended: whether it waits to be admitted, as by a queue.
    """

    pods: Mapping[str, Pod]
    is_there: bool
    over: Mapping[str, bool]
    suspended: bool


def read_pods(printed: bytes, groups: Sequence[Group]) -> Pods:
    """Read a list of pods with the JobSet, or the Jobs, of a job."""
    by_name = {group.name: group for group in groups}
    items = json.loads(printed)["items"]
    pods = [item for item in items if item["kind"] == "Pod"]
    pods.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))
    newest: dict[str, Pod] = {}
    for item in pods:
        if (node := _node(item["metadata"], by_name)) is not None:
            newest[node] = _pod(item, node)
    jobs = [item for item in items if item["kind"] in ("JobSet", "Job")]
    over: dict[str, bool] = {}
    for job in jobs:
        if (success := _success(job)) is not None:
            own = job["metadata"].get("labels", {}).get(COMPONENT)
            names = [own] if job["kind"] == "Job" else by_name
            over.update(dict.fromkeys(names, success))
    suspended = any(job["spec"].get("suspend") for job in jobs)
    return Pods(newest, bool(jobs), over, suspended)


def _node(metadata: Mapping[str, Any], groups: Mapping[str, Group]) -> str | None:
    labels = metadata.get("labels", {})
    group = groups.get(labels.get(COMPONENT, ""))
    number = labels.get(JOB_INDEX) or metadata.get("annotations", {}).get(
        COMPLETION_INDEX
    )
    if group is None or number is None or not 0 <= int(number) < group.count:
        return None
    return group.nodes[int(number)]


def _pod(item: Mapping[str, Any], node: str) -> Pod:
    metadata, spec, status = item["metadata"], item["spec"], item.get("status", {})
    containers = status.get("containerStatuses") or [{}]
    state = containers[0].get("state", {})
    deleted = None
    if "deletionTimestamp" in metadata:
        deleted = float(metadata.get("deletionGracePeriodSeconds") or 0)
    return Pod(
        node,
        metadata["name"],
        metadata["uid"],
        spec.get("nodeName", ""),
        "running" in state or "terminated" in state,
        _waiting(status, state),
        deleted,
        _end(status, state, spec),
    )


def _waiting(
    status: Mapping[str, Any], state: Mapping[str, Any]
) -> tuple[str, str] | None:
    if status.get("phase", "Pending") != "Pending":
        return None
    waiting = state.get("waiting", {})
    if waiting.get("reason", "") not in _NORMAL:
        return waiting["reason"], waiting.get("message", "")
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return condition.get("reason", ""), condition.get("message", "")
    return None


def _end(
    status: Mapping[str, Any], state: Mapping[str, Any], spec: Mapping[str, Any]
) -> End | None:
    ended = state.get("terminated")
    if ended is None and status.get("phase") not in ("Failed", "Succeeded"):
        return None
    reason = (ended or {}).get("reason", "")
    parts = [] if reason in _SILENT else [reason]
    if reason == "OOMKilled":
        limits = spec["containers"][0].get("resources", {}).get("limits", {})
        parts = [f"OOMKilled: it may use {limits.get('memory', 'no more')} of memory"]
    parts += [(ended or {}).get("message", "")]
    parts += [status.get("reason", ""), status.get("message", "")]  # such as Evicted
    why = ": ".join(" ".join(part.split()) for part in parts if part)
    if ended is None:
        return End(None, why or "its container did not begin")
    return End(status_of_shell(ended["exitCode"]), why, ended.get("finishedAt") or "")


def _success(job: Mapping[str, Any]) -> bool | None:
    """Whether a Job or a JobSet has succeeded; None if it has not ended."""
    for condition in job.get("status", {}).get("conditions") or ():
        kind, is_so = condition["type"], condition["status"] == "True"
        if is_so and kind in ("Complete", "Completed", "Failed"):
            return bool(kind != "Failed")
    return None
