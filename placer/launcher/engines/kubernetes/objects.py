"""Objects of Kubernetes, read from the output of `kubectl get --output=json`.

The names and types are those of the Kubernetes API. Unused fields are omitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field


class Owner(Struct, frozen=True):
    """The object that created another one."""

    kind: str
    name: str
    uid: str


class Metadata(Struct, frozen=True, rename="camel"):
    """Metadata of any object."""

    name: str
    uid: str
    created: str = field(name="creationTimestamp")
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    owner_references: Sequence[Owner] | None = None

    @property
    def is_deleted(self) -> bool:
        """True if the object is being deleted."""
        return self.deletion_timestamp is not None

    def owner(self, kind: str) -> Owner | None:
        """Return the object of a kind that created this one."""
        owners = self.owner_references or ()
        return next((each for each in owners if each.kind == kind), None)


class Condition(Struct, frozen=True):
    """A condition of a pod, a Job or a JobSet; `status` is True, False or Unknown."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class Waiting(Struct, frozen=True):
    """The reason why a container does not start."""

    reason: str = ""
    message: str = ""


class Terminated(Struct, frozen=True, rename="camel"):
    """The end of a container."""

    exit_code: int
    reason: str = ""
    message: str = ""
    finished_at: str | None = None


class ContainerState(Struct, frozen=True):
    """The state of a container; at most one field is set."""

    waiting: Waiting | None = None
    running: Mapping[str, Any] | None = None
    terminated: Terminated | None = None


class ContainerStatus(Struct, frozen=True):
    """The status of a container of a pod. A service mesh adds containers."""

    name: str
    state: ContainerState | None = None


class Resources(Struct, frozen=True):
    """The resources that a container may use."""

    limits: Mapping[str, str | int] | None = None


class Container(Struct, frozen=True):
    """A container of a pod."""

    name: str
    resources: Resources | None = None


class Spec(Struct, frozen=True, rename="camel"):
    """The desired state of a pod, a Job or a JobSet."""

    node_name: str = ""
    containers: Sequence[Container] | None = None
    suspend: bool | None = None


class Status(Struct, frozen=True, rename="camel"):
    """The actual state of a pod, a Job or a JobSet."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: Sequence[Condition] | None = None
    container_statuses: Sequence[ContainerStatus] | None = None


class Object(Struct, frozen=True):
    """A pod, a Job or a JobSet."""

    kind: str
    metadata: Metadata
    spec: Spec = Spec()
    status: Status = Status()


class InvolvedObject(Struct, frozen=True):
    """The object that an event is about."""

    name: str = ""


class ClusterEvent(Struct, frozen=True, rename="camel"):
    """An event of the cluster about an object."""

    involved_object: InvolvedObject
    reason: str = ""
    message: str = ""
    last_timestamp: str | None = None


class EventList(Struct, frozen=True):
    """A list of events."""

    items: Sequence[ClusterEvent]


class ObjectList(Struct, frozen=True):
    """A list of objects of several kinds."""

    items: Sequence[Object]
