"""The kubectl of Kubernetes itself does with a cluster of processes what placer expects of
it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.hosts import needs_hosts
from support.kubernetes.api import api_of
from support.kubernetes.requests import request_of_build
from support.kubernetes.scripted import (
    SURROUNDINGS,
    UNTIL_READ,
    Place,
    assert_nothing_is_left,
    ends,
    place,
    said,
    watched_to_end,
)

import placer
from placer.errors import PlacerError
from placer.launcher.engines import kubernetes
from placer.launcher.engines.engine import JobEvent
from placer.launcher.engines.kubernetes import following
from placer.system.resources import find_file

pytestmark = [
    needs_hosts,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl"),
]

# The API has no schemas, by which kubectl would check objects before it sends them.
_COMMAND = """\
#!/bin/sh
verb=$1
shift
[ "$verb" != create ] || set -- --validate=false "$@"
exec kubectl --server {address} "$verb" "$@"
"""


@contextmanager
def real_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> Iterator[Place]:
    """Yield a cluster with the kubectl of this machine, which keeps its files apart."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(following, "POLL", 0.5)
    with place(tmp_path, **more) as here, api_of(here.cluster) as address:
        command = tmp_path / "real-kubectl"
        command.write_text(_COMMAND.format(address=address))
        command.chmod(0o755)
        here.kubectl.command = command
        yield here


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "build"
    placer.compile(find_file("specs/digits.yaml"), folder)
    return folder


@pytest.mark.parametrize("crd", ["jobset", "none"])
def test_a_job_is_made_followed_and_deleted(
    crd: str, build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with real_place(tmp_path, monkeypatch) as here:
        script = SURROUNDINGS + UNTIL_READ
        job = here.submit(request_of_build(build), script, crd=crd)
        events = watched_to_end(here, job, 5)
        here.cluster.wait(lambda: not here.cluster.pods)
        assert_nothing_is_left(here)
    statuses = {node: end.status for node, end in ends(events).items()}
    assert statuses == dict.fromkeys(job.nodes, 0)
    assert {node: len(each) for node, each in said(events).items()} == dict.fromkeys(
        job.nodes, 5
    )


@pytest.mark.parametrize("crd", ["jobset", "none"])
def test_a_job_is_cancelled(
    crd: str, build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with real_place(tmp_path, monkeypatch) as here:
        job = here.submit(
            request_of_build(build), "event(); until('/shared/go')", crd=crd
        )
        events: list[JobEvent] = []
        for event in kubernetes.watch(job):
            events.append(event)
            if len(said(events)) == 4 and not job.cancelled.is_set():
                job.cancel()
                assert_nothing_is_left(here)


def test_nodes_are_asked_to_stop_without_commands_in_pods(
    build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "def stop(number, frame):\n"
        "    event(signal=number); sys.exit(128 + number)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "event(); until('/shared/go')\n"
    )
    with real_place(tmp_path, monkeypatch) as here:
        job = here.submit(request_of_build(build, saves=True), code)
        events: list[JobEvent] = []
        asked = False
        for event in kubernetes.watch(job):
            events.append(event)
            if len(said(events)) == 4 and not asked:
                job.stop()
                asked = True
    assert said(events)["worker:0"][-1] == {"signal": 15}


def test_a_second_job_of_the_same_name_is_refused_and_changes_nothing(
    build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with real_place(tmp_path, monkeypatch) as here:
        here.submit(request_of_build(build), "until('/shared/go')")
        there = {*here.cluster.objects}
        with pytest.raises(PlacerError, match="a run with this name exists"):
            here.submit(request_of_build(build), "until('/shared/go')")
        assert {*here.cluster.objects} == there
        # What is left of a job does not become a part of another one.
        here.cluster.delete("JobSet", "digits")
        with pytest.raises(PlacerError, match="a run with this name exists"):
            here.submit(request_of_build(build), "until('/shared/go')")
        assert ("JobSet", "digits") not in here.cluster.objects


def test_a_cluster_without_jobset_is_told_and_nothing_is_left(
    build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with real_place(tmp_path, monkeypatch, has_jobset=False) as here:
        with pytest.raises(PlacerError) as caught:
            here.submit(request_of_build(build))
        assert 'no matches for kind "JobSet"' in str(caught.value)
        assert "hint: this cluster has no JobSet: install it" in str(caught.value)
        assert_nothing_is_left(here)
