"""The result of `placer.launch` has the history and the parameters of the run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file
from support.histories import lines_without_times
from support.small_models import two_layers

import placer
from placer.launcher import result_parts
from placer.launcher.result_parts import StepHistory
from placer.report.outcome import result_json
from placer.runtime.control.events import Event, Step


def compile_small(folder: Path, **options: str) -> Path:
    """Compile a small model, and return the build."""
    draw = np.random.default_rng(1).normal
    rows = {"x": draw(size=(32, 16)), "y": draw(size=(32, 4))}
    np.savez(folder / "rows.npz", **{k: v.astype(np.float32) for k, v in rows.items()})
    spec = folder / "small.yaml"
    spec.write_text(two_layers(**options))
    placer.compile(spec, folder / "build")
    return folder / "build"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_small(tmp_path_factory.mktemp("kept"))


def test_the_result_of_processes_has_the_history_and_the_saved_parameters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = compile_small(tmp_path, nodes="{worker: {count: 1}, ps: {count: 1}}")
    file, saved = tmp_path / "history", tmp_path / "saved"
    seen: list[Event] = []
    result = placer.launch(
        build, history=file, save_params=saved, watch=seen.append, progress=True
    )
    assert "step 4 of 4  epoch 1 of 1" in capsys.readouterr().err
    assert [event.step for event in seen if isinstance(event, Step)] == [1, 2, 3, 4]
    assert result.history == [
        json.loads(line) for line in file.read_text().splitlines()
    ]
    wanted = load_file(saved)
    assert result.params.keys() == wanted.keys() == {"h.w", "h.b", "out.w", "out.b"}
    for name, value in wanted.items():
        np.testing.assert_array_equal(result.params[name], value)


def test_the_parameters_need_no_file(build: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    of_threads = placer.launch(build, in_process=True, history=tmp_path / "history")
    for line, of_file in zip(
        of_threads.history, lines_without_times(tmp_path / "history"), strict=True
    ):
        assert line.pop("seconds") > 0
        assert line == of_file
    placer.launch(build, in_process=True, save_params=saved)
    for name, value in load_file(saved).items():
        np.testing.assert_array_equal(of_threads.params[name], value)


def test_large_parameters_are_returned_only_if_asked_for(
    build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_parts, "MAX_RETURNED", 1000)
    result = placer.launch(build, in_process=True, steps=1)
    with pytest.raises(placer.PlacerError, match="return_params=True"):
        _ = result.params
    asked = placer.launch(build, in_process=True, steps=1, return_params=True)
    assert len(asked.params) == 4


def test_only_the_fields_of_a_result_are_json(build: Path) -> None:
    result = placer.launch(build, in_process=True, steps=1)
    assert result.history
    assert result.params
    keys = ["steps", "metrics", "eval", "samples_per_second", "bytes_sent"]
    keys += [
        "checkpoint_seconds",
        "streams",
        "staleness",
        "staleness_bound",
        "geo_staleness",
        "divergence",
    ]
    keys += ["untrained_rows", "shares", "tables", "table_rows", "table_counted"]
    keys += ["table_bytes", "best", "published", "passes", "restarts"]
    best = ["best_eval", "best_step"]
    assert list(json.loads(result_json(result))) == [*keys, *best]
    assert set(msgspec.to_builtins(result)) == {
        "event",
        "warnings",
        "failed_late",
        *keys,
    }


def test_a_result_of_another_origin_has_no_history() -> None:
    with pytest.raises(placer.PlacerError, match=r"only the result of placer\.launch"):
        _ = placer.Result(1, {}, {}, 0.0, {}).history


def test_a_history_can_be_read_while_it_grows_and_has_numbers_that_are_not_finite() -> (
    None
):
    history = StepHistory()
    history.add(Step(1, 1, {"loss": math.inf}))
    assert history.read()[0]["metrics"]["loss"] == math.inf
    history.add(Step(2, 1, {"loss": 0.5}, {"loss": 0.25}))
    assert history.read()[1] == {
        "step": 2,
        "epoch": 1,
        "seconds": 0.0,
        "metrics": {"loss": 0.5},
        "eval": {"loss": 0.25},
    }


def test_a_result_and_a_plan_are_shown_in_a_few_words(build: Path) -> None:
    sent = {"worker:0": 1_500_000, "ps:0": 500_000}
    result = placer.Result(1200, {"loss": 0.123456}, {}, 2345.6, sent, ("beware",))
    assert repr(result).splitlines() == [
        "Result: 1,200 steps, 2,346 samples/s, 2.0 MB sent",
        "  last epoch  loss 0.1235",
        "  warning: beware",
    ]
    plan = placer.compile(build.parent / "small.yaml", build.parent / "again")
    assert repr(plan) == (
        "<Plan of small: worker:0-1, ps:0-1; 340 parameters; 4 edges, 5,440 bytes per"
        " step>"
    )
