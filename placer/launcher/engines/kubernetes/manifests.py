"""Builds the objects of a Kubernetes job, which its YAML files contain."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from placer.channel.keys import VARIABLE as KEY_FILE
from placer.launcher.engines.engine import JobRequest, Needs
from placer.launcher.engines.kubernetes.groups import Group, host_names
from placer.launcher.engines.kubernetes.volumes import OWN, Volume
from placer.launcher.engines.surroundings import INDEX, KIND
from placer.launcher.guard import FINAL_STATUSES
from placer.place.node_kinds import HETER, SERVER, NodeId
from placer.plan.plan import FILE, sha256
from placer.runtime.process.interpreter import NODE_VARIABLES, interpreter
from placer.system.cores import THREADS
from placer.system.files.owners import TRUST_VARIABLE

Object: TypeAlias = dict[str, Any]
CONTAINER: Final = "node"
"""The name of the container of each pod."""
JOB_INDEX: Final = "jobset.sigs.k8s.io/job-index"
"""The label of a JobSet's pod with the number of its Job."""
JOBSET_NAME: Final = "jobset.sigs.k8s.io/jobset-name"
"""The label of a JobSet's Jobs and pods with its name."""
JOBSET_UID: Final = "jobset.sigs.k8s.io/jobset-uid"
"""The label of a JobSet's pods with its uid; older versions of JobSet do not set it."""
COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
"""The annotation of an Indexed Job's pod with its number."""
INSTANCE: Final = "app.kubernetes.io/instance"
"""The label with the name of the job."""
COMPONENT: Final = "app.kubernetes.io/component"
"""The label with the name of the group."""
OWN_LABELS: Final = ("app.kubernetes.io/name", INSTANCE, COMPONENT)
"""The labels that select the objects of a job."""
DISRUPTED: Final = "DisruptionTarget"
"""The condition of a pod that Kubernetes ends, for example to drain its machine."""
PACKED: Final = "build.tar.gz"
"""The name of the build in its ConfigMap."""

# The folders of a pod. RUN is an empty folder in memory that every user can write; a pod
# has only one user.
_RUN: Final = f"/{OWN}/run"
_KEY: Final = f"/{OWN}/key"
_BUILD: Final = f"/{OWN}/build"
UNPACKED: Final = f"{_RUN}/build"
"""The folder where pods unpack the build of the job."""


def labels(name: str) -> dict[str, str]:
    """Return the labels of all objects of a job."""
    return {
        "app.kubernetes.io/name": "placer",
        INSTANCE: name,
    }


def build_object(name: str, namespace: str | None, packed: str) -> Object:
    """Return the ConfigMap for a build; `packed` is the archive of the build in Base64."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(f"{name}-build", name, namespace),
        "immutable": True,
        "binaryData": {PACKED: packed},
    }


def key_object(name: str, namespace: str | None, request: JobRequest) -> Object:
    """Return the Secret with the key of the run."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(f"{name}-key", name, namespace),
        "immutable": True,
        "type": "Opaque",
        "stringData": {"key": f"{request.key.secret.hex()}\n"},
    }


def jobset_object(
    name: str, groups: Sequence[Group], request: JobRequest, options: Mapping[str, Any]
) -> Object:
    """Return the JobSet, with a replicated job for each group. Each node has a separate
    Job, so that one node can be restarted."""
    jobs = []
    for group in groups:
        template = _pod_template(name, group, groups, request, options)
        jobs.append(
            {
                "name": group.name,
                "replicas": group.count,
                "template": {"spec": _job_spec(1, template, request)},
            }
        )
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(
            name, name, options["namespace"], pairs(options["labels"])
        ),
        "spec": {
            "network": {
                "enableDNSHostnames": True,
                "subdomain": name,
                "publishNotReadyAddresses": True,
            },
            "successPolicy": {
                "operator": "All",
                "targetReplicatedJobs": _finishing(groups, request),
            },
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": jobs,
        },
    }


def plain_objects(
    name: str, groups: Sequence[Group], request: JobRequest, options: Mapping[str, Any]
) -> list[Object]:
    """Return a headless Service, which gives the pods their names, and an Indexed Job for
    each group."""
    namespace = options["namespace"]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(name, name, namespace),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels(name),
            "ports": [{"name": "placer", "port": options["port"]}],
        },
    }
    jobs = []
    for group in groups:
        template = _pod_template(name, group, groups, request, options)
        template["spec"]["subdomain"] = name
        more = {COMPONENT: group.name, **pairs(options["labels"])}
        metadata = _metadata(f"{name}-{group.name}", name, namespace, more)
        jobs.append(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": metadata,
                "spec": _job_spec(group.count, template, request),
            }
        )
    return [service, *jobs]


def _job_spec(count: int, template: Object, request: JobRequest) -> Object:
    """Return the spec of a Job with `count` pods. With `--restarts`, the Job makes a pod again
    whose guard has not ended the run, and Kubernetes does not count pods that it has ended."""
    spec: Object = {
        "parallelism": count,
        "completions": count,
        "completionMode": "Indexed",
        "backoffLimit": request.restarts,
    }
    if request.restarts:
        codes = {"operator": "In", "values": [*FINAL_STATUSES]}
        disrupted = {"type": DISRUPTED, "status": "True"}
        spec["podFailurePolicy"] = {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": CONTAINER, **codes},
                },
                {"action": "Ignore", "onPodConditions": [disrupted]},
            ]
        }
    return {**spec, "template": template}


def _finishing(groups: Sequence[Group], request: JobRequest) -> list[str]:
    """Return the groups of workers and of the control node; the run is done when they
    end."""
    control = NodeId(next(iter(request.needs))).kind
    serving = {SERVER, HETER} - {control}
    return [group.name for group in groups if group.kind not in serving]


def _metadata(
    name: str, job: str, namespace: str | None, more: Mapping[str, str] | None = None
) -> Object:
    found: Object = {"name": name}
    if namespace is not None:
        found["namespace"] = namespace
    found["labels"] = {**labels(job), **(more or {})}
    return found


def _pod_template(
    name: str,
    group: Group,
    groups: Sequence[Group],
    request: JobRequest,
    options: Mapping[str, Any],
) -> Object:
    user, volumes = options["user"], Volume.of(options["volumes"])
    security: Object = {"seccompProfile": {"type": "RuntimeDefault"}}
    if user is not None:
        security = {
            "runAsUser": user,
            "runAsGroup": user,
            "fsGroup": user,
            "runAsNonRoot": user != 0,
            **security,
        }
    spec: Object = {"restartPolicy": "Never"}
    if request.saves and not request.restarts:
        spec["terminationGracePeriodSeconds"] = math.ceil(
            request.grace + request.deadline
        )
    if options["service-account"] is not None:
        spec["serviceAccountName"] = options["service-account"]
    spec["automountServiceAccountToken"] = False
    # Do not add a variable for each service of the namespace.
    spec["enableServiceLinks"] = False
    if options["node-selector"]:
        spec["nodeSelector"] = pairs(options["node-selector"])
    spec["securityContext"] = security
    spec["containers"] = [_container(name, group, groups, request, options)]
    spec["volumes"] = [
        {"name": "run", "emptyDir": {"medium": "Memory"}},
        {"name": "key", "secret": {"secretName": f"{name}-key"}},
    ]
    if options["build"] is None:
        packed = {"name": "build", "configMap": {"name": f"{name}-build"}}
        spec["volumes"].append(packed)
    spec["volumes"] += [volume.source for volume in volumes]
    found = {**labels(name), COMPONENT: group.name}
    return {"metadata": {"labels": found}, "spec": spec}


def _container(
    name: str,
    group: Group,
    groups: Sequence[Group],
    request: JobRequest,
    options: Mapping[str, Any],
) -> Object:
    arguments = list(request.arguments)
    if request.data is not None:
        arguments.append(f"--data={request.data}")
    if request.restarts:
        arguments += [f"--run-id={request.run_id}", "--leave-on-sigterm"]
    mounts: list[Object] = [
        {"name": "run", "mountPath": _RUN},
        {"name": "key", "mountPath": _KEY, "readOnly": True},
    ]
    if options["build"] is None:
        mounts.append({"name": "build", "mountPath": _BUILD, "readOnly": True})
    mounts += [volume.mount for volume in Volume.of(options["volumes"])]
    script = _script(group, request, options)
    return {
        "name": CONTAINER,
        "image": options["image"],
        # The arguments that follow go to the script, whose $0 is `placer`.
        "command": ["sh", "-euc", _as_it_is(script), "placer"],
        "args": [_as_it_is(argument) for argument in arguments],
        "env": _environment(name, group, groups, options),
        "ports": [{"name": "placer", "containerPort": options["port"]}],
        "resources": _resources(group.needs, options),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }


def _script(group: Group, request: JobRequest, options: Mapping[str, Any]) -> str:
    lines = [
        "# Kubernetes sets the permissions of the mounted key; this copy is private.",
        f"(umask 077; cat {_KEY}/key >{_RUN}/key)",
    ]
    if options["build"] is None:
        build = UNPACKED
        lines += [f"mkdir -p {build}", f"tar -xzof {_BUILD}/{PACKED} -C {build}"]
    else:
        build = shlex.quote(options["build"])
        digest = sha256(request.files[FILE])
        lines += [
            f"if ! echo '{digest}  '{build}/{FILE} | sha256sum -c - >/dev/null; then",
            f"  echo {build}' is not the build of this run' >&2",
            "  exit 2",
            "fi",
        ]
    if group.first:
        lines.append(f"export {INDEX}=$(({INDEX} + {group.first}))")
    command = shlex.join(interpreter(python=options["python"]))
    lines += [
        f"exec {command} run {build} \\",
        f'  --node auto --events - --bind "$POD_IP:{options["port"]}" "$@"',
    ]
    return "\n".join(lines) + "\n"


def _environment(
    name: str, group: Group, groups: Sequence[Group], options: Mapping[str, Any]
) -> list[Object]:
    jobset = options["crd"] == "jobset"
    number = (
        f"metadata.labels['{JOB_INDEX}']"
        if jobset
        else f"metadata.annotations['{COMPLETION_INDEX}']"
    )
    hosts = host_names(name, groups, jobset)
    endpoints = ",".join(f"{node}={hosts[node]}:{options['port']}" for node in hosts)
    trusted = _RUN if options["build"] is None else options["build"]
    found: list[Object] = [
        {"name": KIND, "value": group.kind},
        {"name": INDEX, "valueFrom": {"fieldRef": {"fieldPath": number}}},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "PLACER_ENDPOINTS", "value": endpoints},
        {"name": KEY_FILE, "value": f"{_RUN}/key"},
        # The folder of the build may be writable by other users.
        {"name": TRUST_VARIABLE, "value": trusted},
        *({"name": name, "value": value} for name, value in NODE_VARIABLES.items()),
    ]
    if options["cpu"] is not None:
        found.append({"name": THREADS[0], "value": str(threads_of(options["cpu"]))})
    return found


def _resources(needs: Needs, options: Mapping[str, Any]) -> Object:
    memory = f"{math.ceil(needs.memory / (1 << 20))}Mi"
    requests, limits = {"memory": memory}, {"memory": memory}
    if options["cpu"] is not None:
        requests = {"cpu": options["cpu"], **requests}
    if needs.gpus:  # Kubernetes uses the limit as the request as well.
        limits[options["gpu-resource"]] = str(needs.gpus)
    return {"requests": requests, "limits": limits}


def threads_of(cpu: str) -> int | None:
    """Return the number of threads for a quantity of CPUs; None for an invalid text.

    >>> threads_of("4"), threads_of("1500m"), threads_of("2 cores")
    (4, 2, None)
    """
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)(m?)", cpu)
    if found is None:
        return None
    return max(1, math.ceil(float(found[1]) / (1000 if found[2] else 1)))


def pairs(text: str | None) -> dict[str, str]:
    """Return the pairs of a checked text `name=value,…`."""
    parts = (part.partition("=") for part in text.split(",")) if text else ()
    return {name: value for name, _, value in parts}


def _as_it_is(text: str) -> str:
    """Escape a text of a command for Kubernetes, which replaces `$(NAME)` and `$$`."""
    return re.sub(r"\$(?=[$(])", "$$", text)
