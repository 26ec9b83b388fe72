"""Creates, stops and deletes the objects of a Kubernetes job."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from placer.launcher.engines.kubernetes.groups import Group
from placer.launcher.engines.kubernetes.kubectl import TIMEOUT, Kubectl, KubectlError
from placer.launcher.engines.kubernetes.manifests import CONTAINER, JOBSET_NAME, labels
from placer.launcher.engines.kubernetes.pods import (
    Identity,
    Pods,
    read_pods,
    read_warnings,
)
from placer.runtime.signals.signals import STOP_SIGNAL

END_TIMEOUT: Final = 40.0
"""Seconds that pods have to end when the job is deleted."""
_SOON: Final = 5.0
"""Seconds for an answer that the job can be followed without."""
_BROKEN: Final = re.compile("EOF|reset by peer|[Tt]imeout(?!=)|broken pipe")
"""Parts of errors that mean that a connection ended before the answer. `timeout=` is
excluded, because it is part of the address of a request."""
_MADE: Final = 'jsonpath={.kind} {.metadata.name} {.metadata.uid} {.metadata.creationTimestamp}{"\\n"}'
"""The format in which kubectl prints an object that it has created."""


@dataclass(frozen=True, slots=True)
class KubernetesJob:
    """A job in a cluster; see `Job`.

    Attributes:
        kubectl: runs kubectl for the cluster.
        identity: distinguishes the job from other jobs.
        has_build: True if the build is sent with the job.
        keep: True if the job stays in the cluster after the run.
        restarts: True if pods that have failed are made again.
        folder: always None: the launcher writes the logs.
        cancelling: set when the job is being cancelled.
        cancelled: set when the job was cancelled.
        replaced: set when another job has its name, so this job no longer exists.
    """

    kubectl: Kubectl
    identity: Identity
    has_build: bool
    keep: bool
    restarts: bool = False
    folder: Path | None = None
    cancelling: threading.Event = field(
        default_factory=threading.Event, compare=False, repr=False
    )
    cancelled: threading.Event = field(
        default_factory=threading.Event, compare=False, repr=False
    )
    replaced: threading.Event = field(
        default_factory=threading.Event, compare=False, repr=False
    )

    @property
    def name(self) -> str:
        """The name of its objects, or the beginning of their names."""
        return self.identity.name

    @property
    def groups(self) -> Sequence[Group]:
        """Its nodes."""
        return self.identity.groups

    @property
    def title(self) -> str:
        """The name of the job for the user."""
        kind = "JobSet" if self.identity.jobset else "jobs"
        namespace = self.kubectl.namespace
        return f"{kind} {self.name}" + (f" in {namespace}" if namespace else "")

    @property
    def cancel_command(self) -> str:
        """The command that deletes the job."""
        return shlex.join(self.kubectl.words("delete", *self._objects))

    @property
    def events_command(self) -> str:
        """The command that shows the cluster's events for all objects."""
        return shlex.join(self.kubectl.words("get", "events"))

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of its nodes; the first is the control node."""
        return tuple(node for group in self.groups for node in group.nodes)

    @property
    def _selector(self) -> str:
        return ",".join(f"{name}={value}" for name, value in labels(self.name).items())

    @property
    def _made_by(self) -> str:
        """The labels of the Jobs and pods that Kubernetes creates for the job."""
        if self.identity.jobset:
            return f"{JOBSET_NAME}={self.name}"
        return self._selector

    @property
    def _objects(self) -> list[str]:
        """The objects in its files, such as `secret/digits-key`."""
        names = self.identity.names
        if self.identity.jobset:
            found = [f"jobset/{name}" for name in names]
        else:
            found = [*(f"job/{name}" for name in names), f"service/{self.name}"]
        if self.has_build:
            found.append(f"configmap/{self.name}-build")
        return [*found, f"secret/{self.name}-key"]

    def create(self, files: Sequence[Path]) -> None:
        """Create the objects in these files. If one fails, delete the others. Raises
        KubectlError if an object cannot be created."""
        words = [f"--filename={file}" for file in files]
        try:
            printed = self.kubectl.run("create", f"--output={_MADE}", *words)
        except KubectlError as error:
            made = [name for name, *_ in self._read_made(error.printed)]
            raise self._undone(error, made) from None
        for name, uid, created in self._read_made(printed):
            if name.startswith(("job/", "jobset/")):
                self.identity.add(uid, created)
        if not self.identity.uids:
            raise KubectlError(
                "`kubectl create` did not print the created objects: "
                f"{printed[:200]!r}",
                hint=f"this deletes it: {self.cancel_command}",
            )

    def _read_made(self, printed: bytes) -> list[tuple[str, str, str]]:
        """Return the name, the uid and the creation time of the created job."""
        found = []
        for line in printed.decode(errors="replace").splitlines():
            parts = line.split(" ")
            name = "/".join(parts[:2]).lower()
            if len(parts) == 4 and name in self._objects:
                found.append((name, parts[2], parts[3]))
        return found

    def _undone(self, error: KubectlError, made: Sequence[str]) -> KubectlError:
        """Delete the created objects of a job, and return the error with the reason."""
        broken = _BROKEN.search(error.message) is not None
        may_be_there = error.has_timed_out or broken
        if made:
            try:
                self.kubectl.run("delete", "--wait=false", "--ignore-not-found", *made)
            except KubectlError:
                may_be_there = True
        if not may_be_there:
            return error
        hint = f"some objects may be left; delete them with: {self.cancel_command}"
        return KubectlError(error.message, hint=hint)

    def pods(self) -> Pods:
        """Return the state of the pods. Raises KubectlError if kubectl fails."""
        kind = "jobsets.jobset.x-k8s.io" if self.identity.jobset else "jobs.batch"
        words = (f"pods,{kind}", f"--selector={self._selector}", "--output=json")
        printed = self.kubectl.run("get", *words, f"--request-timeout={TIMEOUT:.0f}s")
        try:
            found = read_pods(printed, self.identity)
        except (ValueError, RecursionError) as error:
            raise KubectlError(
                f"`kubectl get` did not print a list of pods: {error}: "
                f"{printed[:80]!r}",
                hint=None,
            ) from None
        if found.is_replaced:
            self.replaced.set()
        return found

    def warnings(self) -> Mapping[str, str]:
        """Return the cluster's last warning about each object, by the name of the
        object. Return an empty dict if the cluster does not answer."""
        words = ("--field-selector=type=Warning", "--output=json")
        try:
            printed = self.kubectl.run("get", "events", *words, timeout=_SOON)
            return read_warnings(printed)
        except (KubectlError, ValueError, RecursionError):
            return {}

    def stop(self) -> None:
        """Ask the nodes to stop after the same step. The control node receives a
        signal. If the user may not run commands in pods, or its container has not
        started, its pod is deleted instead, unless it would be made again. Raises
        KubectlError if kubectl fails."""
        control = self.pods().pods.get(self.nodes[0])
        if control is None or control.end is not None:
            return
        number = STOP_SIGNAL.value
        signal = ("--container", CONTAINER, "--", "sh", "-c", f"kill -{number} 1")
        try:
            self.kubectl.run("exec", control.name, *signal)
        except KubectlError:
            if self.restarts:
                raise
            pod = f"pod/{control.name}"
            self.kubectl.run("delete", pod, "--wait=false", "--ignore-not-found")

    def delete(self) -> None:
        """Delete the objects of the job. Raises KubectlError if kubectl fails."""
        if not self.replaced.is_set():
            words = ("--wait=false", "--ignore-not-found")
            self.kubectl.run("delete", *words, *self._objects)

    def cancel(self) -> None:
        """Delete the objects of the job, and end its pods. Raises KubectlError if the
        pods do not end in time."""
        self.cancelling.set()
        self.delete()
        if not self.replaced.is_set():
            self.kubectl.run(
                "delete",
                "pods",
                f"--selector={self._made_by}",
                "--grace-period=1",  # Do not wait for the nodes to save.
                f"--timeout={END_TIMEOUT:.0f}s",
                timeout=END_TIMEOUT + TIMEOUT,
            )
        self.cancelled.set()
