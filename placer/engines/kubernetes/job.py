"""A job in a cluster: making, stopping and deleting its objects."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from placer.engines.kubernetes.groups import Group
from placer.engines.kubernetes.kubectl import TIMEOUT, Kubectl, KubectlError
from placer.engines.kubernetes.manifests import CONTAINER, labels
from placer.engines.kubernetes.pods import Pods, read_pods
from placer.runtime.run.signals import STOP_SIGNAL

END_TIMEOUT: Final = 40.0
"""Seconds that pods have to end when the job is deleted."""


@dataclass(frozen=True, slots=True)
class KubernetesJob:
    """A job in a cluster; see `Job`.

    Attributes:
        kubectl: how to reach the cluster.
        name: the name of its objects, or its beginning.
        groups: its nodes.
        jobset: whether it is a JobSet.
        has_build: whether the build goes with it.
        keep: whether it stays in the cluster when the run has ended.
        folder: none: the launcher writes the logs.
        cancelled: is set when it was cancelled.
    """

    kubectl: Kubectl
    name: str
    groups: tuple[Group, ...]
    jobset: bool
    has_build: bool
    keep: bool
    folder: Path | None = None
    cancelled: threading.Event = field(
        default_factory=threading.Event, compare=False, repr=False
    )

    @property
    def title(self) -> str:
        """What the job is called."""
        kind = "JobSet" if self.jobset else "jobs"
        namespace = self.kubectl.namespace
        return f"{kind} {self.name}" + (f" in {namespace}" if namespace else "")

    @property
    def cancel_command(self) -> str:
        """The command that deletes the job."""
        return shlex.join(self.kubectl.words("delete", *self._objects))

    @property
    def described(self) -> str:
        """The object that makes the pods, as a command names it."""
        return f"jobset {self.name}" if self.jobset else f"jobs -l {self.selector}"

    @property
    def selector(self) -> str:
        """The labels of its objects."""
        return ",".join(f"{name}={value}" for name, value in labels(self.name).items())

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of its nodes; the first is the control node."""
        return tuple(node for group in self.groups for node in group.nodes)

    @property
    def _objects(self) -> list[str]:
        """The objects of its files, such as `secret/digits-key`."""
        if self.jobset:
            found = [f"jobset/{self.name}"]
        else:
            found = [f"job/{self.name}-{group.name}" for group in self.groups]
            found.append(f"service/{self.name}")
        if self.has_build:
            found.append(f"configmap/{self.name}-build")
        return [*found, f"secret/{self.name}-key"]

    def create(self, files: Sequence[Path]) -> None:
        """Make the objects of these files; if one cannot be made, none stay.

        Raises KubectlError.
        """
        words = [f"--filename={file}" for file in files]
        try:
            self.kubectl.run("create", "--output=name", *words)
        except KubectlError as error:
            if made := error.printed.decode(errors="replace").split():
                with suppress(KubectlError):
                    self.kubectl.run("delete", "--wait=false", *made)
            raise

    def pods(self) -> Pods:
        """Return the state of the pods. Raises KubectlError."""
        kind = "jobsets.jobset.x-k8s.io" if self.jobset else "jobs.batch"
        words = ("get", f"pods,{kind}", f"--selector={self.selector}", "--output=json")
        return read_pods(self.kubectl.run(*words), self.groups)

    def stop(self) -> None:
        """Ask the nodes to stop after the same step: by a signal to the control node, or
        by the end of its pod where users may not run commands in pods, or where it has
        not begun. Raises KubectlError."""
        control = self.pods().pods.get(self.nodes[0])
        if control is None or control.end is not None:
            return
        number = STOP_SIGNAL.value
        signal = ("--container", CONTAINER, "--", "sh", "-c", f"kill -{number} 1")
        try:
            self.kubectl.run("exec", control.name, *signal)
        except KubectlError:
            pod = f"pod/{control.name}"
            self.kubectl.run("delete", pod, "--wait=false", "--ignore-not-found")

    def delete(self) -> None:
        """Delete the objects of the job. Raises KubectlError."""
        self.kubectl.run("delete", "--wait=false", "--ignore-not-found", *self._objects)

    def cancel(self) -> None:
        """Delete the objects of the job, and end its pods. Raises KubectlError if they
        have not ended after a while."""
        self.delete()
        self.kubectl.run(
            "delete",
            "pods",
            f"--selector={self.selector}",
            "--grace-period=1",  # instead of the time to save
            f"--timeout={END_TIMEOUT:.0f}s",
            timeout=END_TIMEOUT + TIMEOUT,
        )
        self.cancelled.set()
