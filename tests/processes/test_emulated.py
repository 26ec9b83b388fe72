"""Nodes as processes with emulated devices."""

from __future__ import annotations

from pathlib import Path

from support.gpu import without_gpu
from support.real_runs import launch

from placer.compiler.driver import compile
from placer.system.resources import find_file


def compile_for_gpus(folder: Path) -> Path:
    """Compile a model for one worker with two GPUs, and return the build."""
    text = find_file("specs/digits.yaml").read_text(encoding="utf-8")
    text = text.replace(
        "{count: 2, devices: {cpu: 1}}", "{count: 1, devices: {gpu: 2}}"
    )
    text = text.replace("ps: {count: 2}", "ps: {count: 1}")
    spec = folder / "digits.yaml"
    spec.write_text(text.replace("/node:worker/cpu", "/node:worker/gpu"))
    compile(spec, folder / "build")
    return folder / "build"


def test_processes_emulate_their_devices_and_say_so(tmp_path: Path) -> None:
    ended = launch(compile_for_gpus(tmp_path), "--steps=3", "--emulate")
    assert ended.status == 0, ended.err
    assert "every gpu is emulated by a CPU device" in ended.err


@without_gpu
def test_without_emulation_the_missing_gpu_is_an_error(tmp_path: Path) -> None:
    ended = launch(compile_for_gpus(tmp_path), "--steps=3")
    assert ended.status == 1
    assert "this machine has no gpu:0, only cpu" in ended.last_message
