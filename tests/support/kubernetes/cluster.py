"""A cluster of processes: it reads manifests, and starts their pods on this machine.

It has what jobs of placer use, and no more: JobSets, Indexed Jobs, headless Services,
ConfigMaps and Secrets. `reconcile` compares what is with what should be, as controllers of
Kubernetes do. Pods are real processes (`Pod`), each with an address and a name.
"""

from __future__ import annotations

import itertools
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from support.hosts import Host, network
from support.kubernetes.pod import Image, Object, Pod, content_of, now, write_volume

Key = tuple[str, str]
"""The kind and the name of an object."""
_LABEL = re.compile("[a-z]([-a-z0-9]*[a-z0-9])?")
_VALUE = re.compile("([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_JOBSET = "jobset.sigs.k8s.io/"
_INDEX = "batch.kubernetes.io/job-completion-index"
PLURALS = {
    "ConfigMap": "configmaps",
    "Secret": "secrets",
    "Service": "services",
    "Job": "jobs.batch",
    "JobSet": "jobsets.jobset.x-k8s.io",
}


class Refused(Exception):  # noqa: N818 - an answer
    """What the cluster says to a request that it refuses."""


class Cluster:
    """A cluster with one namespace.

    Args:
        folder: for the files of pods.
        add_host: makes the network of a pod.
        images: by name; a pod with another one waits.
        claims: the folders of PersistentVolumeClaims.
        gpus: the number of GPUs.
        has_jobset: whether JobSet is installed.
    """

    def __init__(
        self,
        folder: Path,
        add_host: Callable[[str], Host],
        images: Mapping[str, Image],
        claims: Mapping[str, Path],
        gpus: int,
        has_jobset: bool,
    ) -> None:
        self.folder, self.images, self.claims = folder, images, claims
        self.gpus, self.has_jobset = gpus, has_jobset
        self.objects: dict[Key, Object] = {}
        self.warnings: list[Object] = []
        self.pods: dict[str, Pod] = {}
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._add_host = add_host
        self._addresses: dict[str, str] = {}
        self._pods_of: dict[str, dict[int, Pod]] = {}  # by uid of the Job, and number
        self._uids = itertools.count(1)
        self._is_closed = False
        self._hosts_file = folder / "hosts"
        self._hosts_file.write_text("127.0.0.1 localhost\n")

    def create(self, given: Object) -> Object:
        """Make an object, and return it."""
        kind, name = given["kind"], given["metadata"]["name"]
        with self.lock:
            if kind == "JobSet" and not self.has_jobset:
                raise Refused(
                    f'resource mapping not found for name: "{name}" namespace: "" from'
                    ' "run.yaml": no matches for kind "JobSet" in version'
                    ' "jobset.x-k8s.io/v1alpha2"\nensure CRDs are installed first'
                )
            if (kind, name) in self.objects:
                raise Refused(
                    "Error from server (AlreadyExists): error when creating"
                    f' "run.yaml": {PLURALS[kind]} "{name}" already exists'
                )
            _check(given)
            made = self._add(given)
            self.reconcile()
        return made

    def delete(self, kind: str, name: str) -> bool:
        """Delete an object; return whether it was there."""
        with self.lock:
            if self.objects.pop((kind, name), None) is None:
                return False
            self.reconcile()
            return True

    def delete_pod(self, pod: Pod, grace: float | None = None) -> None:
        """Delete a pod: its container gets SIGTERM, and after its time SIGKILL."""
        with self.lock:
            self._delete_pod(pod, grace)
            self.reconcile()

    def evict_pod(self, pod: Pod, reason: str) -> None:
        """Delete a pod, as Kubernetes does to make room, or to drain its machine."""
        with self.lock:
            condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
            pod.object["status"]["conditions"] = [condition]
            self.delete_pod(pod)

    def pod(self, begin: str) -> Pod:
        """Return the newest pod whose name begins like this."""
        with self.lock:
            return [p for p in self.pods.values() if p.name.startswith(begin)][-1]

    def wait(self, is_so: Callable[[], bool], within: float = 60.0) -> None:
        """Wait for a state of the cluster."""
        with self.lock:
            assert self.changed.wait_for(is_so, within), "the state was not reached"

    def close(self) -> None:
        """Kill all pods."""
        with self.lock:
            self._is_closed = True
            pods = [*self.pods.values()]
        for pod in pods:
            pod.close()

    def reconcile(self) -> None:
        """Do what follows from the state, until nothing follows."""
        with self.lock:
            before = None
            while before != (before := self._state()) and not self._is_closed:
                for key, given in [*self.objects.items()]:
                    if key in self.objects and key[0] == "JobSet":
                        self._reconcile_jobset(given)
                for key, given in [*self.objects.items()]:
                    if key in self.objects and key[0] == "Job":
                        self._reconcile_job(given)
                self._collect_garbage()
            self.changed.notify_all()

    def _state(self) -> object:
        """What `reconcile` changes."""
        jobs = [(k, str(o["status"])) for k, o in self.objects.items()]
        return jobs, [(u, p.is_deleted) for u, p in self.pods.items()]

    def _delete_pod(self, pod: Pod, grace: float | None = None) -> None:
        spec, metadata = pod.object["spec"], pod.object["metadata"]
        if grace is None:
            grace = spec.get("terminationGracePeriodSeconds", 30)
        if metadata.get("deletionGracePeriodSeconds", grace + 1) <= grace:
            return
        metadata["deletionTimestamp"] = now()
        metadata["deletionGracePeriodSeconds"] = grace
        if pod.process is None or pod.has_ended:
            del self.pods[metadata["uid"]]
            return
        pod.signal(signal.SIGTERM)
        timer = threading.Timer(grace, pod.signal, (signal.SIGKILL,))
        timer.daemon = True
        timer.start()

    def _add(self, given: Object) -> Object:
        uid = f"uid-{next(self._uids)}"
        metadata = {**given["metadata"], "uid": uid, "creationTimestamp": _second()}
        added = {**given, "metadata": metadata, "status": {"conditions": []}}
        self.objects[given["kind"], metadata["name"]] = added
        return added

    def _reconcile_jobset(self, jobset: Object) -> None:
        name, spec = jobset["metadata"]["name"], jobset["spec"]
        mine = [
            o for o in self.objects.values() if _owner(o) == jobset["metadata"]["uid"]
        ]
        jobs = {job["metadata"]["name"]: job for job in mine if job["kind"] == "Job"}
        if not has_ended(jobset):
            targets = [
                f"{name}-{each['name']}-{i}"
                for each in spec["replicatedJobs"]
                for i in range(each["replicas"])
                if each["name"] in spec["successPolicy"]["targetReplicatedJobs"]
            ]
            assert spec["successPolicy"]["operator"] == "All"
            if any(condition(job, "Failed") for job in jobs.values()):
                assert spec["failurePolicy"]["maxRestarts"] == 0
                _finish(jobset, "Failed")
            elif all(t in jobs and condition(jobs[t], "Complete") for t in targets):
                _finish(jobset, "Completed")
        if has_ended(jobset):
            for job in jobs.values():
                if not has_ended(job):
                    del self.objects["Job", job["metadata"]["name"]]
            return
        network = spec["network"]
        service = ("Service", network["subdomain"])
        assert network["enableDNSHostnames"]
        if service not in self.objects:
            selector = {f"{_JOBSET}jobset-name": name}
            self._add(
                {
                    "kind": "Service",
                    "metadata": {"name": service[1], "ownerReferences": _owned(jobset)},
                    "spec": {
                        "clusterIP": "None",
                        "selector": selector,
                        "publishNotReadyAddresses": network["publishNotReadyAddresses"],
                    },
                }
            )
        for each in spec["replicatedJobs"]:
            for i in range(each["replicas"]):
                if ("Job", f"{name}-{each['name']}-{i}") not in self.objects:
                    self._add(_job_of_jobset(jobset, each, i))

    def _reconcile_job(self, job: Object) -> None:
        spec, status = job["spec"], job["status"]
        assert spec["completionMode"] == "Indexed"
        assert spec["parallelism"] == spec["completions"]
        pods = self._pods_of.setdefault(job["metadata"]["uid"], {})
        if not has_ended(job):
            for index, pod in [*pods.items()]:
                if _has_failed(pod, spec):
                    del pods[index]
                    action = _action(pod, spec)
                    failed = status["failed"] = status.get("failed", 0) + (
                        action == "Count"
                    )
                    if action == "FailJob" or failed > spec["backoffLimit"]:
                        _finish(job, "Failed")
                        break
            phases = [pod.object["status"]["phase"] for pod in pods.values()]
            if phases == ["Succeeded"] * spec["completions"]:
                _finish(job, "Complete")
        if has_ended(job):
            for pod in pods.values():
                if not pod.has_ended:
                    self._delete_pod(pod)
            return
        for i in range(spec["completions"]):
            if i not in pods:
                pods[i] = self._add_pod(job, i)

    def _add_pod(self, job: Object, index: int) -> Pod:
        template, name = job["spec"]["template"], job["metadata"]["name"]
        uid = f"uid-{next(self._uids)}"
        metadata = {
            "name": f"{name}-{index}-{uid[4:]:>05}",
            "uid": uid,
            "creationTimestamp": _second(),
            "labels": {
                **template["metadata"]["labels"],
                "job-name": name,
                "batch.kubernetes.io/job-name": name,
            },
            "annotations": {_INDEX: str(index)},
            "ownerReferences": _owned(job),
        }
        spec = {**template["spec"], "hostname": f"{name}-{index}"}
        assert _LABEL.fullmatch(spec["hostname"])
        assert len(spec["hostname"]) <= 63
        (self.folder / uid).mkdir()
        pod = Pod(
            {
                "kind": "Pod",
                "metadata": metadata,
                "spec": spec,
                "status": {"phase": "Pending"},
            },
            self.folder / uid,
        )
        self.pods[uid] = pod
        container = spec["containers"][0]
        gpus = int(container["resources"]["limits"].get("nvidia.com/gpu", 0))
        if gpus > self.gpus:
            why = f"0/1 nodes are available: 1 Insufficient nvidia.com/gpu ({gpus})."
            pod.object["status"]["conditions"] = [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": why,
                }
            ]
            return pod
        spec["nodeName"] = "machine-1"
        if container["image"] not in self.images:
            why = f'Back-off pulling image "{container["image"]}"'
            waiting = {"reason": "ImagePullBackOff", "message": why}
            pod.set_state("Pending", {"waiting": waiting})
            return pod
        pod.set_state("Pending", {"waiting": {"reason": "ContainerCreating"}})
        threading.Thread(target=self._start, args=(pod,), daemon=True).start()
        return pod

    def _start(self, pod: Pod) -> None:
        """Start a pod, once what it mounts is there."""
        spec = pod.object["spec"]
        with self.lock:
            self.changed.wait_for(lambda: self._is_ready(pod) or self._is_closed)
            if self._is_closed or pod.object["metadata"]["uid"] not in self.pods:
                return
            host = self._add_host(spec["hostname"])
            group = spec["securityContext"].get("fsGroup")
            volumes = {
                volume["name"]: self._folder_of(volume, pod, group)
                for volume in spec["volumes"]
            }
            for service in [o for k, o in self.objects.items() if k[0] == "Service"]:
                selector = service["spec"]["selector"]
                name = service["metadata"]["name"]
                assert service["spec"]["clusterIP"] == "None"
                assert service["spec"]["publishNotReadyAddresses"]
                if (
                    spec.get("subdomain") == name
                    and selector.items() <= pod.labels.items()
                ):
                    self._addresses[f"{spec['hostname']}.{name}"] = host.ipv4
            self._write_hosts()
            image = self.images[spec["containers"][0]["image"]]
            pod.start(
                host, self._hosts_file, image, volumes, lambda: self._pod_ended(pod)
            )
            self.changed.notify_all()

    def _is_ready(self, pod: Pod) -> bool:
        """Whether the ConfigMaps and the Secrets of a pod are there, or it is not."""
        if pod.object["metadata"]["uid"] not in self.pods:
            return True
        needed = [_source_of(volume) for volume in pod.object["spec"]["volumes"]]
        return all(key is None or key in self.objects for key in needed)

    def _folder_of(self, volume: Object, pod: Pod, group: int | None) -> Path:
        folder = pod.folder / volume["name"]
        if "emptyDir" in volume:
            folder.mkdir()
            folder.chmod(0o777)
            return folder
        if "hostPath" in volume:
            path = Path(volume["hostPath"]["path"])
            assert path.is_dir()
            return path
        if "persistentVolumeClaim" in volume:
            return self.claims[volume["persistentVolumeClaim"]["claimName"]]
        key = _source_of(volume)
        assert key is not None
        return write_volume(folder, content_of(self.objects[key]), group)

    def _pod_ended(self, pod: Pod) -> None:
        with self.lock:
            if pod.is_deleted:
                self.pods.pop(pod.object["metadata"]["uid"], None)
            self.reconcile()

    def _write_hosts(self) -> None:
        """Write the names in place: pods have this file mounted."""
        lines = [f"{address} {name}\n" for name, address in self._addresses.items()]
        self._hosts_file.write_text("127.0.0.1 localhost\n" + "".join(lines))

    def _collect_garbage(self) -> None:
        """Delete what belongs to an object that is gone."""
        there = {o["metadata"]["uid"] for o in self.objects.values()}
        for key, each in [*self.objects.items()]:
            if (owner := _owner(each)) is not None and owner not in there:
                del self.objects[key]
        for pod in [*self.pods.values()]:
            if _owner(pod.object) not in there:
                self._delete_pod(pod)


@contextmanager
def running_cluster(
    folder: Path,
    images: Mapping[str, Image],
    *,
    claims: Mapping[str, Path] | None = None,
    gpus: int = 0,
    has_jobset: bool = True,
) -> Iterator[Cluster]:
    """Yield a cluster; see `Cluster`."""
    folder.mkdir()
    with network() as add_host, ExitStack() as exits:
        cluster = Cluster(folder, add_host, images, claims or {}, gpus, has_jobset)
        exits.callback(cluster.close)
        yield cluster


def _source_of(volume: Object) -> Key | None:
    """Return the ConfigMap or the Secret of a volume, if it is of one."""
    if "configMap" in volume:
        return "ConfigMap", volume["configMap"]["name"]
    if "secret" in volume:
        return "Secret", volume["secret"]["secretName"]
    return None


def condition(given: Object, kind: str) -> bool:
    """Whether an object has a condition."""
    return any(each["type"] == kind for each in given["status"]["conditions"])


def has_ended(given: Object) -> bool:
    """Whether a Job or a JobSet has ended."""
    return any(condition(given, kind) for kind in ("Complete", "Completed", "Failed"))


def _finish(given: Object, kind: str) -> None:
    given["status"]["conditions"].append({"type": kind, "status": "True"})


def _has_failed(pod: Pod, spec: Object) -> bool:
    """Whether a pod has failed for its Job, which then makes another one. A Job with a policy
    waits for the end of a pod that is deleted."""
    if pod.object["status"]["phase"] == "Succeeded":
        return False
    ends = pod.is_deleted and (pod.process is None or "podFailurePolicy" not in spec)
    return pod.has_ended or ends


def _action(pod: Pod, spec: Object) -> str:
    """Return the action of the policy of a Job for a pod that has failed."""
    status = pod.object["status"]
    ended = status["containerStatuses"][0]["state"].get("terminated", {})
    kinds = [each["type"] for each in status.get("conditions", ())]
    for rule in spec.get("podFailurePolicy", {"rules": ()})["rules"]:
        if "onExitCodes" in rule:
            codes = rule["onExitCodes"]
            assert (codes["containerName"], codes["operator"]) == ("node", "In")
            if ended.get("exitCode") in codes["values"]:
                return str(rule["action"])
        else:
            (wanted,) = rule["onPodConditions"]
            if wanted["type"] in kinds:
                return str(rule["action"])
    return "Count"


def _second() -> str:
    """Return the time, as the API of Kubernetes has it."""
    return f"{now()[:19]}Z"


def _owned(owner: Object) -> list[Object]:
    metadata = owner["metadata"]
    name, uid = metadata["name"], metadata["uid"]
    return [{"kind": owner["kind"], "name": name, "uid": uid, "controller": True}]


def _owner(given: Object) -> str | None:
    references = given["metadata"].get("ownerReferences")
    return str(references[0]["uid"]) if references else None


def _job_of_jobset(jobset: Object, replicated: Object, index: int) -> Object:
    """Return a Job of a JobSet, with the labels of the controller of JobSets."""
    name = jobset["metadata"]["name"]
    labels = {
        f"{_JOBSET}jobset-name": name,
        f"{_JOBSET}jobset-uid": jobset["metadata"]["uid"],
        f"{_JOBSET}replicatedjob-name": replicated["name"],
        f"{_JOBSET}job-index": str(index),
        f"{_JOBSET}restart-attempt": "0",
    }
    spec = replicated["template"]["spec"]
    template = spec["template"]
    found = {**template["metadata"]["labels"], **labels}
    subdomain = jobset["spec"]["network"]["subdomain"]
    return {
        "kind": "Job",
        "metadata": {
            "name": f"{name}-{replicated['name']}-{index}",
            "labels": labels,
            "ownerReferences": _owned(jobset),
        },
        "spec": {
            **spec,
            "template": {
                "metadata": {"labels": found},
                "spec": {**template["spec"], "subdomain": subdomain},
            },
        },
    }


def _check(given: Object) -> None:
    """Raise Refused for names and labels that Kubernetes refuses."""
    metadata: Mapping[str, Any] = given["metadata"]
    name = metadata["name"]
    if not _LABEL.fullmatch(name) or len(name) > 63:
        raise Refused(f'The {given["kind"]} "{name}" is invalid: metadata.name')
    for value in metadata["labels"].values():
        if not _VALUE.fullmatch(value) or len(value) > 63:
            raise Refused(f'The {given["kind"]} "{name}" is invalid: metadata.labels')
    if sum(map(len, content_of(given).values())) > 1 << 20:
        raise Refused(f'{given["kind"]} "{name}" is invalid: must have at most 1048576')
