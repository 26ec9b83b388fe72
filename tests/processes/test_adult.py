"""The spec of the census rows, whose features placer computes, learns from real data."""

from support.data_sets import find_data

from placer.compiler.driver import compile
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads
from placer.system.resources import find_file


def test_one_epoch_of_census_rows_predicts_incomes(tmp_path, monkeypatch):
    find_data("adult", monkeypatch)
    compile(find_file("specs/adult.yaml"), tmp_path, overrides={"train.epochs": 1})
    metrics = run_in_threads(tmp_path, Options()).eval
    assert metrics["auc"] >= 0.92
    assert metrics["loss"] <= 0.30
