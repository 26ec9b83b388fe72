"""`placer launch --hosts` starts the nodes on several hosts by OpenSSH, and ends them.

The hosts are network namespaces, each with an OpenSSH server.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
from collections.abc import Iterator

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.cluster import Cluster, parent_of, wait_for_step
from support.free_addresses import eventually
from support.hosts import hosts, needs_hosts
from support.kept_runs import find_runs
from support.real_runs import END_TIMEOUT, MANY_STEPS, ROOT
from support.ssh import ssh_servers

import placer

pytestmark = needs_hosts
READER = """\
import os
import sys


def rows():
    print("reads in", os.path.basename(os.getcwd()), file=sys.stderr)
    with open(os.environ["PLACER_DATA"] + "/numbers.txt") as file:
        for line in file:
            yield {"x": [float(line)] * 4, "y": float(line) / 7}
"""
SPEC = """\
name: spread
nodes: {worker: {count: 2}, ps: {count: 1}}
inputs: {x: "float32[batch, 4]", y: "float32[batch]"}
data:
  train: {source: "python:spread_rows:rows", batch: 8, shuffle: true, seed: 3}
graph:
  - place: /node:worker/cpu
    ops:
      - {name: h1, op: fc, in: x, size: 4, activation: tanh}
      - {name: out, op: fc, in: h1, size: 1}
      - {name: prediction, op: reshape, in: out, shape: [batch]}
      - {name: loss, op: mean_squared_error, in: [prediction, y]}
train:
  minimize: loss
  epochs: 2
  optimizer: {op: sgd, learning_rate: 0.01, place: /node:ps/cpu}
"""
STEPS = 400
NODES = ("worker:0", "worker:1", "ps:0")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    sources, data = folder / "sources", folder / "data"
    sources.mkdir()
    data.mkdir()
    (data / "numbers.txt").write_text("".join(f"{i % 7}\n" for i in range(64)))
    (sources / "spread_rows.py").write_text(READER)
    (sources / "spread.yaml").write_text(SPEC)
    build = folder / "build"
    placer.compile(sources / "spread.yaml", build)
    environment = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    with hosts() as three, ssh_servers(three, folder, environment) as ssh:
        yield Cluster(three, ssh, folder, build, data)


def test_a_launch_on_hosts_trains_to_the_bits_of_one_machine(
    cluster, tmp_path, monkeypatch
):
    """Also if a server is killed, which is started again over ssh."""
    monkeypatch.setenv("PLACER_DATA", str(cluster.data))
    local, remote = tmp_path / "local.safetensors", tmp_path / "remote.safetensors"
    placer.launch(cluster.build, steps=STEPS, save_params=local, in_process=True)
    saved = (f"--checkpoint={tmp_path / 'saved'}", "--checkpoint-every=40")
    steps = (f"--steps={STEPS}", "--restarts=1", f"--history={tmp_path / 'steps'}")
    run = cluster.launch("--json", f"--save-params={remote}", *saved, *steps)
    with run:
        eventually(lambda: (tmp_path / "saved" / "step-000040").exists(), 60)
        os.kill(cluster.nodes()["ps:0"], signal.SIGKILL)
        out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    (restart,) = json.loads(out)["restarts"]
    assert restart["what"].startswith("ps:0 was killed by SIGKILL")
    log = (cluster.folder / "logs" / "ps-0.log").read_text()
    assert "\nps:0 starts again on host-c\n" in log
    expected, got = load_file(local), load_file(remote)
    assert got.keys() == expected.keys()
    assert all(np.array_equal(got[name], expected[name]) for name in got)
    streams = json.loads(out)["streams"]
    assert streams["worker:1"] == {"worker:0": "tls", "ps:0": "shared memory"}
    # What a node prints, and the log of each, are here.
    assert re.search(r"^worker:1\| reads in \w", err, re.MULTILINE), err
    assert "reads in" in (cluster.folder / "logs" / "worker-1.log").read_text()
    # The launcher keeps the run next to its build.
    kept = find_runs(cluster.folder / "runs")[-1]
    assert " --hosts " in kept.command.command
    assert kept.end.steps == len([*kept.history()]) == STEPS
    assert cluster.nodes() == {}


def test_a_killed_node_ends_the_run_on_all_hosts_and_is_named(cluster):
    with cluster.launch(MANY_STEPS) as run:
        wait_for_step(run)
        os.kill(cluster.nodes()["worker:1"], signal.SIGKILL)
        out, err = run.communicate(timeout=END_TIMEOUT)
    assert run.returncode == 1, out
    assert re.search(
        r"^worker:1 was killed by SIGKILL( at step \d+ or later)?\n  host: host-c$",
        err,
        re.MULTILINE,
    )
    eventually(lambda: cluster.nodes() == {}, END_TIMEOUT)


def test_a_killed_process_of_ssh_ends_the_run_and_is_named(cluster):
    """That which waits for a node."""
    with cluster.launch(MANY_STEPS) as run:
        wait_for_step(run)
        os.kill(parent_of(cluster.nodes()["ps:0"]), signal.SIGKILL)
        out, err = run.communicate(timeout=END_TIMEOUT)
    assert run.returncode == 1, out
    assert "ps:0 was killed or lost its ssh connection" in err
    eventually(lambda: cluster.nodes() == {}, END_TIMEOUT)


def test_ctrl_c_saves_on_the_machine_of_the_control_node(cluster, tmp_path):
    saved = tmp_path / "params.safetensors"
    with cluster.launch(MANY_STEPS, f"--save-params={saved}") as run:
        wait_for_step(run)
        os.killpg(run.pid, signal.SIGINT)
        _, err = run.communicate(timeout=60)
    assert run.returncode == 130, err
    assert f"the parameters are in {saved}" in err
    assert load_file(saved)


def test_all_nodes_end_when_the_launcher_was_killed(cluster):
    """Also one that is stopped."""
    with cluster.launch(MANY_STEPS) as run:
        wait_for_step(run)
        nodes = cluster.nodes()
        assert nodes.keys() == set(NODES)
        ends = [os.pidfd_open(pid) for pid in nodes.values()]
        os.kill(nodes["ps:0"], signal.SIGSTOP)
        run.kill()
        for end in ends:
            assert select.select([end], [], [], END_TIMEOUT)[0], "a node still runs"
            os.close(end)


@pytest.mark.parametrize(
    ("file", "options", "message"),
    [
        (
            "worker: [host-b, 10.9.0.99]\nps: host-c\n",
            ("--ssh", "ssh -o ConnectTimeout=1 {ssh}"),
            "worker:1: ssh to 10.9.0.99 failed: ",
        ),
        (
            "worker: [host-b, host-c]\nps: host-c\n",
            ("--python", "/no/python"),
            "hint: set --python to a Python with placer on the machines",
        ),
        (
            "worker: [host-b, host-c]\nps: -oProxyCommand=x\n",
            (),
            "'-oProxyCommand=x:27602' is not an address",
        ),
    ],
)
def test_a_node_that_cannot_be_started_is_named(cluster, file, options, message):
    given = [each.format(ssh=cluster.ssh.removeprefix("ssh ")) for each in options]
    run = cluster.launch(MANY_STEPS, *given, file=file)
    _, err = run.communicate(timeout=60)
    assert run.returncode in (1, 2), err
    assert message in err


@pytest.mark.slow
def test_data_that_is_not_on_a_machine_is_named_with_its_position(cluster, tmp_path):
    """The launcher has another folder for data, and cannot open it."""
    run = cluster.launch("--data", str(tmp_path))
    _, err = run.communicate(timeout=120)
    assert run.returncode == 1, err
    assert re.search(
        r"^worker:[01] failed: spread\.yaml:5:20: reader python:spread_rows:rows failed at"
        r" row 0: FileNotFoundError: .*numbers\.txt'$",
        err,
        re.MULTILINE,
    ), err
