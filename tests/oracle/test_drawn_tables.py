"""R1 and R2 for random models with sparse tables: the rows and slots of tables, too, are
those of one process, have the same bits in each run, and continue from a checkpoint."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jax
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from safetensors.numpy import load_file
from support.checkpointed import lines
from support.drawn.tables import (
    QUICK_RULES,
    Cluster,
    TableModel,
    table_clusters,
    table_models,
)
from support.marks import MAY_PAIR_ROWS
from support.saved_rows import assert_same_tables

from placer.checkpoint.folder import list_checkpoints
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

# Failures are not shrunk: an example takes seconds.
SETTINGS = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
QUICK = table_models(rules=QUICK_RULES, dims=(3,))
SAVED = 3
"""The step after which a run that is continued was saved."""
UP_TO_ROUNDING = {"rtol": 1e-9, "atol": 1e-9}

pytestmark = [
    pytest.mark.usefixtures("in_float64"),
    MAY_PAIR_ROWS,
]


@dataclass(frozen=True)
class Trained:
    """What a run leaves: its checkpoints, its parameters and its history."""

    folder: Path

    def checkpoint(self, step: int | None = None) -> Path:
        """Return the checkpoint of a step, by default the last one."""
        found = {each.progress.step: path for path, each in self._checkpoints()}
        return found[max(found) if step is None else step]

    def _checkpoints(self):
        return list_checkpoints(self.folder / "saved")

    @property
    def parameters(self):
        return load_file(self.folder / "params.safetensors")

    @property
    def history(self):
        """What each step has: the metrics, and those of an evaluation."""
        found = {}
        for line in lines(self.folder / "history.jsonl"):
            found[line["step"]] = {**line["metrics"]}
            found[line["step"]] |= {
                f"eval {k}": v for k, v in line.get("eval", {}).items()
            }
        return found


def train(build: Path, name: str, resume: Path | None = None) -> Trained:
    """Run a build to its end, with a checkpoint after some steps and one at the end."""
    folder = build.with_name(name)
    folder.mkdir()
    options = Options(
        history=folder / "history.jsonl",
        save_params=folder / "params.safetensors",
        checkpoint=folder / "saved",
        checkpoint_every=SAVED,
        checkpoint_keep=99,
        resume=resume,
        deadline=300.0,
    )
    run_in_threads(build, options)
    return Trained(folder)


def assert_same(run: Trained, expected: Trained, **tolerance: float) -> None:
    """Check that a run, or its part after a checkpoint, is as another."""
    history, wanted = run.history, expected.history
    assert max(history) == max(wanted)
    for step, metrics in history.items():
        assert metrics.keys() == wanted[step].keys()
        for name, value in metrics.items():
            message = f"step {step}: {name}"
            assert_allclose(value, wanted[step][name], err_msg=message, **tolerance)
    parameters = expected.parameters
    assert run.parameters.keys() == parameters.keys()
    for name, values in run.parameters.items():
        assert_allclose(values, parameters[name], err_msg=name, **tolerance)
    assert_same_tables(run.checkpoint(), expected.checkpoint(), **tolerance)


@contextmanager
def new_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def check_placement(model: TableModel, cluster: Cluster) -> None:
    with new_folder() as folder:
        placed = train(model.compile(cluster, folder, "b"), "placed")
        one = model.compile(cluster, folder, "o", single_process=True)
        assert_same(placed, train(one, "one"), **UP_TO_ROUNDING)


def check_bits(model: TableModel, cluster: Cluster) -> None:
    with new_folder() as folder:
        build = model.compile(cluster, folder, "b")
        first, again = train(build, "first"), train(build, "again")
        assert_same(again, first, rtol=0)
        for file in first.checkpoint().glob("*.rows.safetensors"):
            assert (again.checkpoint() / file.name).read_bytes() == file.read_bytes()
        for servers in {1, 2, 3} - {cluster.nodes.get("ps", {}).get("count")}:
            if cluster.nodes.get("ps"):
                other = cluster.with_servers(servers)
                name = f"s{servers}"
                spread = train(model.compile(other, folder, f"b{name}"), name)
                assert_same(spread, first, rtol=0)


def check_continued(model: TableModel, first: Cluster, second: Cluster) -> None:
    with new_folder() as folder:
        whole = train(model.compile(first, folder, "f"), "whole")
        saved = whole.checkpoint(SAVED)
        continued = train(model.compile(second, folder, "s"), "continued", resume=saved)
        assert_same(continued, whole, **UP_TO_ROUNDING)


@given(QUICK, table_clusters())
@settings(SETTINGS, max_examples=2, derandomize=True)
def test_tables_train_as_in_one_process(model, cluster):
    check_placement(model, cluster)


@given(QUICK, table_clusters())
@settings(SETTINGS, max_examples=2, derandomize=True)
def test_tables_have_the_same_bits_in_each_run_and_on_each_number_of_servers(
    model, cluster
):
    check_bits(model, cluster)


@given(QUICK, table_clusters(), table_clusters())
@settings(SETTINGS, max_examples=2, derandomize=True)
def test_tables_continue_on_another_cluster(model, first, second):
    check_continued(model, first, second)


CHECKS = {
    "placement": (check_placement, (table_clusters(),)),
    "bits": (check_bits, (table_clusters(),)),
    "continued": (check_continued, (table_clusters(), table_clusters())),
}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))  # split over several processes
@pytest.mark.parametrize("check", CHECKS)
@given(data=st.data())
@settings(SETTINGS, max_examples=25)
def test_many_drawn_tables(part, check, data):
    jax.clear_caches()  # compiled programs that do not run again
    test, clusters = CHECKS[check]
    test(data.draw(table_models()), *map(data.draw, clusters))
