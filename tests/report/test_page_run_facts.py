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
from placer.report.page.curves import curves_of, decimate
from placer.report.page.runs import best_sentence, run_facts, run_names
from placer.report.run_files import Command, Run, RunEnd

ACCURACY = Best("accuracy", "max")


def run(
    name: str,
    accuracy: float | None = None,
    *,
    step: int = 220,
    monitor: Best | None = ACCURACY,
    model: str = "digits",
    **settings: Any,
) -> Run:
    """Return a run with the best accuracy at a step."""
    command = Command(
        name=model,
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


def test_the_best_run_is_named_with_its_differences() -> None:
    runs = [
        run("digits-1", 0.95, rate=0.03),
        run("digits-3", 0.991, rate=0.01),
        run("digits-4", None, rate=0.1),
    ]
    assert best_sentence(runs) == (
        "digits-3 has the best accuracy, 0.991 at step 220"
        " (rate 0.01 instead of 0.03 or 0.1)."
    )
    assert [each.is_best for each in run_facts(runs)] == [False, True, False]
    assert best_sentence(runs[:1]) == (
        "digits-1 has its best accuracy, 0.95 at step 220."
    )


def test_the_direction_of_the_metric_decides() -> None:
    error = Best("accuracy", "min")
    runs = [run("a", 0.9, monitor=error), run("b", 0.1, step=7, monitor=error)]
    assert best_sentence(runs) == "b has the best accuracy, 0.1 at step 7."


def test_equal_runs_are_named_together() -> None:
    runs = [run("a", 0.9, step=5), run("b", 0.9, step=9), run("c", 0.8)]
    expected = "a and b have the best accuracy, 0.9 at steps 5 and 9."
    assert best_sentence(runs) == expected
    assert [each.is_best for each in run_facts(runs)] == [True, True, False]


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (run("b", 0.9, model="lstm"), "different models (digits, lstm)"),
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
    sentence = "No run has an evaluation with a finite accuracy."
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
    command = replace(changed.command, set={"train.rate": 1})
    runs = [replace(changed, command=command)]
    runs.append(run("b", 0.8, **{"optimizer.dense.rate": 2}))
    found = [each.settings for each in run_facts(runs)]
    assert found == [{"train.rate": "1"}, {"train.rate": "2"}]


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
