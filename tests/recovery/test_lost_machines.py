"""Machines of a run over ssh that are lost, and cut off: `--hosts`, `--restarts` and `spare`.

The hosts are network namespaces, each with an OpenSSH server, on one file system.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load
from support.checkpointed import lines
from support.cluster import Cluster, parent_of
from support.free_addresses import eventually
from support.hosts import hosts, needs_hosts
from support.real_runs import END_TIMEOUT, ROOT, TIMEOUT
from support.ssh import ssh_servers

import placer

pytestmark = [needs_hosts, pytest.mark.slow]
STEPS = 1500
LOST_AFTER = 4
HOSTS = "worker: [host-b, host-c]\nps: [host-c, host-b]\n"
SPARE = f"{HOSTS}spare: host-d\n"


@dataclass(frozen=True)
class Whole:
    """The files of a run without failures."""

    params: bytes
    history: list[dict[str, object]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    build = folder / "build"
    rate = {"cosine": {"init": 0.01, "steps": STEPS}}
    placer.compile(
        ROOT / "specs" / "digits.yaml",
        build,
        overrides={"train.optimizer.0.learning_rate": rate},
    )
    environment = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    names = ("host-a", "host-b", "host-c", "host-d")
    own = folder / "own"
    own.mkdir()
    with hosts(names) as four, ssh_servers(four, folder, environment, own) as ssh:
        yield Cluster(four, ssh, folder, build, None)


@pytest.fixture(scope="module")
def whole(cluster, tmp_path_factory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    params, history = folder / "params", folder / "history"
    placer.launch(
        cluster.build, steps=STEPS, save_params=params, history=history, in_process=True
    )
    return Whole(params.read_bytes(), lines(history))


class Run:
    """A run with `--restarts` over the hosts, and its files."""

    def __init__(
        self, cluster: Cluster, folder: Path, *options: str, file: str = SPARE
    ) -> None:
        self.cluster, self.folder = cluster, folder
        self.messages: list[str] = []
        self.process = cluster.launch(
            *(
                "--json",
                "--quiet",
                f"--steps={STEPS}",
                f"--save-params={folder / 'params'}",
            ),
            *(f"--history={folder / 'history'}", f"--checkpoint={folder / 'saved'}"),
            *("--checkpoint-every=50", "--restarts=3", f"--lost-after={LOST_AFTER}"),
            *options,
            file=file,
        )
        self.limit = threading.Timer(TIMEOUT, self.process.kill)
        self.limit.start()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.limit.cancel()
        self.process.kill()
        self.process.communicate()

    def wait_for_steps(self, count: int) -> None:
        history = self.folder / "history"

        def is_done() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            return history.exists() and history.read_text().count("\n") >= count

        eventually(is_done, 60)

    def wait_for(self, message: str) -> None:
        """Wait for a message of the launcher."""
        assert self.process.stderr is not None
        while True:
            line = self.process.stderr.readline()
            assert line, self.messages
            self.messages.append(line)
            if message in line:
                return

    def wait_for_recovery(self) -> None:
        self.wait_for("all nodes go back to step")

    def fail(self, status: int = 1) -> str:
        """Wait until the run has ended, by default with a failure; return the messages."""
        assert self.process.stderr is not None
        err = "".join([*self.messages, *self.process.stderr])
        assert self.process.wait() == status, err
        return err

    def end(self, whole: Whole, restarts: int | None = 1) -> str:
        """Check the result against a run without failures; return the messages."""
        assert self.process.stderr is not None
        assert self.process.stdout is not None
        err = "".join([*self.messages, *self.process.stderr])
        out = self.process.stdout.read()
        self.process.wait()
        assert self.process.returncode == 0, err
        assert (self.folder / "params").read_bytes() == whole.params
        assert lines(self.folder / "history") == whole.history
        assert restarts in (None, len(json.loads(out)["restarts"])), err
        eventually(lambda: self.cluster.nodes() == {}, END_TIMEOUT)
        return err


@contextmanager
def cut(cluster: Cluster, name: str) -> Iterator[None]:
    """Cut a host off for a while."""
    host = next(each for each in cluster.hosts if each.name == name)
    host.cut()
    try:
        yield
    finally:
        host.mend()


@pytest.mark.parametrize("lost", ["host-c", "host-b"])
def test_the_nodes_of_a_lost_machine_move_to_a_spare(cluster, whole, tmp_path, lost):
    """The first node of the spec runs on host-b."""
    with Run(cluster, tmp_path) as run:
        run.wait_for_steps(200)
        with cut(cluster, lost):
            run.wait_for_recovery()
            run.process.wait()
        err = run.end(whole)
    assert f"move from {lost} to the spare host-d" in err


def test_a_run_begins_again_if_its_checkpoints_are_lost(cluster, whole, tmp_path):
    """The machine of the first node has the only copy."""
    saved = f"--checkpoint={cluster.folder / 'own' / tmp_path.name}"
    with Run(cluster, tmp_path, saved) as run:
        run.wait_for_steps(200)
        with cut(cluster, "host-b"):
            run.wait_for("all nodes begin again")
        err = run.end(whole)
    assert "only the machine of worker:0 has the folder of checkpoints" in err


def test_nodes_start_on_the_spare_if_a_machine_is_lost_at_the_start(
    cluster, whole, tmp_path
):
    with cut(cluster, "host-c"), Run(cluster, tmp_path) as run:
        err = run.end(whole, restarts=0)
    assert "worker:1 and ps:0 move from host-c to the spare host-d" in err


def test_a_spare_that_cannot_be_used_is_an_error_at_the_start(cluster, tmp_path):
    data = cluster.folder / "own" / "data"
    for host in ("host-b", "host-c"):
        words = [*shlex.split(cluster.ssh), host, "mkdir", str(data)]
        subprocess.run(cluster.hosts[0].command(*words), check=True)
    with Run(cluster, tmp_path, file=f"{HOSTS}spare: 10.9.0.99\n") as run:
        err = run.fail()
    assert "the spare machine 10.9.0.99 cannot be used: ssh failed: " in err
    with Run(cluster, tmp_path, f"--data={data}") as run:
        err = run.fail()
    assert "the spare machine host-d cannot be used: the folder" in err
    assert not (tmp_path / "saved").exists(), "nodes have joined"


def test_a_machine_that_returns_finds_its_nodes_on_the_spare(cluster, whole, tmp_path):
    with Run(cluster, tmp_path) as run:
        run.wait_for_steps(200)
        with cut(cluster, "host-c"):
            run.wait_for_recovery()
        run.end(whole)


def test_a_machine_that_returns_too_early_is_replaced(cluster, whole, tmp_path):
    """Its nodes could join the others before those of the spare."""
    with Run(cluster, tmp_path) as run:
        run.wait_for_steps(200)
        with cut(cluster, "host-c"):
            run.wait_for("move from host-c to the spare host-d")
        run.end(whole)


def test_a_machine_without_a_spare_is_used_again_when_it_returns(
    cluster, whole, tmp_path
):
    with Run(cluster, tmp_path, file=HOSTS) as run:
        run.wait_for_steps(200)
        with cut(cluster, "host-c"):
            run.wait_for("ssh to host-c failed")
        # The nodes that were cut off may join the others before they are replaced.
        run.end(whole, restarts=None)


def test_nodes_that_lose_the_launcher_are_started_again(cluster, whole, tmp_path):
    """All connections of a machine are reset, also those of ssh. No spare is used."""
    (host,) = [each for each in cluster.hosts if each.name == "host-c"]
    with Run(cluster, tmp_path) as run:
        run.wait_for_steps(200)
        host.reset_connections()
        run.wait_for_recovery()
        err = run.end(whole, restarts=None)
    assert "lost its ssh connection" in err
    assert "spare" not in err


def test_a_frozen_node_of_another_machine_is_replaced(cluster, whole, tmp_path):
    with Run(cluster, tmp_path, file=HOSTS) as run:
        run.wait_for_steps(200)
        os.kill(cluster.nodes()["ps:0"], signal.SIGSTOP)
        run.wait_for_recovery()
        run.end(whole)


def test_a_frozen_guard_is_replaced(cluster, whole, tmp_path):
    with Run(cluster, tmp_path, file=HOSTS) as run:
        run.wait_for_steps(200)
        node = cluster.nodes()["ps:0"]
        os.kill(parent_of(node), signal.SIGSTOP)
        os.kill(node, signal.SIGSTOP)
        run.wait_for_recovery()
        run.end(whole)


def test_a_machine_that_does_not_return_ends_the_run(cluster, tmp_path):
    with Run(cluster, tmp_path, "--join-timeout=8", file=HOSTS) as run:
        run.wait_for_steps(200)
        with cut(cluster, "host-c"):
            err = run.fail()
    assert "host-c has not come back within 8 s (--join-timeout)" in err


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["host-c", "host-b"])
def test_a_run_goes_on_without_a_lost_machine(cluster, whole, tmp_path, lost):
    """The first node of the spec runs on host-b."""
    options = "--join-timeout=8", "--elastic=worker=1,ps=1"
    with Run(cluster, tmp_path, *options, file=HOSTS) as run:
        run.wait_for_steps(200)
        with cut(cluster, lost):
            run.wait_for("the run goes on with 1 of 2 workers and 1 of 2 servers")
            run.wait_for_recovery()
            err = run.fail(status=0)
    print(err)
    for line, expected in zip(lines(tmp_path / "history"), whole.history, strict=True):
        assert line["metrics"] == pytest.approx(expected["metrics"], rel=0.1, abs=1e-3)
    params = load((tmp_path / "params").read_bytes())
    for name, array in load(whole.params).items():
        np.testing.assert_allclose(params[name], array, rtol=0, atol=1e-2)
