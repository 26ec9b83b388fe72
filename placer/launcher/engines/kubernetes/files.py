"""Writes the files of a Kubernetes job, for people to read."""

from __future__ import annotations

import base64
import gzip
import io
import re
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from placer.errors import PlacerError
from placer.launcher.engines.engine import JobFile, JobFiles, JobRequest
from placer.launcher.engines.kubernetes.groups import Group
from placer.launcher.engines.kubernetes.manifests import (
    INSTANCE,
    Object,
    build_object,
    jobset_object,
    key_object,
    plain_objects,
)
from placer.report.numbers import format_count

BUILD: Final = "build.yaml"
"""The file with the build, if it is in a ConfigMap."""
KEY: Final = "key.yaml"
"""The file with the key."""
RUN: Final = "run.yaml"
"""The file with all objects except the build and the key."""
MAX_PACKED: Final = 700 << 10
"""The largest size of a packed build in bytes. An object of Kubernetes may have 1 MiB,
and Base64 makes the build larger."""


def job_files(
    name: str, groups: Sequence[Group], request: JobRequest, options: Mapping[str, Any]
) -> JobFiles:
    """Return the files of a job. Raises PlacerError if the build is too large."""
    files: JobFiles = {}
    namespace = options["namespace"]
    if options["build"] is None:
        build = build_object(name, namespace, _packed(request.files))
        head = "# The build that the nodes run.\n"
        files[BUILD] = JobFile(head + _text([build]))
    head = "# The key of the run: anyone with the key can join the run as a node.\n"
    key = _text([key_object(name, namespace, request)])
    files[KEY] = JobFile(head + key, private=True)
    if options["crd"] == "jobset":
        objects = [jobset_object(name, groups, request, options)]
    else:
        objects = plain_objects(name, groups, request, options)
    head = _head(name, groups, options)
    files[RUN] = JobFile(f"{head}\n{_text(objects)}", submits=True)
    return files


def _head(name: str, groups: Sequence[Group], options: Mapping[str, Any]) -> str:
    nodes = ", ".join(f"{group.count} of {group.name}" for group in groups)
    command, namespace = options["kubectl"], options["namespace"]
    if namespace is not None:
        command += f" -n {namespace}"
    jobset = options["crd"] == "jobset"
    kind = (
        "a JobSet with a Job for each node"
        if jobset
        else "an Indexed Job for each kind"
    )
    rows = {
        f"{command} create -f FOLDER": "start the run; FOLDER is the folder of this file",
        f"{command} get pods -l {INSTANCE}={name}": "list the pods",
        f"{command} logs -f POD": "show the log of a node, with its events as JSON",
        f"{command} delete -f FOLDER": "end the run, and delete all its objects",
    }
    width = max(map(len, rows))
    lines = [f"# The run {name} on Kubernetes, {kind}: {nodes}.", "#"]
    lines += [f"#   {row:<{width}}   # {text}" for row, text in rows.items()]
    return "\n".join(lines) + "\n"


def _packed(files: Mapping[str, bytes]) -> str:
    """Return the archive of a build in Base64; equal files give equal bytes."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile("", "wb", fileobj=packed, mtime=0) as unpacked,
        tarfile.open(fileobj=unpacked, mode="w") as archive,
    ):
        for path in sorted(files):
            member = tarfile.TarInfo(path)
            member.size = len(files[path])
            archive.addfile(member, io.BytesIO(files[path]))
    size = len(packed.getvalue())
    if size > MAX_PACKED:
        raise PlacerError(
            f"the packed build has {format_count(size)} bytes, but a ConfigMap "
            f"can hold only {format_count(MAX_PACKED)}",
            hint="put the build into the image, or on a volume (--option volumes=…), "
            "and give its path with --option build=PATH",
        )
    return base64.encodebytes(packed.getvalue()).decode()


class _Dumper(yaml.SafeDumper):
    """Writes readable YAML: no references, and blocks for texts of several lines."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = None
    if "\n" in text:
        style = "|"
    elif re.fullmatch(
        "[-+.]?[0-9][-+.0-9_a-fA-FxXoO]*", text
    ):  # kubectl reads more texts as numbers than yaml does.
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _text(objects: Sequence[Object]) -> str:
    return yaml.dump_all(
        objects, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True
    )
