"""`placer launch --on kubernetes` in a cluster of processes: real runs of real nodes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
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
from placer.runtime.control.events import Step
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


def launch_and_compare(build: Path, tmp_path: Path, steps: int, **more: Any) -> None:
    """Run a build in a cluster, and compare all bits of its result with a local run."""
    with place(tmp_path) as here:
        on = placer.OnEngine("kubernetes", here.options(**more))
        result = placer.launch(
            build,
            on=on,
            steps=steps,
            save_params="/out/params.safetensors",
            logs=tmp_path / "logs",
            watch=lambda event: None,
        )
        here.assert_nothing_is_left()
        params = (here.out / "params.safetensors").read_bytes()
    saved = tmp_path / "local.safetensors"
    local = placer.launch(build, in_process=True, steps=steps, save_params=saved)
    assert not result.warnings
    assert result.steps == local.steps == steps
    assert result.metrics == local.metrics
    assert result.eval == local.eval
    assert params == saved.read_bytes()


def test_a_model_has_the_bits_of_a_local_run(tmp_path: Path) -> None:
    launch_and_compare(compile_small(tmp_path), tmp_path, 5)
    log = (tmp_path / "logs" / "ps-0.log").read_text()
    assert "ps:0" in log
    assert '{"event"' not in log


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
    launch_and_compare(build, tmp_path, 20, crd=crd)


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
def test_ctrl_c_saves_and_a_second_run_goes_on(tmp_path: Path) -> None:
    build = compile_small(tmp_path)
    with place(tmp_path) as here:
        options = [f"--option={k}={v}" for k, v in here.options().items()]
        words = ["launch", build, "--on", "kubernetes", *options, "--quiet"]
        words += ["--checkpoint=/out/checkpoints", "--resume=/out/checkpoints"]
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
