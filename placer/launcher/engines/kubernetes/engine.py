"""The options of Kubernetes, and its implementation of the `Engine` interface."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from placer.errors import PlacerError
from placer.launcher.engines.engine import EngineOption, JobEvent, JobFiles, JobRequest
from placer.launcher.engines.kubernetes.files import BUILD, KEY, RUN, job_files
from placer.launcher.engines.kubernetes.following import watch_job
from placer.launcher.engines.kubernetes.groups import Group, group_nodes, job_name
from placer.launcher.engines.kubernetes.job import KubernetesJob
from placer.launcher.engines.kubernetes.kubectl import Kubectl, check_command
from placer.launcher.engines.kubernetes.manifests import (
    OWN_LABELS,
    UNPACKED,
    pairs,
    threads_of,
)
from placer.launcher.engines.kubernetes.names import (
    is_image,
    is_label,
    is_object,
    is_resource,
)
from placer.launcher.engines.kubernetes.pods import Identity
from placer.launcher.engines.kubernetes.volumes import Volume
from placer.launcher.engines.kubernetes.written import check_written
from placer.plan.plan import BASE_PORT

RESTARTS: Final = True
"""A pod that has failed is made again (`--restarts`)."""
OPTIONS: Final = (
    EngineOption(
        "image", "str", None, "The image of the pods, with Python and placer. Required."
    ),
    EngineOption(
        "name", "str", None, "The name of the job. Default: the name of the model."
    ),
    EngineOption(
        "crd",
        "str",
        "jobset",
        "The kind of object that runs the nodes: a JobSet, or Indexed Jobs, "
        "which need no extension of Kubernetes.",
        ("jobset", "none"),
    ),
    EngineOption(
        "namespace", "str", None, "The namespace. Default: the namespace of kubectl."
    ),
    EngineOption(
        "context", "str", None, "The kubectl context, which selects the cluster."
    ),
    EngineOption("kubectl", "str", "kubectl", "The kubectl command."),
    EngineOption(
        "python", "str", "python3", "The path of a Python with placer in the image."
    ),
    EngineOption("port", "int", BASE_PORT, "The port on which nodes listen."),
    EngineOption(
        "cpu",
        "str",
        None,
        "The CPUs that a pod requests, such as 4 or 500m, and the number of XLA "
        "threads. By default a pod requests no CPUs and has a thread for each "
        "core of the machine.",
    ),
    EngineOption(
        "gpu-resource", "str", "nvidia.com/gpu", "The resource name of a GPU."
    ),
    EngineOption(
        "volumes",
        "str",
        None,
        "Volumes for data and checkpoints, separated by commas: CLAIM:/PATH "
        "mounts a PersistentVolumeClaim, /FOLDER:/PATH a folder of the "
        "machines; append :ro to mount it read-only.",
    ),
    EngineOption(
        "build",
        "str",
        None,
        "The path of the build in the image or on a volume. By default the "
        "build is sent with the job, which is not possible for large builds.",
    ),
    EngineOption(
        "user", "int", None, "The user id of the nodes. Default: the user of the image."
    ),
    EngineOption("service-account", "str", None, "The service account of the pods."),
    EngineOption(
        "node-selector", "str", None, "Labels of the machines to use: name=value,…"
    ),
    EngineOption(
        "labels",
        "str",
        None,
        "Labels of the job, for example for a queue: name=value,…",
    ),
    EngineOption(
        "keep", "bool", False, "Keep the job in the cluster after the run has ended."
    ),
)


def write(request: JobRequest, options: Mapping[str, Any]) -> JobFiles:
    """Return the files of a job; see `Engine`."""
    _check_options(options)
    volumes = Volume.of(options["volumes"])
    check_written(request, options["build"] or UNPACKED, volumes)
    name, groups = _named_groups(request, options)
    return job_files(name, groups, request, options)


def submit(
    folder: Path, request: JobRequest, options: Mapping[str, Any]
) -> KubernetesJob:
    """Submit the job in a folder; see `Engine`. If the cluster refuses the job, all
    objects created so far are deleted."""
    _check_options(options)
    name, groups = _named_groups(request, options)
    kubectl = Kubectl(options["kubectl"], options["context"], options["namespace"])
    identity = Identity(name, groups, options["crd"] == "jobset")
    job = KubernetesJob(
        kubectl,
        identity,
        options["build"] is None,
        options["keep"],
        request.restarts > 0,
    )
    files = (BUILD, KEY, RUN) if job.has_build else (KEY, RUN)
    job.create([folder / file for file in files])
    return job


def watch(job: KubernetesJob) -> Iterator[JobEvent]:
    """Yield the events of a job; see `Engine`."""
    return watch_job(job)


def _named_groups(
    request: JobRequest, options: Mapping[str, Any]
) -> tuple[str, tuple[Group, ...]]:
    groups = group_nodes(request.needs)
    return job_name(options["name"] or request.name, groups), groups


def _check_options(options: Mapping[str, Any]) -> None:
    if not options["image"]:
        raise PlacerError(
            "Kubernetes needs an image with Python and placer: --option image=NAME",
            hint="see docs/how-to/kubernetes.md for a Dockerfile",
        )
    if not is_image(options["image"]):
        raise PlacerError(
            f"image: '{options['image']}' is not a valid name of an image",
            hint="write NAME:TAG or REGISTRY/NAME:TAG; a name has lowercase letters "
            "and digits, with single . _ or - between them, and / between its "
            "parts",
        )
    check_command(options["kubectl"])
    if not 0 < options["port"] < 1 << 16:
        raise PlacerError(f"port: {options['port']} is not between 1 and 65535")
    if options["user"] is not None and options["user"] < 0:
        raise PlacerError(f"user: {options['user']} is negative")
    if options["cpu"] is not None and threads_of(options["cpu"]) is None:
        raise PlacerError(f"cpu: '{options['cpu']}' is not a number such as 4 or 500m")
    for name in ("node-selector", "labels"):
        text = options[name]
        if text and not all(re.fullmatch("[^=,]+=[^=,]*", p) for p in text.split(",")):
            raise PlacerError(f"{name}: '{text}' must have the form name=value,…")
        for label, value in pairs(text).items():
            if not is_label(label, value):
                raise PlacerError(f"{name}: '{label}={value}' is not a valid label")
    for label in pairs(options["labels"]):
        if label in OWN_LABELS:
            raise PlacerError(f"labels: placer itself sets the label '{label}'")
    account = options["service-account"]
    if account is not None and not is_object(account):
        raise PlacerError(f"service-account: '{account}' is not a valid name")
    if not is_resource(options["gpu-resource"]):
        raise PlacerError(
            f"gpu-resource: '{options['gpu-resource']}' is not a name such as"
            " nvidia.com/gpu"
        )
    Volume.of(options["volumes"])
    if options["build"] is not None and not options["build"].startswith("/"):
        raise PlacerError(f"build: '{options['build']}' is not an absolute path")
