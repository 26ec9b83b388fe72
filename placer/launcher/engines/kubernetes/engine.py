"""The options of Kubernetes, and the functions of an engine: see `Engine`."""

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

OPTIONS: Final = (
    EngineOption(
        "image", "str", None, "The image of the pods, with Python and placer. Required."
    ),
    EngineOption("name", "str", None, "The name of the job. By default the model's."),
    EngineOption(
        "crd",
        "str",
        "jobset",
        "What runs the nodes: a JobSet, or Indexed Jobs of Kubernetes itself.",
        ("jobset", "none"),
    ),
    EngineOption(
        "namespace", "str", None, "The namespace. By default that of kubectl."
    ),
    EngineOption("context", "str", None, "The context of kubectl: which cluster."),
    EngineOption("kubectl", "str", "kubectl", "The command of kubectl."),
    EngineOption(
        "python", "str", "python3", "The Python in the image that has placer."
    ),
    EngineOption("port", "int", BASE_PORT, "The port at which nodes listen."),
    EngineOption(
        "cpu",
        "str",
        None,
        "The CPUs that a pod requests, such as 4 or 500m, and the threads of XLA. By "
        "default none, and a thread for each core of the machine.",
    ),
    EngineOption("gpu-resource", "str", "nvidia.com/gpu", "The resource of a GPU."),
    EngineOption(
        "volumes",
        "str",
        None,
        "What is mounted in the pods, for data and checkpoints: CLAIM:/PATH for a "
        "PersistentVolumeClaim, /FOLDER:/PATH for a folder of the machines, with :ro to "
        "only read it; several with commas.",
    ),
    EngineOption(
        "build",
        "str",
        None,
        "The path of the build in the image or on a volume. By default it goes with the "
        "job, which large builds cannot.",
    ),
    EngineOption(
        "user", "int", None, "The user id of the nodes. By default that of the image."
    ),
    EngineOption("service-account", "str", None, "The service account of the pods."),
    EngineOption(
        "node-selector", "str", None, "The machines to use, by labels: name=value,…"
    ),
    EngineOption(
        "labels", "str", None, "Labels of the job, as for a queue: name=value,…"
    ),
    EngineOption(
        "restarts",
        "int",
        0,
        "How often a JobSet restarts all nodes after a failure, for jobs that are "
        "submitted by hand: with --checkpoint and --resume they continue.",
    ),
    EngineOption(
        "keep", "bool", False, "Leave the job in the cluster when the run has ended."
    ),
)


def write(request: JobRequest, options: Mapping[str, Any]) -> JobFiles:
    """Return the files of a job: see `Engine`."""
    _check_options(options)
    volumes = Volume.of(options["volumes"])
    check_written(request, options["build"] or UNPACKED, volumes)
    name, groups = _named_groups(request, options)
    return job_files(name, groups, request, options)


def submit(
    folder: Path, request: JobRequest, options: Mapping[str, Any]
) -> KubernetesJob:
    """Submit the job in a folder: see `Engine`.

    What was made of a job that the cluster refuses is deleted.
    """
    _check_options(options)
    if options["restarts"]:
        raise PlacerError(
            "a job with restarts is submitted by hand: the launcher ends at the first"
            " failure",
            hint=f"write it with --write FOLDER, then {options['kubectl']} create -f"
            " FOLDER",
        )
    name, groups = _named_groups(request, options)
    kubectl = Kubectl(options["kubectl"], options["context"], options["namespace"])
    identity = Identity(name, groups, options["crd"] == "jobset")
    job = KubernetesJob(kubectl, identity, options["build"] is None, options["keep"])
    files = (BUILD, KEY, RUN) if job.has_build else (KEY, RUN)
    job.create([folder / file for file in files])
    return job


def watch(job: KubernetesJob) -> Iterator[JobEvent]:
    """Yield the events of a job: see `Engine`."""
    return watch_job(job)


def _named_groups(
    request: JobRequest, options: Mapping[str, Any]
) -> tuple[str, tuple[Group, ...]]:
    groups = group_nodes(request.needs)
    return job_name(options["name"] or request.name, groups), groups


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise PlacerError for values that no job can have."""
    if not options["image"]:
        raise PlacerError(
            "Kubernetes needs an image with Python and placer: --option image=NAME",
            hint="docs/kubernetes.md has a Dockerfile",
        )
    if not is_image(options["image"]):
        raise PlacerError(
            f"image: '{options['image']}' cannot be the name of an image",
            hint="write NAME:TAG or REGISTRY/NAME:TAG: the name has small letters and"
            " digits, with single . _ or - between them, and / between its parts",
        )
    check_command(options["kubectl"])
    if not 0 < options["port"] < 1 << 16:
        raise PlacerError(f"port: {options['port']} is not from 1 to 65535")
    for name in ("user", "restarts"):
        if options[name] is not None and options[name] < 0:
            raise PlacerError(f"{name}: {options[name]} is negative")
    if options["restarts"] and options["crd"] == "none":
        raise PlacerError("restarts: Indexed Jobs are not restarted together")
    if options["cpu"] is not None and threads_of(options["cpu"]) is None:
        raise PlacerError(f"cpu: '{options['cpu']}' is not a number such as 4 or 500m")
    for name in ("node-selector", "labels"):
        text = options[name]
        if text and not all(re.fullmatch("[^=,]+=[^=,]*", p) for p in text.split(",")):
            raise PlacerError(f"{name}: '{text}' is not name=value,…")
        for label, value in pairs(text).items():
            if not is_label(label, value):
                raise PlacerError(f"{name}: no label can be '{label}={value}'")
    for label in pairs(options["labels"]):
        if label in OWN_LABELS:
            raise PlacerError(f"labels: '{label}' is a label that placer sets")
    account = options["service-account"]
    if account is not None and not is_object(account):
        raise PlacerError(f"service-account: none can have the name '{account}'")
    if not is_resource(options["gpu-resource"]):
        raise PlacerError(
            f"gpu-resource: '{options['gpu-resource']}' is not a name such as"
            " nvidia.com/gpu"
        )
    Volume.of(options["volumes"])
    if options["build"] is not None and not options["build"].startswith("/"):
        raise PlacerError(f"build: '{options['build']}' is not an absolute path")
