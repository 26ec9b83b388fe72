"""`placer launch --on kubernetes` in a cluster of processes: real runs of real nodes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.free_addresses import eventually
from support.hosts import needs_hosts
from support.kubernetes.cluster import Cluster, running_cluster
from support.kubernetes.kubectl import Kubectl, kubectl_of
from support.kubernetes.pod import Image
from support.kubernetes.requests import IMAGE
from support.marks import slow_but
from support.real_runs import (
    MANY_STEPS,
    compile_small,
    placer_command,
    process_environment,
    running_command,
)

import placer
from placer.errors import RunError
from placer.launcher.engines.kubernetes import following
from placer.runtime.control.events import Left, Step
from placer.system.resources import find_file

pytestmark = needs_hosts


@dataclass
class Place:
    """A cluster with a volume, which pods have as /out."""

    cluster: Cluster
    kubectl: Kubectl
    out: Path

    def options(self, **more: Any) -> dict[str, Any]:
        """Return the options of the engine."""
        named = {name.replace("_", "-"): value for name, value in more.items()}
        return {
            "image": IMAGE,
            "kubectl": str(self.kubectl.command),
            "python": sys.executable,
            "volumes": "runs:/out",
            **named,
        }

    def assert_nothing_is_left(self) -> None:
        self.cluster.wait(lambda: not (self.cluster.pods or self.cluster.objects), 20)


@contextmanager
def place(tmp_path: Path) -> Iterator[Place]:
    out = tmp_path / "runs"
    out.mkdir()
    images = {IMAGE: Image(process_environment())}
    claims = {"runs": out}
    with (
        running_cluster(tmp_path / "cluster", images, claims=claims) as cluster,
        kubectl_of(cluster, tmp_path / "bin") as kubectl,
    ):
        yield Place(cluster, kubectl, out)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "POLL", 0.5)


def launch_and_compare(
    build: Path,
    tmp_path: Path,
    steps: int,
    watch: Callable[[object, Cluster], None] = lambda event, cluster: None,
    crd: str = "jobset",
    **chosen: Any,
) -> placer.Result:
    """Run a build in a cluster, and compare all bits of its result with a local run."""
    with place(tmp_path) as here:
        result = placer.launch(
            build,
            on=placer.OnEngine("kubernetes", here.options(crd=crd)),
            steps=steps,
            save_params="/out/params.safetensors",
            logs=tmp_path / "logs",
            watch=lambda event: watch(event, here.cluster),
            **chosen,
        )
        here.assert_nothing_is_left()
        params = (here.out / "params.safetensors").read_bytes()
    saved = tmp_path / "local.safetensors"
    local = placer.launch(build, in_process=True, steps=steps, save_params=saved)
    assert result.steps == local.steps == steps
    assert result.metrics == local.metrics
    assert result.eval == local.eval
    assert params == saved.read_bytes()
    return result


WAITING_ROWS = """\
import os, time


class Rows:
    def __len__(self):
        return 64

    def __getitem__(self, i):
        for step in {steps}:
            while has_saved(step + 1) and not os.path.exists(f"{folder}/ended-{{step}}"):
                time.sleep(0.01)
        return {{"x": [i % 3, i % 5, i % 7, 1.0], "y": float(i % 11)}}


def has_saved(step):
    saved = "{folder}/runs/saved"
    return os.path.isdir(saved) and max(os.listdir(saved)) >= f"step-{{step:06}}"


def train():
    return Rows()
"""
"""Rows that wait after some steps until the pod of a node has been ended."""


@pytest.mark.parametrize("nodes", slow_but(["worker:0"], ["worker:0", "both"]))
def test_a_model_whose_pods_are_made_again_has_the_bits_of_a_local_run(
    nodes: str, tmp_path: Path
) -> None:
    """The server has no memory left, and the worker has to leave its machine."""
    steps = (3, 16) if nodes == "both" else (16,)
    rows = WAITING_ROWS.format(steps=steps, folder=tmp_path)
    build = compile_small(tmp_path, rows=rows)

    def end(event: object, cluster: Cluster) -> None:
        if not isinstance(event, Step) or event.step not in steps:
            return
        if event.step == 3:
            cluster.pod("small-ps-0").signal(signal.SIGKILL, "OOMKilled")
        else:
            cluster.evict_pod(cluster.pod("small-worker-0"), "Preempted")
        (tmp_path / f"ended-{event.step}").touch()

    saving = {"restarts": 1, "checkpoint": "/out/saved", "checkpoint_every": 1}
    result = launch_and_compare(build, tmp_path, 48, end, **saving)
    assert not result.failed_late
    failed = [each.node for each in result.restarts]
    assert failed == ["ps:0", "worker:0"][-len(steps) :]
    killed = "ps:0 was killed by SIGKILL (OOMKilled: its memory limit is 576Mi)"
    assert nodes == "worker:0" or result.restarts[0].what == killed
    log = (tmp_path / "logs" / "worker-0.log").read_text()
    assert "worker:0 leaves this machine, because of SIGTERM" in log
    assert '{"event"' not in log


@pytest.mark.slow
def test_a_model_has_the_bits_of_a_local_run(tmp_path: Path) -> None:
    result = launch_and_compare(compile_small(tmp_path), tmp_path, 5)
    assert not result.warnings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "crd"),
    [
        ("digits", "jobset"),
        ("digits", "none"),
        ("wide_deep", "jobset"),
        ("wide_deep", "none"),
    ],
)
def test_specs_have_the_bits_of_a_local_run(
    spec: str, crd: str, tmp_path: Path
) -> None:
    build = tmp_path / "build"
    placer.compile(find_file(f"specs/{spec}.yaml"), build)
    result = launch_and_compare(build, tmp_path, 20, crd=crd)
    assert not result.warnings


@pytest.mark.slow  # scripts as nodes show most of it: test_in_a_cluster.py
def test_a_killed_pod_is_the_root_cause(tmp_path: Path) -> None:
    build = compile_small(tmp_path)
    with place(tmp_path) as here:

        def kill(event: object) -> None:
            if isinstance(event, Step) and event.step == 3:
                here.cluster.pod("small-ps-0").signal(signal.SIGKILL, "OOMKilled")

        on = placer.OnEngine("kubernetes", here.options(crd="none"))
        with pytest.raises(RunError) as caught:
            placer.launch(build, on=on, steps=10**6, watch=kill, logs=tmp_path / "logs")
        here.assert_nothing_is_left()
    assert str(caught.value).startswith("ps:0 was killed by SIGKILL")
    assert "OOMKilled" in str(caught.value)
    assert "host: machine-1" in str(caught.value)


@pytest.mark.slow
def test_a_failure_that_ends_the_run_is_not_repeated(tmp_path: Path) -> None:
    fail = "if i == 50: raise ValueError('no such row')"
    build = compile_small(tmp_path, at_row=fail)
    events: list[object] = []
    with place(tmp_path) as here:
        on = placer.OnEngine("kubernetes", here.options())
        with pytest.raises(RunError, match="ValueError: no such row"):
            placer.launch(
                build,
                on=on,
                restarts=3,
                checkpoint="/out/saved",
                logs=tmp_path / "logs",
                watch=events.append,
            )
        here.assert_nothing_is_left()
    assert not [each for each in events if isinstance(each, Left)]


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [0, 2])
def test_ctrl_c_saves_and_a_second_run_goes_on(restarts: int, tmp_path: Path) -> None:
    build = compile_small(tmp_path)
    with place(tmp_path) as here:
        options = [f"--option={k}={v}" for k, v in here.options().items()]
        words = ["launch", build, "--on", "kubernetes", *options, "--quiet"]
        words += ["--checkpoint=/out/checkpoints", "--resume=/out/checkpoints"]
        words += [f"--restarts={restarts}"] if restarts else []
        begun = tmp_path / "runs" / "history.jsonl"
        words += ["--history=/out/history.jsonl", MANY_STEPS]
        with running_command(placer_command(*words)) as command:
            eventually(lambda: begun.exists() and begun.stat().st_size > 0, 60)
            command.process.send_signal(signal.SIGINT)
            ended = command.wait()
        assert ended.status == 130, ended.err
        here.assert_nothing_is_left()
        saved = (here.out / "checkpoints").glob("step-*")
        steps = max(int(folder.name.partition("-")[2]) for folder in saved)
        result = placer.launch(
            build,
            on=placer.OnEngine("kubernetes", here.options()),
            steps=steps + 3,
            resume="/out/checkpoints",
            watch=lambda event: None,
        )
        assert result.steps == steps + 3
