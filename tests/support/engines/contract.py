"""What holds for a run on a real engine, whichever it is."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import placer
from support.real_runs import MANY_STEPS, CommandResult, RunningCommand

Launch = Callable[..., AbstractContextManager[RunningCommand]]
"""Starts a launcher with the options of `placer launch`."""
STEPS = 12


def bits_options(folder: Path) -> list[str]:
    """Return the options for `assert_bits_of_a_local_run`."""
    saved, history = folder / "saved.safetensors", folder / "history.jsonl"
    return [f"--steps={STEPS}", f"--save-params={saved}", f"--history={history}"]


def assert_bits_of_a_local_run(build: Path, folder: Path, steps: int = STEPS) -> None:
    """Compare the parameters and the history of a run with those of one on this machine."""
    local, history = folder / "local.safetensors", folder / "local.jsonl"
    placer.launch(
        build, steps=steps, save_params=local, history=history, in_process=True
    )
    assert (folder / "saved.safetensors").read_bytes() == local.read_bytes()
    assert _without_times(folder / "history.jsonl") == _without_times(history)


def kill_a_node(launch: Launch, process: Callable[[], int]) -> CommandResult:
    """Kill ps:0, and return the end of its launcher, which names it."""
    with launch(MANY_STEPS) as run:
        wait_for_step(run)
        os.kill(process(), signal.SIGKILL)
        ended = run.wait()
    assert ended.status == 1
    assert ended.last_message.startswith("ps:0 was killed by SIGKILL")
    return ended


def interrupt(launch: Launch) -> None:
    """Interrupt a run that saves nothing: it ends at once."""
    with launch(MANY_STEPS) as run:
        wait_for_step(run)
        send_interrupt(run)
        ended = run.wait()
    assert ended.status == 130
    assert "nothing was saved" in ended.err


def stop_and_save(
    launch: Launch,
    build: Path,
    folder: Path,
    stop: Callable[[RunningCommand], object],
    status: int,
) -> CommandResult:
    """Return the end of a run that is stopped: its nodes have saved after the same step,
    with the bits of a local run."""
    saved, local = folder / "saved.safetensors", folder / "local.safetensors"
    with launch(MANY_STEPS, f"--save-params={saved}") as run:
        wait_for_step(run)
        stop(run)
        ended = run.wait()
    assert ended.status == status
    match = re.search(r"stopped after step (\d+); the parameters are in", ended.err)
    assert match, ended.err
    placer.launch(build, steps=int(match[1]), save_params=local, in_process=True)
    assert saved.read_bytes() == local.read_bytes()
    return ended


def send_interrupt(run: RunningCommand) -> None:
    run.process.send_signal(signal.SIGINT)


def wait_for_step(run: RunningCommand) -> None:
    run.wait_for_line("step ")


def compile_sync(folder: Path, spec: str, nodes: dict[str, int]) -> Path:
    """Compile a spec whose runs have the same bits each time."""
    overrides = {"train.optimizer.update": "sync"}
    placer.compile(f"specs/{spec}.yaml", folder, nodes=nodes, overrides=overrides)
    return folder


def _without_times(history: Path) -> str:
    return re.sub(r'"seconds":[0-9.e+-]+,', "", history.read_text())
