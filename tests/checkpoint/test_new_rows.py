"""Runs that go on with other rows: `--resume CHECKPOINT --new-rows`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from support.checkpointed import build, lines, spec

import placer
from placer.checkpoint.folder import list_checkpoints
from placer.errors import CheckpointError
from placer.runtime.control.events import Resumed, format_output
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

FIRST, SECOND = 22, 14
"""The rows of two days: with batches of 4, six and four steps of an epoch."""


def write_day(folder: Path, number: int, rows: int) -> None:
    rng = np.random.default_rng(number)
    x = rng.normal(size=(rows, 6)).astype(np.float32)
    np.savez(folder / f"day-{number}.npz", x=x, y=(x[:, 0] > 0).astype(np.int32))


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    """Builds that read the first day, and the second one."""
    folder = tmp_path_factory.mktemp("days")
    builds = []
    for number, rows in ((1, FIRST), (2, SECOND)):
        write_day(folder, number, rows)
        model = spec(
            train={
                "epochs": 2,
                "checkpoint": {"best": {"metric": "loss", "mode": "min"}},
            }
        )
        for part in model["data"].values():
            part["source"] = f"npz:day-{number}.npz"
        path = folder / f"day-{number}.yaml"
        path.write_text(yaml.safe_dump(model))
        builds.append(folder / f"build-{number}")
        placer.compile(path, builds[-1])
    return builds


def run(build, folder, events=None, **options):
    options = {"checkpoint": folder / "kept", "checkpoint_every": 1, **options}
    watch = ([] if events is None else events).append
    return run_in_threads(build, Options(**options), watch=watch)


def newest(folder):
    return list_checkpoints(folder / "kept")[0]


def test_a_run_goes_on_with_the_rows_of_the_next_day(days, tmp_path):
    first, second = days
    run(first, tmp_path, history=tmp_path / "history")
    events: list[object] = []
    again = {"resume": tmp_path / "kept", "new_rows": True}
    result = run(second, tmp_path, events, history=tmp_path / "history", **again)
    # Two epochs of six steps, then two of four.
    assert result.steps == 20
    epochs = [line["epoch"] for line in lines(tmp_path / "history")]
    assert epochs == [1] * 6 + [2] * 6 + [3] * 4 + [4] * 4
    (resumed,) = (each for each in events if isinstance(each, Resumed))
    assert (resumed.step, resumed.epoch, resumed.left_out) == (12, 3, 0)
    assert "with new rows as epoch 3" in format_output(resumed)
    _, manifest = newest(tmp_path)
    assert (manifest.version, manifest.progress.before) == (4, (12, 2))
    # The best checkpoint compares evaluations of the second day.
    assert manifest.progress.best.step > 12

    # The same command goes on in these rows: the run has ended.
    events.clear()
    result = run(second, tmp_path, events, history=tmp_path / "history", **again)
    (resumed,) = (each for each in events if isinstance(each, Resumed))
    assert (result.steps, resumed.epoch) == (20, 0)


def test_an_interrupted_second_day_has_the_same_bits(days, tmp_path):
    first, second = days
    ends = []
    for stops in ((), (14, 17)):
        folder = tmp_path / f"{len(stops)} stops"
        run(first, folder)
        again = {"resume": folder / "kept", "new_rows": True}
        for stop in stops:
            run(second, folder, steps=stop, **again)
        run(second, folder, **again)
        path, manifest = newest(folder)
        assert manifest.progress.step == 20
        ends.append({each.name: each.read_bytes() for each in path.iterdir()})
    whole, stopped = ends
    manifests = [json.loads(each.pop("manifest.json")) for each in ends]
    assert whole == stopped
    assert (
        manifests[0]["progress"]["statistics"] == manifests[1]["progress"]["statistics"]
    )


def test_the_rest_of_an_open_epoch_is_left_out_and_counted(days, tmp_path):
    first, second = days
    run(first, tmp_path, steps=8)
    events: list[object] = []
    again = {"resume": tmp_path / "kept", "new_rows": True}
    result = run(second, tmp_path, events, **again)
    (resumed,) = (each for each in events if isinstance(each, Resumed))
    assert (resumed.step, resumed.epoch, resumed.left_out) == (8, 3, FIRST - 8)
    assert "14 rows of epoch 2 are left out" in format_output(resumed)
    assert result.steps == 16


def test_other_rows_without_the_option_and_another_batch_are_refused(days, tmp_path):
    first, second = days
    run(first, tmp_path, steps=3)
    with pytest.raises(CheckpointError, match="it has 14 rows, but had 22") as error:
        run(second, tmp_path, resume=tmp_path / "kept")
    assert "--new-rows" in error.value.hint
    model = spec(
        train={"epochs": 2, "checkpoint": {"best": {"metric": "loss", "mode": "min"}}}
    )
    model["data"]["train"]["batch"] = 2
    other = build(tmp_path, model, "other")
    with pytest.raises(CheckpointError, match="batch is 2, but was 4"):
        run(other, tmp_path, resume=tmp_path / "kept", new_rows=True)
