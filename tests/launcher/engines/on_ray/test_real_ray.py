"""`placer launch --on ray` on a real Ray."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
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
from support.ray_cluster import Cluster, needs_ray, ray_cluster
from support.real_runs import (
    END_TIMEOUT,
    MANY_STEPS,
    TIMEOUT,
    CommandResult,
    RunningCommand,
    compile_small,
    placer_command,
    process_environment,
    run_command,
    running_command,
)

import placer

pytestmark = needs_ray
DISTURBED_STEPS = 200
"""The steps of a run with faults, which must not end before them."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ray_cluster() as cluster:
        yield cluster
        assert cluster.placement_groups() == "[]"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_small(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def heter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("heter") / "build"
    return compile_sync(folder, "digits_heter", {"worker": 1, "heter": 1, "ps": 1})


def launch_words(cluster: Cluster, build: Path, *options: object) -> list[object]:
    on = ["--on", "ray", "--option", f"address={cluster.address}"]
    return ["launch", build, "--json", *on, *options]


def running_job(
    cluster: Cluster, build: Path, *options: object
) -> AbstractContextManager[RunningCommand]:
    return running_command(placer_command(*launch_words(cluster, build, *options)))


def wait_until(is_true: Callable[[], bool]) -> None:
    until = time.monotonic() + END_TIMEOUT
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.05)


def wait_until_nothing_is_left(cluster: Cluster) -> None:
    wait_until(lambda: not cluster.nodes() and not cluster.actors())


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def is_running(process: int) -> bool:
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)


def actor_of(cluster: Cluster, node: str) -> int:
    """Return the process of the actor of a node, which has a guard."""
    return parent_of(parent_of(cluster.nodes()[node]))


def address_of(cluster: Cluster, node: str) -> str:
    """Return the address of a node in its command line."""
    process = cluster.nodes()[node]
    words = Path(f"/proc/{process}/cmdline").read_text().split("\0")
    listed = words[words.index("--endpoints") + 1].split(",")
    return dict(each.split("=") for each in listed)[node]


def restart_options(folder: Path) -> list[str]:
    """Return the options of a run that goes on after faults."""
    checkpoints = folder / "checkpoints"
    given = ["--restarts=5", "--checkpoint-every=20", f"--join-timeout={TIMEOUT:g}"]
    return [*given, f"--checkpoint={checkpoints}"]


def run_disturbed(
    cluster: Cluster,
    build: Path,
    folder: Path,
    *faults: Callable[[], object],
    options: Sequence[object] = (),
) -> CommandResult:
    """Launch a build with `--restarts`, and call each fault once all nodes train, and the next
    one once they have gone back. Check that the result has the bits of a local run."""
    saved, history = folder / "saved.safetensors", folder / "history.jsonl"
    words = [f"--steps={DISTURBED_STEPS}", f"--save-params={saved}"]
    words += [f"--history={history}", *restart_options(folder), *options]
    with running_job(cluster, build, *words) as run:
        wait_for_step(run)
        for fault in faults:
            fault()
            run.wait_for_line("all nodes ")
        ended = run.wait()
    assert ended.status == 0, ended.err
    assert json.loads(ended.out)["steps"] == DISTURBED_STEPS
    assert "has other metrics" not in ended.err
    assert_bits_of_a_local_run(build, folder, DISTURBED_STEPS)
    wait_until_nothing_is_left(cluster)
    return ended


def restarts_of(ended: CommandResult) -> list[tuple[str, str]]:
    """Return the node of each restart of a run, and its failure."""
    restarts = json.loads(ended.out)["restarts"]
    return [
        (each["node"], each["what"].removeprefix(f"{each['node']} "))
        for each in restarts
    ]


def break_placer(folder: Path) -> None:
    """Make a placer that cannot be imported."""
    (folder / "placer").mkdir()
    (folder / "placer" / "__init__.py").write_text("raise ImportError('not here')")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "nodes"),
    [
        ("digits_heter", {"worker": 1, "heter": 1, "ps": 1}),
        ("digits", {"worker": 2, "ps": 2}),
    ],
)
def test_the_bits_are_those_of_a_local_run(spec, nodes, cluster, tmp_path):
    build = compile_sync(tmp_path / "build", spec, nodes)
    ended = run_command(*launch_words(cluster, build, *bits_options(tmp_path)))
    assert ended.status == 0, ended.err
    assert json.loads(ended.out)["steps"] == STEPS
    assert_bits_of_a_local_run(build, tmp_path)
    assert not cluster.nodes()


@pytest.mark.slow
def test_killed_processes_come_back_in_their_actors_or_with_them(
    heter, cluster, tmp_path
):
    ended = run_disturbed(
        cluster,
        heter,
        tmp_path,
        lambda: kill(cluster.nodes()["ps:0"]),
        lambda: kill(actor_of(cluster, "worker:0")),  # of the control node
        lambda: kill(parent_of(cluster.nodes()["heter:0"])),
        lambda: [kill(actor_of(cluster, node)) for node in ("ps:0", "heter:0")],
    )
    first, second, third, both = restarts_of(ended)
    assert first == ("ps:0", "was killed by SIGKILL")
    assert second == ("worker:0", "lost its actor in Ray")
    assert third == ("heter:0", "was lost: its guard was killed by SIGKILL")
    assert both[0] in ("ps:0", "heter:0")


@pytest.mark.slow
def test_nodes_learn_the_address_of_one_that_moves(heter, cluster, tmp_path):
    with ExitStack() as exits:

        def move() -> None:
            """Kill an actor, and take the port of its node."""
            taken.append(address_of(cluster, "ps:0"))
            host, _, port = taken[0].rpartition(":")
            kill(actor_of(cluster, "ps:0"))
            until = time.monotonic() + END_TIMEOUT
            while True:
                try:
                    exits.enter_context(socket.create_server((host, int(port))))
                    return
                except OSError:
                    assert time.monotonic() < until

        def kill_peer() -> None:
            """Kill a process that connects to ps:0, and whose guard has started with the
            address before."""
            assert address_of(cluster, "ps:0") not in taken
            kill(cluster.nodes()["worker:0"])

        taken: list[str] = []
        ended = run_disturbed(cluster, heter, tmp_path, move, kill_peer)
    assert [node for node, _ in restarts_of(ended)] == ["ps:0", "worker:0"]


@pytest.mark.slow
def test_the_node_of_a_lost_machine_moves_to_another_one(heter, tmp_path):
    options = ["--option", "strategy=SPREAD"]
    with ray_cluster(cpus=3) as cluster:
        lost = []

        def lose_machine() -> None:
            machine = cluster.machine()
            lost.extend(each for each in cluster.actors() if parent_of(each) == machine)
            kill(machine)

        ended = run_disturbed(cluster, heter, tmp_path, lose_machine, options=options)
    assert 0 < len(lost) < 3
    assert len(restarts_of(ended)) == 1


@pytest.mark.slow
def test_a_node_without_another_machine_ends_the_run(build, tmp_path):
    options = ["--option", "strategy=STRICT_SPREAD", "--restarts=2", "--join-timeout=8"]
    options.append(f"--checkpoint={tmp_path / 'checkpoints'}")
    with ray_cluster() as cluster:
        with running_job(cluster, build, MANY_STEPS, *options) as run:
            wait_for_step(run)
            kill(cluster.machine())
            ended = run.wait()
        assert ended.status == 1
        assert "ray| waits at most 8 s for Ray to start the actor of " in ended.err
        assert re.search("(was lost|did not join)", ended.last_message)
        wait_until_nothing_is_left(cluster)


def test_a_killed_node_is_named(build, cluster, tmp_path, monkeypatch):
    launch = partial(running_job, cluster, build, "--logs", tmp_path / "logs")
    # Modules of the working folder are not for Ray's workers.
    break_placer(tmp_path)
    with monkeypatch.context() as context:
        context.chdir(tmp_path)
        ended = kill_a_node(launch, lambda: cluster.nodes()["ps:0"])
    where = rf"ray\| Ray job \d+ of the cluster {cluster.address}: 2 nodes run on "
    assert re.search(where, ended.err)
    assert "\n  host: " in ended.last_message
    assert "ps:0 has 1 of 1 table" in (tmp_path / "logs" / "ps-0.log").read_text()
    wait_until_nothing_is_left(cluster)


def test_nothing_is_left_of_a_launcher_that_is_killed(build, cluster):
    with running_job(cluster, build, MANY_STEPS) as run:
        wait_for_step(run)
        assert len(cluster.actors()) == 2
        run.process.kill()
        wait_until_nothing_is_left(cluster)


def test_an_interrupted_launcher_lets_the_nodes_save_also_after_an_actor_is_killed(
    build, cluster, tmp_path
):
    launch = partial(running_job, cluster, build, *restart_options(tmp_path))

    def stop(run: RunningCommand) -> None:
        kill(actor_of(cluster, "ps:0"))
        run.wait_for_line("all nodes ")
        send_interrupt(run)

    ended = stop_and_save(launch, build, tmp_path, stop, 130)
    assert "warning: ps:0 lost its actor in Ray; all nodes go" in ended.err
    wait_until_nothing_is_left(cluster)


def test_a_job_that_never_fits_is_an_error(build, cluster):
    options = ["--option", "cpus=3"]
    ended = run_command(*launch_words(cluster, build, *options))
    assert ended.status == 1
    assert ended.last_message.startswith(
        "the Ray cluster is too small: the plan needs 6 CPUs, but the cluster has 4"
        " CPUs"
    )


@pytest.mark.slow
def test_an_interrupted_launcher_ends_the_job(build, cluster):
    interrupt(partial(running_job, cluster, build))
    wait_until_nothing_is_left(cluster)


@pytest.mark.slow
def test_an_actor_that_dies_is_named(build, cluster):
    with running_job(cluster, build, MANY_STEPS) as run:
        wait_for_step(run)
        os.kill(parent_of(cluster.nodes()["ps:0"]), signal.SIGKILL)
        ended = run.wait()
    assert ended.status == 1
    assert "ps:0 was lost" in ended.last_message
    assert "because its worker process has died" in ended.last_message
    wait_until_nothing_is_left(cluster)


@pytest.mark.slow
def test_nothing_is_left_of_a_machine_that_is_lost(build):
    with ray_cluster() as cluster:
        options = ["--option", "strategy=STRICT_SPREAD"]
        with running_job(cluster, build, MANY_STEPS, *options) as run:
            wait_for_step(run)
            actors = cluster.actors()
            os.kill(parent_of(actors[-1]), signal.SIGKILL)  # Ray's process of a machine
            ended = run.wait()
        assert ended.status == 1
        assert re.match(r"\S+ was lost .*\(Ray says: ", ended.last_message)
        wait_until(lambda: not cluster.nodes() and not any(map(is_running, actors)))


@pytest.mark.slow
def test_a_lost_head_is_named(build, monkeypatch):
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "12")
    with ray_cluster() as cluster, running_job(cluster, build, MANY_STEPS) as run:
        wait_for_step(run)
        os.kill(cluster.head(), signal.SIGKILL)
        ended = run.wait()
    assert ended.status == 1
    lost = f"ray| the head of the Ray cluster, {cluster.address}, does not answer: "
    assert lost in ended.err
    assert "Failed to connect to GCS" in ended.last_message
    wait_until(lambda: not cluster.nodes())


@pytest.mark.slow
def test_an_actor_that_cannot_begin_says_why(build, tmp_path, monkeypatch):
    break_placer(tmp_path)
    with monkeypatch.context() as context:
        context.setenv("PYTHONPATH", str(tmp_path))
        with ray_cluster() as cluster:
            context.undo()
            ended = run_command(*launch_words(cluster, build))
    assert ended.status == 1
    assert re.match(r"(worker|ps):0: Ray says:\n    The actor died", ended.last_message)
    assert ended.last_message.endswith("ImportError: not here")


@pytest.mark.slow
def test_a_job_that_gets_no_machines_is_an_error(build, cluster):
    options = ["--option", "cpus=3", "--option", "grows=true", "--option", "timeout=4"]
    ended = run_command(*launch_words(cluster, build, *options))
    assert ended.status == 1
    assert "ray| waits at most 4 s for machines" in ended.err
    assert re.match(
        r"the Ray cluster had no room for the job within 4 s: the plan needs 6"
        r" CPUs, .* but the cluster has 4 CPUs \(4 free\)",
        ended.last_message,
    )


@pytest.mark.slow
def test_a_written_job_runs_by_hand(build, cluster, tmp_path):
    job, saved = tmp_path / "job", tmp_path / "saved.safetensors"
    options = ["--steps=3", f"--save-params={saved}", "--write", job]
    words = launch_words(cluster, build, *options)
    words.remove("--json")  # nothing is run
    written = run_command(*words)
    assert written.status == 0, written.err
    done = subprocess.run(
        [sys.executable, job / "run.py"],
        env=process_environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "3 steps" in done.stdout
    assert saved.exists()


def test_a_cluster_that_is_not_there_is_an_error(build, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    on = placer.OnEngine("ray", {"address": "127.0.0.1:1"})
    with pytest.raises(
        placer.RunError, match=r"no Ray cluster answers at 127\.0\.0\.1:1: Conn"
    ):
        placer.launch(build, on=on, logs="logs")
