"""Jobs whose nodes are scripts, in a cluster of processes.

The Python of the pods is a script that does what a case says, so that runs are short.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from placer.launcher.engines import kubernetes
from placer.launcher.engines.engine import (
    JobEvent,
    JobNote,
    JobRequest,
    NodeEnded,
    NodeLines,
)
from placer.launcher.engines.kubernetes.job import KubernetesJob
from support.kubernetes.cluster import Cluster, running_cluster
from support.kubernetes.kubectl import Kubectl, kubectl_of
from support.kubernetes.pod import Image
from support.kubernetes.requests import IMAGE, options, write_files

SCRIPT = """\
#!{python} -IS
import json, os, signal, socket, subprocess, sys, time

def event(**fields):
    said = dict(event="output", node=node, text=json.dumps(fields))
    print(json.dumps(said), flush=True)

def until(path):
    while not os.path.exists(path):
        time.sleep(0.01)

node = os.environ["PLACER_KIND"] + ":" + os.environ["PLACER_INDEX"]
{code}
"""


SURROUNDINGS = """\
status = os.stat(os.environ["PLACER_KEY_FILE"])
event(
    node=node,
    arguments=sys.argv[1:],
    host=socket.gethostname(),
    address=os.environ["POD_IP"],
    ids=[os.getpid(), os.getuid(), *os.getgroups()],
    key=[oct(status.st_mode & 0o777), status.st_uid],
    files=sorted(os.listdir("/placer/run/build")),
    variables={k: v for k, v in os.environ.items() if k.startswith("PLACER_")},
    capabilities=open("/proc/self/status").read().split("CapEff:")[1].split()[0],
)
print("a line of the log")
print("another", file=sys.stderr)
for place in os.environ["PLACER_ENDPOINTS"].split(","):
    name = place.partition("=")[2].partition(":")[0]
    while True:
        try:
            event(name=name, address=socket.gethostbyname(name))
            break
        except OSError:
            time.sleep(0.01)
"""
UNTIL_READ = "until('/shared/read')\n"
"""The end of a script: `watched_to_end` lets it go on. A pod that is deleted takes with it
what was not read of its log."""


@dataclass
class Place:
    """A cluster, and a folder that all pods have as /shared."""

    cluster: Cluster
    kubectl: Kubectl
    shared: Path
    folder: Path
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def release(self, name: str) -> None:
        """Let nodes go on that wait for a file."""
        (self.shared / name).touch()

    def submit(
        self, request: JobRequest, code: str = "", **chosen: Any
    ) -> KubernetesJob:
        """Submit a job whose nodes run this code."""
        script = self.shared / "python"
        script.write_text(SCRIPT.format(python=sys.executable, code=code))
        script.chmod(0o755)
        given = options(
            kubectl=str(self.kubectl.command),
            python="/shared/python",
            volumes="shared:/shared",
            **chosen,
        )
        files = kubernetes.write(request, given)
        folder = write_files(files, self.folder / f"job-{next(self.numbers)}")
        return kubernetes.submit(folder, request, given)


@contextmanager
def place(tmp_path: Path, **more: Any) -> Iterator[Place]:
    shared = tmp_path / "shared"
    shared.mkdir()
    images = {IMAGE: Image({"PATH": os.environ["PATH"], "HOME": "/"})}
    with (
        running_cluster(
            tmp_path / "cluster", images, claims={"shared": shared}, **more
        ) as cluster,
        kubectl_of(cluster, tmp_path / "bin") as kubectl,
    ):
        yield Place(cluster, kubectl, shared, tmp_path)


def watched(job: KubernetesJob) -> list[JobEvent]:
    return list(kubernetes.watch(job))


def watched_to_end(here: Place, job: KubernetesJob, count: int) -> list[JobEvent]:
    """Return the events of a job whose nodes go on when all have said so much."""
    events: list[JobEvent] = []
    for event in kubernetes.watch(job):
        events.append(event)
        told = said(events)
        if all(len(told.get(node, ())) == count for node in job.nodes):
            here.release("read")
    return events


def assert_nothing_is_left(here: Place) -> None:
    assert not here.cluster.objects
    assert not here.cluster.pods


def said(events: list[JobEvent]) -> dict[str, list[dict[str, Any]]]:
    """Return what the script of each node has said."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in events:
        if isinstance(each, NodeLines):
            outputs = [e for e in map(json.loads, each.lines) if e["event"] == "output"]
            texts = [json.loads(output["text"]) for output in outputs]
            found.setdefault(each.node, []).extend(texts)
    return found


def left(events: list[JobEvent]) -> list[tuple[str, str]]:
    """Return the nodes whose pod has ended and is made again, and how it has ended."""
    lines = [line for e in events if isinstance(e, NodeLines) for line in e.lines]
    found = [each for each in map(json.loads, lines) if each["event"] == "left"]
    assert all(each["root"] for each in found)
    return [(each["node"], each["cause"]["what"]) for each in found]


def ends(events: list[JobEvent]) -> dict[str, NodeEnded]:
    return {each.node: each for each in events if isinstance(each, NodeEnded)}


def notes(events: list[JobEvent]) -> list[str]:
    return [each.text for each in events if isinstance(each, JobNote)]
