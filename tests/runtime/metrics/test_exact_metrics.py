"""Metrics of steps, epochs and evaluations: they equal scikit-learn's over the same
rows, and have the same bits for any number of nodes."""

import json
import math
from functools import cache

import numpy as np
import pytest
import yaml
from sklearn import metrics

from placer.compiler.driver import compile
from placer.readers import Order
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

TRAIN, EVAL, BATCH = 29, 23, 12  # three steps an epoch, the last of 5 rows
STEPS = 5  # ends within the second epoch
COUNTED = {
    "accuracy": {"op": "accuracy", "in": ["scores", "kind"]},
    "top_2": {"op": "top_k_accuracy", "in": ["scores", "kind"], "k": 2},
    "precision": {"op": "precision", "in": ["chance", "click"], "threshold": 0.4},
    "recall": {"op": "recall", "in": ["chance", "click"]},
    "recall_of_1": {"op": "recall", "in": ["scores", "kind"], "class_id": 1},
    "f1": {"op": "f1", "in": ["chance", "click"]},
    "auc": {"op": "auc", "in": ["chance", "click"], "bins": 65},
}
SUMMED = {
    "mae": {"op": "mean_absolute_error", "in": ["guess", "target"]},
    "rmse": {"op": "root_mean_squared_error", "in": ["guess", "target"]},
    "average": {"op": "mean", "in": "guess"},
}
PLAIN = ["loss", "weight"]


def draw_rows(rows, seed):
    """Draw rows with positives and negatives in each batch, and chances on auc's
    grid."""
    rng = np.random.default_rng(seed)
    return {
        "scores": rng.normal(size=(rows, 4)).astype(np.float32),
        "kind": np.arange(rows, dtype=np.int32) % 4,
        "chance": (rng.integers(0, 65, rows) / 64).astype(np.float32),
        "click": np.arange(rows, dtype=np.int32) % 2,
        "guess": rng.normal(size=(rows, 2)).astype(np.float32),
        "target": rng.normal(size=(rows, 2)).astype(np.float32),
    }


def spec_of(workers):
    ops = [
        {"name": "out", "op": "fc", "in": "guess", "size": 2},
        {"name": "loss", "op": "mean_squared_error", "in": ["out", "target"]},
        {"name": "weight", "op": "parameter", "shape": [], "init": "ones"},
        {"name": "scaled", "op": "mul", "in": ["loss", "weight"]},
    ]
    ops += [{"name": name, **op} for name, op in {**COUNTED, **SUMMED}.items()]
    types = {"scores": "float32[batch, 4]", "kind": "int32[batch]"}
    types |= {"chance": "float32[batch]", "click": "int32[batch]"}
    types |= {"guess": "float32[batch, 2]", "target": "float32[batch, 2]"}
    return {
        "nodes": {"worker": {"count": workers}, "ps": {"count": 1}},
        "inputs": types,
        "data": {
            "train": {"source": "npz:train.npz", "batch": BATCH, "remainder": "keep"},
            "eval": {"source": "npz:eval.npz"},
        },
        "graph": [{"place": "/node:worker/cpu", "ops": ops}],
        "train": {
            "minimize": "scaled",
            "metrics": [*PLAIN, *COUNTED, *SUMMED],
            "optimizer": {"op": "sgd", "learning_rate": 0.1, "place": "/node:ps/cpu"},
        },
    }


def by_scikit_learn(rows):
    """Return every metric of these rows."""
    click, predicted = rows["click"], rows["chance"] > 0.5
    best = rows["scores"].argmax(1)
    guess, target = rows["guess"].ravel(), rows["target"].ravel()
    return {
        "accuracy": metrics.accuracy_score(rows["kind"], best),
        "top_2": metrics.top_k_accuracy_score(
            rows["kind"], rows["scores"], k=2, labels=range(4)
        ),
        "precision": metrics.precision_score(click, rows["chance"] > np.float32(0.4)),
        "recall": metrics.recall_score(click, predicted),
        "recall_of_1": metrics.recall_score(rows["kind"] == 1, best == 1),
        "f1": metrics.f1_score(click, predicted),
        "auc": metrics.roc_auc_score(click, rows["chance"]),
        "mae": metrics.mean_absolute_error(target, guess),
        "rmse": metrics.root_mean_squared_error(target, guess),
        "average": guess.mean(dtype=np.float64),
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A function that returns the result of a run and the lines of its history, for a
    number of workers; 0 is one process."""
    folder = tmp_path_factory.mktemp("metrics")
    for which, rows, seed in (("train", TRAIN, 1), ("eval", EVAL, 2)):
        np.savez(folder / f"{which}.npz", **draw_rows(rows, seed))

    @cache
    def run(workers):
        file = folder / f"of_{workers}.yaml"
        file.write_text(yaml.safe_dump(spec_of(max(workers, 1))))
        build, history = folder / f"build{workers}", folder / f"history{workers}"
        compile(file, build, single_process=workers == 0)
        result = run_in_threads(build, Options(steps=STEPS, history=history))
        lines = [json.loads(line) for line in history.read_text().splitlines()]
        return result, lines

    return run


def check_metrics(numbers, rows, where):
    for name, expected in by_scikit_learn(rows).items():
        close = {"rel": 1e-6, "abs": 1e-7} if name in SUMMED else {"rel": 1e-15}
        assert numbers[name] == pytest.approx(expected, **close), (where, name)


def select(rows, numbers):
    return {name: column[numbers] for name, column in rows.items()}


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_every_metric_equals_that_of_scikit_learn(workers, runs):
    result, lines = runs(workers)
    train, order = draw_rows(TRAIN, 1), Order(TRAIN, BATCH, False, 0, "keep")
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    for number, line in enumerate(lines):
        epoch, index = divmod(number, order.steps_per_epoch)
        check_metrics(
            line["metrics"], select(train, order.indices(epoch + 1, index)), line
        )
    check_metrics(
        result.metrics, select(train, slice(2 * BATCH)), "the part of the last epoch"
    )
    evaluated = {line["step"]: line["eval"] for line in lines if "eval" in line}
    assert list(evaluated) == [3, STEPS]
    for found in evaluated.values():
        check_metrics(found, draw_rows(EVAL, 2), "an evaluation")
    assert evaluated[STEPS] == result.eval


@pytest.mark.parametrize("workers", [1, 3])
def test_counts_have_the_same_bits_as_one_process(workers, runs):
    def counted(result, lines):
        reports = [result.metrics, result.eval, *(line["metrics"] for line in lines)]
        reports += [line["eval"] for line in lines if "eval" in line]
        return [[numbers[name] for name in COUNTED] for numbers in reports]

    assert counted(*runs(workers)) == counted(*runs(0))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_plain_number_is_reported_and_averaged_by_rows(workers, runs):
    result, lines = runs(workers)
    for name in PLAIN:
        numbers = [line["metrics"][name] for line in lines]
        rows = (12, 12)  # of the two steps of the last epoch that were made
        mean = math.fsum(n * v for n, v in zip(rows, numbers[3:], strict=True)) / 24
        assert result.metrics[name] == pytest.approx(mean, rel=1e-15)
        assert len(set(numbers)) == STEPS
    assert lines[0]["metrics"]["weight"] == 1.0


@pytest.mark.parametrize("workers", [1, 3])
def test_a_short_tail_counts_by_its_rows(workers, runs, tmp_path):
    folder = tmp_path
    np.savez(folder / "train.npz", **draw_rows(TRAIN, 1))
    np.savez(folder / "eval.npz", **draw_rows(EVAL, 2))
    (folder / "model.yaml").write_text(yaml.safe_dump(spec_of(workers)))
    compile(folder / "model.yaml", folder / "build")
    result = run_in_threads(folder / "build", Options(steps=3))
    _, lines = runs(workers)
    numbers = [line["metrics"]["loss"] for line in lines[:3]]
    mean = math.fsum(n * v for n, v in zip((12, 12, 5), numbers, strict=True)) / TRAIN
    assert result.metrics["loss"] == pytest.approx(mean, rel=1e-15)
    check_metrics(result.metrics, draw_rows(TRAIN, 1), "an epoch")
