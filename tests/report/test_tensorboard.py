"""A run writes its scalars for TensorBoard, whose own loader reads them back."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.callback_runs import Recorder, compile_for_callbacks
from support.real_runs import placer_command, process_environment
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import placer
from placer.errors import PlacerError
from placer.runtime.callbacks.tensorboard import TensorBoard


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_for_callbacks(tmp_path_factory.mktemp("tensorboard"))


def scalars(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """Return the wall time, step and value of each scalar by tag."""
    loaded = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    loaded.Reload()
    return {
        tag: [(e.step, e.value, e.wall_time) for e in loaded.Scalars(tag)]
        for tag in loaded.Tags()["scalars"]
    }


def steps_of(events: list[tuple[int, float, float]]) -> list[int]:
    return [step for step, _, _ in events]


def test_tensorboard_reads_all_scalars_at_their_steps(
    build: Path, tmp_path: Path
) -> None:
    calls: list = []
    result = placer.launch(
        build,
        steps=6,
        in_process=True,
        tensorboard=tmp_path / "runs",
        callbacks=[Recorder(calls)],
    )
    read = scalars(tmp_path / "runs" / "small-1")
    assert set(read) == {
        "train/loss",
        "eval/loss",
        "epoch/loss",
        "learning_rate",
        "samples_per_second",
    }
    records = {record.step: record for _, what, record in calls if what == "step"}
    assert steps_of(read["train/loss"]) == [1, 2, 3, 4, 5, 6]
    assert steps_of(read["eval/loss"]) == [2, 4, 6]
    assert steps_of(read["epoch/loss"]) == [3, 6]
    for step, value, wall_time in read["train/loss"]:
        assert value == pytest.approx(records[step].metrics["loss"], rel=1e-6)
        assert wall_time == pytest.approx(records[step].time)
    for step, value, _ in read["eval/loss"]:
        assert value == pytest.approx(records[step].eval["loss"], rel=1e-6)
    assert read["epoch/loss"][-1][1] == pytest.approx(result.metrics["loss"], rel=1e-6)
    rates = [value for _, value, _ in read["learning_rate"]]
    assert rates == pytest.approx([0.1] * 6)


def test_new_numbers_are_in_the_file_while_the_run_continues(
    build: Path, tmp_path: Path
) -> None:
    seen = []

    class Watch(placer.Callback):
        def on_step(self, record: placer.Record) -> object:
            folder = tmp_path / "small-1"
            read = scalars(folder) if folder.is_dir() else {}
            seen.append(len(read.get("train/loss", [])))
            return placer.STOP if seen[-1] > 2 else None

    placer.launch(
        build,
        steps=10_000_000,
        in_process=True,
        tensorboard=tmp_path,
        callbacks=[Watch()],
    )
    assert seen[-1] > 2


def test_a_resumed_run_continues_the_events_of_its_checkpoint(
    build: Path, tmp_path: Path
) -> None:
    events, saved = tmp_path / "events", tmp_path / "saved"
    options = {"in_process": True, "tensorboard": events, "checkpoint": saved}
    placer.launch(build, steps=5, checkpoint_every="2", **options)
    placer.launch(build, steps=2, in_process=True, tensorboard=events)
    first = scalars(events / "small-1")
    placer.launch(build, steps=7, resume=saved / "step-000004", **options)
    assert sorted(each.name for each in events.iterdir()) == ["small-1", "small-2"]
    read = scalars(events / "small-1")
    assert steps_of(read["train/loss"]) == [1, 2, 3, 4, 5, 6, 7]
    assert read["train/loss"][:4] == first["train/loss"][:4]
    # The event of step 5 is that of the second run.
    assert read["train/loss"][4][2] > first["train/loss"][4][2]
    assert steps_of(read["eval/loss"]) == [2, 4, 6, 7]
    assert steps_of(scalars(events / "small-2")["train/loss"]) == [1, 2]


def test_repeated_steps_replace_the_earlier_ones(tmp_path: Path) -> None:
    """As after a failure of an asynchronous run with `--restarts`."""
    with TensorBoard(tmp_path) as writer:
        for step in range(1, 6):
            writer.on_step(placer.Record(step, 1, {"loss": 1.0}))
        for step in range(3, 7):
            record = placer.Record(step, 1, {"loss": 2.0}, again=step < 6)
            writer.on_step(record)
    losses = scalars(tmp_path)["train/loss"]
    assert steps_of(losses) == [*range(1, 7)]
    assert [value for _, value, _ in losses] == [1.0] * 2 + [2.0] * 4


def test_a_run_resumed_from_checkpoints_without_events_has_a_new_folder(
    build: Path, tmp_path: Path
) -> None:
    events, saved = tmp_path / "events", tmp_path / "saved"
    placer.launch(build, steps=2, in_process=True, tensorboard=events)
    placer.launch(build, steps=2, in_process=True, checkpoint=saved)
    placer.launch(build, steps=4, in_process=True, resume=saved, tensorboard=events)
    assert steps_of(scalars(events / "small-1")["train/loss"]) == [1, 2]
    assert steps_of(scalars(events / "small-2")["train/loss"]) == [3, 4]


def test_processes_of_the_command_line_write_events(tmp_path: Path) -> None:
    build = compile_for_callbacks(tmp_path, each=1)
    command = placer_command(
        "launch", build, "--steps=4", "--json", f"--tensorboard={tmp_path / 'runs'}"
    )
    run = subprocess.run(
        command, env=process_environment(), capture_output=True, text=True, check=True
    )
    result = json.loads(run.stdout)
    read = scalars(tmp_path / "runs" / "small-1")
    assert read["eval/loss"][-1][1] == pytest.approx(result["eval"]["loss"], rel=1e-6)


WITHOUT_TENSORBOARDX = """
import sys
sys.modules["tensorboardX"] = None
from placer.command import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", ["launch", "train"])
def test_without_tensorboardx_nothing_is_run(
    build: Path, tmp_path: Path, command: str
) -> None:
    target = build if command == "launch" else build.parent / "small.yaml"
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORBOARDX, command, str(target),
         "--tensorboard=events"],
        env=process_environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert run.returncode == 2
    assert "'tensorboard' needs the package tensorboardX" in run.stderr
    assert "pip install '.[tensorboard]' in a clone of placer" in run.stderr
    assert not [*tmp_path.iterdir()]


def test_a_folder_that_cannot_be_written_is_reported_before_the_run(
    build: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    message = re.escape(f"cannot write to the folder '{tmp_path / 'file'}'")
    with pytest.raises(PlacerError, match=message):
        placer.launch(build, in_process=True, tensorboard=tmp_path / "file")
