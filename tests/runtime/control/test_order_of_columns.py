"""A glob selects the same columns in the same order of every file."""

import csv

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from support.exported import load_prepare

import placer
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

SPEC = """
name: ordered
nodes: {{worker: {{count: 1}}}}
inputs:
  numbers: float32[batch, 3]
  logs: float32[batch, 2]
  y: float32[batch, 1]
data:
  train:
    source: "{kind}:train.{kind}"
    batch: 4
    columns: {{numbers: "C*", logs: "*.log"}}
    features: {{"*.log": {{log1p: "L?"}}}}
  eval: {{source: "{kind}:eval.{kind}"}}
graph:
  - {{name: all, op: concat, in: [numbers, logs]}}
  - {{name: out, op: fc, in: all, size: 1}}
  - {{name: loss, op: mean_squared_error, in: [out, y]}}
train: {{minimize: loss, optimizer: {{op: sgd, learning_rate: 0.01}}}}
predict: {{outputs: [all]}}
"""
NAMES = ("C1", "C2", "C10", "L1", "L2", "y")
OTHERS = ("L2", "C10", "y", "C2", "L1", "C1")
ROWS = np.arange(1, 25, dtype=np.float32).reshape(4, 6)
TAKEN = np.hstack([ROWS[:, :3], np.log1p(ROWS[:, 3:5])])


def write(folder, name, kind, names):
    columns = {each: ROWS[:, NAMES.index(each)] for each in names}
    if kind == "parquet":
        parquet.write_table(pa.table(columns), folder / f"{name}.parquet")
        return
    with (folder / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([names, *zip(*columns.values(), strict=True)])


def run(folder, kind, of_train, of_eval):
    """Train and evaluate; return the folder of the build, the parameters and the loss of
    the evaluation."""
    folder.mkdir()
    write(folder, "train", kind, of_train)
    write(folder, "eval", kind, of_eval)
    (folder / "ordered.yaml").write_text(SPEC.format(kind=kind))
    placer.compile(folder / "ordered.yaml", folder / "build")
    result = run_in_threads(
        folder / "build", Options(steps=1, save_params=folder / "params")
    )
    return result.eval["loss"], (folder / "params").read_bytes()


@pytest.fixture(scope="module", params=["csv", "parquet"])
def trained(request, tmp_path_factory):
    """A folder with a run of files whose columns are in natural order, and their kind."""
    folder = tmp_path_factory.mktemp("ordered") / "run"
    return folder, request.param, run(folder, request.param, NAMES, NAMES)


@pytest.mark.parametrize(("train", "evaluation"), [(NAMES, OTHERS), (OTHERS, NAMES)])
def test_training_and_evaluation(train, evaluation, trained, tmp_path):
    _, kind, results = trained
    assert run(tmp_path / "run", kind, train, evaluation) == results


def test_prediction(trained):
    folder, kind, _ = trained
    write(folder, "rows", kind, OTHERS)
    got = placer.predict(
        folder / "build",
        folder / f"rows.{kind}",
        params=folder / "params",
        in_process=True,
    )
    np.testing.assert_allclose(got["all"], TAKEN, rtol=1e-6)


def test_an_exported_model(trained, tmp_path):
    """Also if the file from which it was trained has another order by then."""
    folder, kind, _ = trained
    write(folder, "train", kind, OTHERS)
    placer.export(folder / "build", tmp_path / "model", params=folder / "params")
    columns = {each: ROWS[:, NAMES.index(each)] for each in OTHERS}
    arguments = load_prepare(tmp_path / "model")(columns)
    got = np.hstack([arguments["numbers"], arguments["logs"]])
    np.testing.assert_allclose(got, TAKEN, rtol=1e-6)


def test_a_column_that_is_missing(trained):
    folder, kind, _ = trained
    write(folder, "fewer", kind, [each for each in OTHERS if each != "C2"])
    with pytest.raises(placer.PlacerError, match=rf"{kind}:.*fewer.*, not 2"):
        placer.predict(
            folder / "build",
            folder / f"fewer.{kind}",
            params=folder / "params",
            in_process=True,
        )
