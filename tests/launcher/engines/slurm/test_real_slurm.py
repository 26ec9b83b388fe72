"""`placer launch --on slurm` on a real Slurm."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from support.engines.contract import (
    STEPS,
    assert_bits_of_a_local_run,
    bits_options,
    compile_sync,
    interrupt,
    kill_a_node,
    send_interrupt,
    stop_and_save,
    wait_for_step,
)
from support.real_runs import (
    MANY_STEPS,
    TIMEOUT,
    RunningCommand,
    compile_small,
    placer_command,
    running_command,
)
from support.slurm import (
    jobs,
    needs_slurm,
    scheduling,
    slurm,
    slurm_options,
    wait_for_end,
)

from placer.launcher.engines.engine import JobFolder, NodeEnded, NodeLines
from placer.launcher.engines.slurm import submit, watch, write
from placer.launcher.job_folder import write_job_files

pytestmark = needs_slurm


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with (
        slurm(tmp_path_factory.mktemp("slurm") / "slurm") as environment,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SLURM_CONF", environment["SLURM_CONF"])
        yield environment


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_small(tmp_path_factory.mktemp("small"), workers=2)


def running_job(
    build: Path, folder: Path, *options: object
) -> AbstractContextManager[RunningCommand]:
    """Start a launcher whose job has its files in `folder`."""
    words = ["launch", build, "--json", "--on", "slurm"]
    words += ["--logs", folder / "job", *options]
    return running_command(placer_command(*words))


def tasks(folder: Path) -> dict[str, int]:
    """Return the ids of the processes of the nodes of a job, by the number of the
    task."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            here = os.readlink(entry / "cwd")
            variables = dict(
                pair.split(b"=", 1)
                for pair in (entry / "environ").read_bytes().split(b"\0")
                if b"=" in pair
            )
        except OSError:  # it has ended
            continue
        if here == str(folder / "job") and b"placer.command" in words:
            found[variables[b"SLURM_PROCID"].decode()] = int(entry.name)
    return found


def wait_until_none(folder: Path) -> None:
    until = time.monotonic() + 20
    while left := tasks(folder):
        assert time.monotonic() < until, left
        time.sleep(0.05)


@contextmanager
def busy(machine: str, cpus: int) -> Iterator[None]:
    """Keep CPUs of a machine from other jobs."""
    words = [f"--nodelist={machine}", f"--cpus-per-task={cpus}", "--mem=100"]
    words += ["--output=/dev/null", "--wrap=sleep 1000", "--parsable"]
    number = subprocess.check_output(["sbatch", *words], text=True).strip()
    wait_for_state(number, "RUNNING")
    try:
        yield
    finally:
        subprocess.run(["scancel", number], check=True)


def wait_for_state(number: str, state: str) -> None:
    until = time.monotonic() + 20
    while (found := squeue(number)) != state:
        assert time.monotonic() < until, found
        time.sleep(0.05)


def squeue(number: str) -> str:
    words = ["squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={number}"]
    return subprocess.check_output(words, text=True).partition("\n")[0]


@pytest.mark.parametrize(
    ("spec", "nodes"),
    [
        pytest.param("digits", {"worker": 2, "ps": 2}, marks=pytest.mark.slow),
        pytest.param(
            "digits_heter",
            {"worker": 2, "heter": 2, "ps": 1},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_bits_are_those_of_a_local_run(spec, nodes, cluster, tmp_path):
    build = compile_sync(tmp_path / "build", spec, nodes)
    # The workers do not fit on n1, and the servers do: the groups are in another order
    # than their machines.
    options = bits_options(tmp_path)
    with busy("n1", cpus=5), running_job(build, tmp_path, *options) as run:
        ended = run.wait()
    assert ended.status == 0, ended.err
    assert json.loads(ended.out)["steps"] == STEPS
    assert re.search(r"slurm\| Slurm job \d+ keeps running .*: scancel \d+", ended.err)
    assert_bits_of_a_local_run(build, tmp_path)
    wait_for_end(cluster)


def test_a_killed_node_is_named(build, cluster, tmp_path):
    launch = partial(running_job, build, tmp_path)
    ended = kill_a_node(launch, lambda: tasks(tmp_path)["2"])
    assert "\n  log: " in ended.last_message
    wait_until_none(tmp_path)
    wait_for_end(cluster)


@pytest.mark.slow
def test_an_interrupted_launcher_cancels_the_job(build, cluster, tmp_path):
    interrupt(partial(running_job, build, tmp_path))
    wait_until_none(tmp_path)
    wait_for_end(cluster)


def test_an_interrupted_launcher_lets_the_nodes_save(build, cluster, tmp_path):
    launch = partial(running_job, build, tmp_path)
    stop_and_save(launch, build, tmp_path, send_interrupt, 130)
    wait_for_end(cluster)


def test_a_cancelled_job_saves(build, cluster, tmp_path):
    launch = partial(running_job, build, tmp_path)

    def cancel(run):
        number = jobs(cluster)[0].partition("+")[0]
        subprocess.run(["scancel", number], check=True)

    ended = stop_and_save(launch, build, tmp_path, cancel, 143)
    assert_warned(ended.err, r"JOB \d+ ON n\d+ CANCELLED AT")
    assert ended.last_message == "ended by SIGTERM"
    wait_until_none(tmp_path)
    wait_for_end(cluster)


@pytest.mark.slow
def test_a_job_that_reaches_its_time_limit_is_named(build, cluster, tmp_path):
    with running_job(build, tmp_path, MANY_STEPS, "--option", "time=0:01") as run:
        run.wait_for_line("slurm| Slurm job ")
        ended = run.wait()
    assert ended.status == 143
    assert_warned(ended.err, "DUE TO TIME LIMIT")
    wait_for_end(cluster)


@pytest.mark.slow
def test_a_run_ends_while_the_controller_is_frozen(build, cluster, tmp_path):
    controller = int((Path(cluster["SLURM_CONF"]).parent / "slurmctld.pid").read_text())
    saved = tmp_path / "saved.safetensors"
    with running_job(build, tmp_path, "--steps=3000", f"--save-params={saved}") as run:
        wait_for_step(run)
        os.kill(controller, signal.SIGSTOP)
        try:
            ended = run.wait()
        finally:
            os.kill(controller, signal.SIGCONT)
    assert ended.status == 0, ended.err
    assert saved.exists()
    wait_for_end(cluster)


def test_a_job_goes_on_without_its_launcher(build, cluster, tmp_path):
    with running_job(build, tmp_path, *bits_options(tmp_path)) as run:
        run.wait_for_line("slurm| Slurm job ")
        run.process.kill()
    wait_for_end(cluster, TIMEOUT)
    assert_bits_of_a_local_run(build, tmp_path)


def test_a_job_that_slurm_refuses_is_an_error(build, cluster, tmp_path):
    with running_job(build, tmp_path, "--option", "memory=1000GiB") as run:
        ended = run.wait()
    assert ended.status == 1
    assert ended.last_message.startswith("sbatch failed:\n    sbatch: error: ")
    assert "not available" in ended.last_message
    assert jobs(cluster) == []


def test_a_lost_task_lets_slurm_start_the_job_again(small, cluster, tmp_path):
    """Scripts take the place of the nodes; `test_started_again` has real ones."""
    node = tmp_path / "node"
    node.write_text(NODE)
    node.chmod(0o755)
    options = slurm_options(python=str(node))
    request = replace(small, restarts=1, run_id="abc")
    folder = tmp_path / "job"
    write_job_files(folder, write(request, options), tmp_path / "build")
    job = submit(folder, request, options)
    with scheduling(cluster):
        events = [*watch(job)]
    again = events.index(JobFolder(job.at_start(1).folder))
    lost = [each for each in events[:again] if isinstance(each, NodeLines)]
    assert [each.node for each in lost[-2:]] == ["ps:0", "worker:0"]
    assert all(b"was killed by SIGKILL" in each.lines[0] for each in lost[-2:])
    ends = [each.status for each in events if isinstance(each, NodeEnded)]
    assert ends == [0, 0]
    wait_for_end(cluster)


NODE = """\
#!/bin/bash
while [[ $1 != --events ]]; do shift; done
echo '{"event": "state", "node": "worker:0", "state": "running"}' >"$2"
[[ -z ${SLURM_RESTART_COUNT-} ]] || exit 0
((SLURM_PROCID == 0)) || kill -KILL $$
exec sleep 600
"""
"""A node. In the first start of the job, it kills itself as the second task, and else waits."""


def assert_warned(said: str, by_slurm: str) -> None:
    warning = rf"\nwarning: Slurm job \d+ has state [^\n]*(\n    [^\n]*)*{by_slurm}"
    assert re.search(warning, said), said
