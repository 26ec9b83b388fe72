"""The facts of runs and their curves, for a report page."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from placer.errors import PlacerError
from placer.plan.settings.evaluation_and_stopping import Best
from placer.report.best_run import best_sentence, run_names
from placer.report.page.curves import curves_of, decimate
from placer.report.page.runs import run_facts
from placer.report.run_about import staleness_of, waits_of
from placer.report.run_files import Command, Run, RunEnd

ACCURACY = Best("accuracy", "max")


def run(
    name: str,
    accuracy: float | None = None,
    *,
    step: int = 220,
    monitor: Best | None = ACCURACY,
    name_of_model: str = "digits",
    **settings: Any,
) -> Run:
    """Return a run with the best accuracy at a step."""
    command = Command(
        name=name_of_model,
        command="placer train digits.yaml",
        started=1.0,
        spec="digits.yaml",
        set={},
        settings=settings,
        options={},
        versions={},
        machine={},
        monitor=monitor,
    )
    end = RunEnd("finished", None, 1.0, 300, {"loss": 0.5}, {"accuracy": 0.25})
    if accuracy is not None:
        end = replace(end, best_eval={"accuracy": accuracy}, best_step=step)
    return Run(Path("runs") / name, command, end)


def test_gradients_and_differences_have_their_own_staleness() -> None:
    both = run("digits-1")
    counts = {"staleness": {"0": 1}, "geo_staleness": {"2": 1, "40": 1}}
    both = replace(both, end=replace(both.end, staleness_bound=5, **counts))
    assert staleness_of(both) == (
        "Staleness of the gradients: mean 0.00  median 0  maximum 0 of at most 5."
        " Staleness of GEO differences: mean 21.00  median 40  maximum 40."
    )


def test_the_best_run_is_named_with_the_nearest_run() -> None:
    runs = [
        run("digits-1", 0.95, rate=0.03, batch=8),
        run("digits-2", 0.94, rate=0.03, batch=4),
        run("digits-3", 0.991, rate=0.01, batch=4),
        run("digits-4", None, rate=0.1, batch=4),
    ]
    assert best_sentence(runs) == (
        "digits-3 has the best eval accuracy at step 220: 0.991. The settings of digits-2"
        " are the most similar to those of digits-3. digits-2 reached 0.94. digits-2"
        " differs from digits-3 only in rate (0.03 instead of 0.01)."
    )
    assert [each.is_best for each in run_facts(runs)] == [False, False, True, False]
    assert best_sentence(runs[:1]) == (
        "digits-1 has its best eval accuracy at step 220: 0.95."
    )
    assert best_sentence([runs[0], runs[2]]) == (
        "digits-3 has the best eval accuracy at step 220: 0.991. digits-1 reached 0.95."
        " digits-1 differs from digits-3 in 2 settings: rate (0.03 instead of 0.01) and"
        " batch (8 instead of 4)."
    )


def test_a_run_with_the_same_settings_shows_the_noise() -> None:
    runs = [run("a", 0.9, rate=1), run("b", 0.8, rate=1), run("c", 0.7, rate=2)]
    assert best_sentence(runs) == (
        "a has the best eval accuracy at step 220: 0.9. b reached 0.8 with the same"
        " settings as a. c reached 0.7. c differs from a only in rate (2 instead of 1)."
    )


def test_a_shorter_run_and_a_traced_run_are_marked() -> None:
    whole, short = run("a", 0.9, rate=1), run("b", 0.8, rate=2)
    command = replace(short.command, options={"steps": 60, "trace": "t.json"})
    short = replace(short, command=command, end=replace(short.end, steps=60))
    assert best_sentence([whole, short]).endswith(
        "b trained only 60 of 300 steps (--steps), so its metrics and its speed are those of"
        " a shorter run. b was traced, which makes steps slower."
    )
    assert "trained only" not in best_sentence([short, short])


def test_runs_of_equal_layers_are_compared() -> None:
    runs = [
        run("a", 0.9, name_of_model="digits_async", update="async", model="1f"),
        run("b", 0.8, update="sync", model="1f"),
    ]
    assert best_sentence(runs).endswith("only in update (sync instead of async).")
    other = run("c", 0.8, name_of_model="digits_geo", model="2f")
    assert "different models (digits_async, digits_geo)" in best_sentence(
        [*runs, other]
    )


def test_the_direction_of_the_metric_decides() -> None:
    error = Best("accuracy", "min")
    runs = [run("a", 0.9, monitor=error), run("b", 0.1, step=7, monitor=error)]
    assert best_sentence(runs) == (
        "b has the best eval accuracy at step 7: 0.1. a reached 0.9 with the same settings"
        " as b."
    )


def test_equal_runs_are_named_together() -> None:
    runs = [
        run("a", 0.9, step=5, rate=1),
        run("b", 0.90001, step=9, rate=2),
        run("c", 0.8, rate=3),
    ]
    assert best_sentence(runs) == (
        "a and b have the best eval accuracy: 0.9 at steps 5 and 9. b differs from a only"
        " in rate (2 instead of 1). c reached 0.8. c differs from a only in rate (3"
        " instead of 1)."
    )
    assert [each.is_best for each in run_facts(runs)] == [True, True, False]


def test_many_equal_runs_are_counted() -> None:
    runs = [run(f"a{i}", 0.9, step=i, rate=0) for i in range(9)]
    assert best_sentence(runs) == (
        "a0, a1, a2, a3, a4 and 4 more have the best eval accuracy: 0.9 at steps 0, 1, 2,"
        " 3, 4 and 4 more. a1, a2, a3, a4, a5 and 3 more have the same settings as a0."
    )


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (run("b", 0.9, name_of_model="lstm"), "different models (digits, lstm)"),
        (run("b", 0.9, monitor=None), "names no metric to compare"),
        (run("b", 0.9, monitor=Best("loss", "min")), "accuracy (max), loss (min)"),
        (
            run("b", 0.9, **{"data.eval.split": "train"}),
            "different rows (data.eval.spl",
        ),
    ],
)
def test_runs_that_cannot_be_compared_have_a_reason(other: Run, reason: str) -> None:
    runs = [run("a", 0.99), other]
    assert reason in best_sentence(runs)
    assert not any(each.is_best for each in run_facts(runs))


def test_no_finite_evaluation_is_no_best_run() -> None:
    sentence = "No run has a finite eval accuracy."
    assert best_sentence([run("a"), run("b", inf)]) == sentence
    assert best_sentence([]) == ""


def test_a_run_without_a_compared_metric_shows_its_last_evaluation() -> None:
    (facts,) = run_facts([run("a", monitor=None)])
    assert facts.is_last
    assert facts.best == {"accuracy": 0.25}
    (compared,) = run_facts([run("a", 0.9)])
    assert (compared.best, compared.best_step) == ({"accuracy": 0.9}, 220)
    assert not compared.is_last


def test_a_setting_of_set_is_listed_once() -> None:
    changed = run("a", 0.9, **{"optimizer.dense.rate": 1})
    command = replace(changed.command, set={"train.optimizer.rate": 1})
    runs = [replace(changed, command=command)]
    runs.append(run("b", 0.8, **{"optimizer.dense.rate": 2}))
    found = [each.settings for each in run_facts(runs)]
    assert found == [{"train.optimizer.rate": "1"}, {"train.optimizer.rate": "2"}]


def test_runs_with_equal_folder_names_have_distinct_names() -> None:
    runs = [run("a/digits-1"), run("b/digits-1"), run("b/digits-2")]
    names = ["runs/a/digits-1", "runs/b/digits-1", "digits-2"]
    assert run_names(runs) == names


def history(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_curves_have_steps_and_evaluations(tmp_path: Path) -> None:
    file = history(
        tmp_path / "history.jsonl",
        {"step": 1, "epoch": 1, "metrics": {"loss": 2.0, "accuracy": 0.5}},
        {"step": 2, "metrics": {"loss": None}, "eval": {"loss": 1.5}},
        {"step": 3, "metrics": {"loss": 1}},
    )
    with file.open("a") as lines:
        lines.write('{"step": 4, "met')  # by a killed launcher
    loss, accuracy, evaluated = curves_of("a", file)
    assert (loss.run, loss.metric, loss.points) == ("a", "loss", ((1, 2.0), (3, 1.0)))
    assert accuracy.points == ((1, 0.5),)
    assert evaluated.is_evaluation
    assert evaluated.points == ((2, 1.5),)
    assert curves_of("a", tmp_path / "missing.jsonl") == ()


@pytest.mark.parametrize(
    "line", ["{", '{"metrics": {}}', '{"step": 2, "eval": 1}', "[]"]
)
def test_a_damaged_line_is_an_error_with_its_number(tmp_path: Path, line: str) -> None:
    file = history(tmp_path / "history.jsonl", {"step": 1, "metrics": {"loss": 1}})
    file.write_text(f"{file.read_text()}{line}\n")
    with pytest.raises(PlacerError, match=r"history\.jsonl': line 2 is damaged"):
        curves_of("a", file)


@given(st.lists(st.floats(-1e6, 1e6), max_size=40), st.integers(4, 12))
def test_a_decimated_curve_keeps_ends_and_extremes(
    values: list[float], most: int
) -> None:
    points = list(enumerate(values))
    kept = decimate(points, most)
    assert len(kept) <= max(most, 0)
    assert list(kept) == sorted(set(kept))
    if points:
        assert (kept[0], kept[-1]) == (points[0], points[-1])
        assert max(value for _, value in kept) == max(values)
        assert min(value for _, value in kept) == min(values)


def test_a_learning_rate_has_a_curve_if_it_changes(tmp_path: Path) -> None:
    lines = [
        {"step": i, "metrics": {}, "learning_rates": {"a": 0.5 / i, "b": 0.5}}
        for i in (1, 2)
    ]
    (rate,) = curves_of("a", history(tmp_path / "history.jsonl", *lines))
    assert (rate.metric, rate.points) == ("learning rate of a", ((1, 0.5), (2, 0.25)))


def test_waits_cover_the_time_between_evaluations(tmp_path: Path) -> None:
    one = replace(run("a"), folder=tmp_path)
    history(
        tmp_path / "history.jsonl",
        {"step": 1, "seconds": 1.0, "waiting": {"ps:0": 0.5}},
        {"step": 2, "seconds": 2.0},
        {"step": 3, "seconds": 4.0, "waiting": {"ps:0": 0.1}},
    )
    assert waits_of(one) == {"ps:0": pytest.approx(0.2)}
    assert waits_of(run("b")) == {}
