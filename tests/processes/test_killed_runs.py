"""A run whose processes are killed or interrupted continues from its last checkpoint."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support.checkpointed import build, check_equal, lines, spec
from support.marks import slow_but
from support.real_runs import (
    MANY_STEPS,
    first_step_waiter,
    launch,
    node_processes,
    nodes_by_hand,
    placer_command,
    process_environment,
    running_launch,
    wait_for_exit,
)

from placer.checkpoint.folder import list_checkpoints
from placer.checkpoint.manifest import Manifest

EPOCHS = 80  # of six steps
NODES = {"worker": {"count": 1}, "ps": {"count": 1}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that is left alone."""
    folder = tmp_path_factory.mktemp("whole")
    built = build(folder, spec(nodes=NODES, train={"epochs": EPOCHS}))
    options = [f"--history={folder / 'history'}", f"--save-params={folder / 'params'}"]
    ended = launch(built, *options)
    assert ended.status == 0, ended.err
    return folder


def last_checkpoint(folder: Path) -> Manifest | None:
    listed = list_checkpoints(folder) if folder.exists() else []
    return listed[0][1] if listed else None


def kill_all(built: Path, launcher: int) -> None:
    """Kill the processes of a run, its launcher first, so that it does not end them."""
    nodes = node_processes(built).values()
    for process in (launcher, *nodes):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    wait_for_exit(nodes)


def check_killed(whole: Path, folder: Path, kills: int, seed: int) -> None:
    """Kill a run at random moments after its first step, continue it each time, and
    compare it with one that was left alone."""
    draw = random.Random(seed)
    kept, built = folder / "checkpoints", whole / "b"
    options = [f"--checkpoint={kept}", "--checkpoint-every=3"]
    options += [f"--history={folder / 'history'}", f"--save-params={folder / 'params'}"]
    killed = 0
    while killed < kills:
        before = last_checkpoint(kept)
        resume = [f"--resume={kept}"] if before is not None else []
        with running_launch(built, *options, *resume) as run:
            run.wait_for_line("step ")
            time.sleep(draw.uniform(0, 0.1))
            kill_all(built, run.process.pid)
            run.wait()
        killed += 1
        after = last_checkpoint(kept)
        if after is not None and after.progress.step == 6 * EPOCHS:
            break
    resume = [f"--resume={kept}"] if last_checkpoint(kept) is not None else []
    if not (folder / "params").exists():
        ended = launch(built, *options, "--steps", 6 * EPOCHS, *resume)
        assert ended.status == 0, ended.err
    check_equal(folder / "params", whole / "params")
    assert lines(folder / "history") == lines(whole / "history")


def test_a_run_that_is_killed_at_random_moments_has_the_same_bits(whole, tmp_path):
    check_killed(whole, tmp_path, kills=10, seed=0)


@pytest.mark.slow
def test_a_run_that_is_killed_often_has_the_same_bits(whole, tmp_path):
    check_killed(whole, tmp_path, kills=100, seed=random.randrange(1 << 30))


@pytest.mark.parametrize(
    ("target", "number"),
    slow_but(
        [
            ("launcher", signal.SIGINT),
            ("ps:0", signal.SIGTERM),
            ("all", signal.SIGTERM),
        ],
        [
            ("launcher", signal.SIGINT),
            ("launcher", signal.SIGTERM),
            ("worker:0", signal.SIGHUP),
            ("ps:0", signal.SIGTERM),
            ("all", signal.SIGTERM),
        ],
    ),
)
def test_a_signal_saves_a_checkpoint_after_the_same_step(
    whole, tmp_path, target, number
):
    """A scheduler that ends a job sends its signal to all processes, here twice."""
    kept, built = tmp_path / "checkpoints", whole / "b"
    options = [f"--checkpoint={kept}", f"--history={tmp_path / 'history'}"]
    with running_launch(built, *options, "--checkpoint-every=1h") as run:
        run.wait_for_line("step ")
        processes = node_processes(built) | {"launcher": run.process.pid}
        for each in [*processes, *processes] if target == "all" else [target]:
            os.kill(processes[each], number)
        ended = run.wait()
    assert ended.status == 128 + number
    match = re.search(r"stopped after step (\d+); the checkpoint is (.*)", ended.err)
    assert match, ended.err
    (only,) = list_checkpoints(kept)
    assert str(only[0]) == match[2]
    assert only[1].progress.step == int(match[1])
    if target != "all":
        return
    options.append(f"--save-params={tmp_path / 'params'}")
    ended = launch(built, *options, f"--resume={kept}")
    assert f"continuing after step {match[1]} from {only[0]}, with the same bits" in (
        ended.err
    )
    check_equal(tmp_path / "params", whole / "params")
    assert lines(tmp_path / "history") == lines(whole / "history")


@pytest.mark.slow  # tests/runtime/run/test_interruption.py has the text
def test_without_a_folder_a_signal_says_that_nothing_is_kept(whole):
    with running_launch(whole / "b", MANY_STEPS) as run:
        run.wait_for_line("step ")
        run.process.send_signal(signal.SIGINT)
        ended = run.wait()
    assert ended.status == 130
    assert "nothing was saved: with --checkpoint DIR, an interrupted run can be" in (
        ended.err
    )


def test_a_signal_to_any_node_saves_a_checkpoint(whole, tmp_path):
    kept, history = tmp_path / "checkpoints", tmp_path / "history"
    options = MANY_STEPS, f"--checkpoint={kept}", f"--history={history}"
    with (
        first_step_waiter(history) as wait_for_first_step,
        nodes_by_hand(whole / "b", *options) as runs,
    ):
        wait_for_first_step()
        for _ in range(2):  # at once: they count as one
            runs["ps:0"].process.send_signal(signal.SIGTERM)
        ended = {node: run.wait() for node, run in runs.items()}
    assert ended["worker:0"].status == 0
    step = int(re.search(r"([\d,]+) steps", ended["worker:0"].out)[1].replace(",", ""))
    manifest = last_checkpoint(kept)
    assert manifest is not None
    assert manifest.progress.step == step


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs to mount"
)
def test_a_node_without_the_folder_sends_and_receives_its_file(whole, tmp_path):
    """The server runs where another file system is mounted at the folder's path."""
    kept, params = tmp_path / "checkpoints", tmp_path / "params"
    kept.mkdir()
    # placer run and its options, in a namespace where the folder is an empty one.
    hidden = tmp_path / "hidden"
    hidden.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *"--node ps:0"*) exec unshare --mount sh -c '
        f'\'mount -t tmpfs none {kept} && exec "$@"\' sh "$@" ;; esac\n'
        'exec "$@"\n'
    )
    hidden.chmod(0o755)
    for steps, extra in (
        (30, []),
        (6 * EPOCHS, [f"--resume={kept}", f"--save-params={params}"]),
    ):
        options = [f"--steps={steps}", f"--checkpoint={kept}", *extra]
        run_hidden(whole / "b", hidden, options)
        manifest = last_checkpoint(kept)
        assert manifest is not None
        assert manifest.progress.step == steps
        assert "ps-0.safetensors" in manifest.files
    check_equal(params, whole / "params")


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs to mount"
)
def test_a_run_whose_last_checkpoint_does_not_fit_the_disk_fails(whole, tmp_path):
    """The folder is a file system of 64 KiB, and a checkpoint takes more than that."""
    kept, params = tmp_path / "checkpoints", tmp_path / "params"
    kept.mkdir()
    wide = spec(nodes=NODES)
    wide["graph"][0]["ops"][0]["size"] = 4096
    built = build(tmp_path, wide)
    command = placer_command("launch", built, f"--checkpoint={kept}")
    mount = f'mount -t tmpfs -o size=64k none {kept} && exec "$@"'
    ended = subprocess.run(
        [
            "unshare",
            "--mount",
            "sh",
            "-c",
            mount,
            "sh",
            *command,
            f"--save-params={params}",
        ],
        env=process_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 1
    warning = "warning: the checkpoint of step 6 could not be written: "
    assert warning in ended.stderr
    assert "0: No space left on device" in ended.stderr
    assert "the checkpoint of step 24 could not be written: " in ended.stderr
    assert "its last complete checkpoint is none" in ended.stderr
    assert params.exists()


def run_hidden(built: Path, wrapper: Path, options: list[str]) -> None:
    """Run all nodes of a build by hand, each through a command."""
    from placer.channel.ports import free_endpoints

    endpoints = free_endpoints(["worker:0", "ps:0"])
    listed = ",".join(f"{node}={address}" for node, address in endpoints.items())
    processes = [
        subprocess.Popen(
            [
                str(wrapper),
                *placer_command("run", built, "--node", node, "--endpoints", listed),
                *options,
                "--transport=zeromq",
            ],
            env=process_environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in endpoints
    ]
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert "warning" not in err
