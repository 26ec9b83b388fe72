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
from dataclasses import dataclass
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
    processes_of,
    running_launch,
    wait_for_exit,
)

from placer.checkpoint.folder import list_checkpoints
from placer.checkpoint.manifest import Manifest

EPOCHS, EPOCH = 80, 6  # an epoch is six steps
NODES = {"worker": {"count": 1}, "ps": {"count": 1}}
MOMENTS = ("while it starts", "while it runs", "when it ends")


@dataclass(frozen=True)
class Whole:
    """A run that is left alone.

    Attributes:
        build: its build.
        history, params: its files.
        start: the seconds from its start to its first step.
    """

    build: Path
    history: Path
    params: Path
    start: float


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    built = build(folder, spec(nodes=NODES, train={"epochs": EPOCHS}))
    history, params = folder / "history", folder / "params"
    options = [f"--history={history}", f"--save-params={params}"]
    begin = time.monotonic()
    with running_launch(built, *options) as run:
        run.wait_for_line("step ")
        start = time.monotonic() - begin
        ended = run.wait()
    assert ended.status == 0, ended.err
    return Whole(built, history, params, start)


def last_checkpoint(folder: Path) -> Manifest | None:
    listed = list_checkpoints(folder) if folder.exists() else []
    return listed[0][1] if listed else None


def last_step(folder: Path) -> int:
    """Return the step of the last checkpoint of a folder; 0 if it has none."""
    last = last_checkpoint(folder)
    return last.progress.step if last is not None else 0


def kill_all(built: Path, launcher: int) -> None:
    """Kill the processes of a run, its launcher first, so that it does not end them."""
    with suppress(ProcessLookupError):
        os.kill(launcher, signal.SIGKILL)
    while processes := processes_of(built) - {launcher}:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        wait_for_exit(processes)


class KilledRun:
    """A run that is killed and continued, in a folder of its own."""

    def __init__(self, whole: Whole, folder: Path) -> None:
        folder.mkdir()
        self._whole, self.kept = whole, folder / "checkpoints"
        self._history, self._params = folder / "history", folder / "params"
        self._options = [
            f"--checkpoint={self.kept}",
            "--checkpoint-every=3",
            f"--history={self._history}",
            f"--save-params={self._params}",
        ]

    @property
    def is_near_end(self) -> bool:
        """Whether only the last epoch is left, which `finish` trains."""
        return last_step(self.kept) >= EPOCH * (EPOCHS - 1)

    def kill(self, moment: str, draw: random.Random) -> bool:
        """Continue the run, and kill it at such a moment; return whether it was killed
        before it ended."""
        steps = EPOCH * (EPOCHS - 1)
        if moment == MOMENTS[2]:
            steps = min(steps, last_step(self.kept) // EPOCH * EPOCH + 2 * EPOCH)
        with running_launch(
            self._whole.build, *self._options, f"--steps={steps}", *self._resume()
        ) as run:
            if moment == MOMENTS[0]:
                time.sleep(draw.uniform(0, self._whole.start))
            elif moment == MOMENTS[1]:
                run.wait_for_line("step ")
                time.sleep(draw.uniform(0, 0.1))
            else:
                run.wait_for_line(f"evaluation after step {steps} ")
                time.sleep(draw.uniform(0, 0.05))
            kill_all(self._whole.build, run.process.pid)
            return run.wait().status == -signal.SIGKILL

    def finish(self) -> None:
        """Continue the run to its end, and compare it with one that was left alone."""
        ended = launch(self._whole.build, *self._options, *self._resume())
        assert ended.status == 0, ended.err
        check_equal(self._params, self._whole.params)
        assert lines(self._history) == lines(self._whole.history)

    def _resume(self) -> list[str]:
        return [f"--resume={self.kept}"] if last_step(self.kept) else []


def check_killed(whole: Whole, folder: Path, kills: int, seed: int) -> None:
    """Kill runs so often, at random moments, and continue each to its end.

    A third of the kills come before the first step, some of them while a checkpoint is
    loaded; a third during the first steps; a third after the last step, some of them
    while the last checkpoint or the parameters are written.
    """
    draw = random.Random(seed)
    moments = [MOMENTS[i % 3] for i in range(kills)]
    draw.shuffle(moments)
    killed = 0
    while moments:
        run = KilledRun(whole, folder / f"after {killed} kills")
        while moments and not run.is_near_end:
            if run.kill(moments[-1], draw):
                moments.pop()
                killed += 1
        run.finish()
    assert killed == kills


@pytest.mark.slow  # tests/recovery kills nodes at each point of a run
def test_a_run_that_is_killed_at_random_moments_has_the_same_bits(whole, tmp_path):
    check_killed(whole, tmp_path, kills=3, seed=0)


@pytest.mark.slow
def test_a_run_that_is_killed_often_has_the_same_bits(whole, tmp_path):
    check_killed(whole, tmp_path, kills=100, seed=random.randrange(1 << 30))


@pytest.mark.parametrize(
    ("target", "number"),
    slow_but(
        [
            ("launcher", signal.SIGINT),
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
    kept, built = tmp_path / "checkpoints", whole.build
    options = [f"--checkpoint={kept}", f"--history={tmp_path / 'history'}"]
    with running_launch(built, *options, "--checkpoint-every=1h") as run:
        run.wait_for_line("step ")
        processes = node_processes(built) | {"launcher": run.process.pid}
        for each in [*processes, *processes] if target == "all" else [target]:
            os.kill(processes[each], number)
        ended = run.wait()
    assert ended.status == 128 + number
    match = re.search(
        rf"stopped after step (\d+); continue with placer launch {built}"
        rf" --json .* --checkpoint-every 1h --checkpoint {kept} --resume (.*)",
        ended.err,
    )
    assert match, ended.err
    (last, manifest), *_ = list_checkpoints(kept)  # others are of good evaluations
    assert str(last) == match[2]
    assert manifest.progress.step == int(match[1])
    if target != "all":
        return
    options.append(f"--save-params={tmp_path / 'params'}")
    ended = launch(built, *options, f"--resume={kept}")
    assert f"continuing after step {match[1]} from {last}, with the same bits" in (
        ended.err
    )
    check_equal(tmp_path / "params", whole.params)
    assert lines(tmp_path / "history") == lines(whole.history)


@pytest.mark.slow  # tests/runtime/signals/test_interruption.py has the text
def test_without_a_folder_a_signal_says_that_nothing_is_kept(whole):
    with running_launch(whole.build, MANY_STEPS) as run:
        run.wait_for_line("step ")
        run.process.send_signal(signal.SIGINT)
        ended = run.wait()
    assert ended.status == 130
    assert "nothing was saved; add 'checkpoint' (--checkpoint DIR) to be" in ended.err


def test_a_signal_to_any_node_saves_a_checkpoint(whole, tmp_path):
    kept, history = tmp_path / "checkpoints", tmp_path / "history"
    options = MANY_STEPS, f"--checkpoint={kept}", f"--history={history}"
    with (
        first_step_waiter(history) as wait_for_first_step,
        nodes_by_hand(whole.build, *options) as runs,
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
        (EPOCH * EPOCHS, [f"--resume={kept}", f"--save-params={params}"]),
    ):
        options = [f"--steps={steps}", f"--checkpoint={kept}", *extra]
        run_hidden(whole.build, hidden, options)
        manifest = last_checkpoint(kept)
        assert manifest is not None
        assert manifest.progress.step == steps
        assert "ps-0.safetensors" in manifest.files
    check_equal(params, whole.params)


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
    from placer.channel.keys import new_key, write_key
    from placer.channel.ports import free_endpoints

    key = built.parent / "run.key"
    if not key.exists():
        write_key(key, new_key())
    endpoints = free_endpoints(["worker:0", "ps:0"])
    listed = ",".join(f"{node}={address}" for node, address in endpoints.items())
    processes = [
        subprocess.Popen(
            [
                str(wrapper),
                *placer_command("run", built, "--node", node, "--endpoints", listed),
                *options,
                "--transport=tcp",
                f"--key={key}",
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
