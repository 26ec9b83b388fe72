"""Batches without a key, and nodes without a row: as in one process; and rows of a batch
whose scores or times mean nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose
from safetensors.numpy import load_file

import placer
from placer.errors import RunError
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

BATCH, PADDING = 8, 0
COUNTED = {
    "score": {"show": "show"},
    "forget": {"unseen_seconds": 9, "time": "time", "every": 2},
}


def write_rows(folder, *, has_keys=True, **others):
    """Write 17 rows: the first batch has no key, the second few, the last only one row."""
    rng, count = np.random.default_rng(0), 2 * BATCH + 1
    ids = rng.integers(1, 9, (count, 3))
    ids[: BATCH if has_keys else None] = PADDING
    ids[BATCH + 1 : BATCH + 4] = PADDING
    rows = {
        "ids": ids,
        "x": rng.normal(size=(count, 2)),
        "y": rng.integers(0, 3, count).astype(np.int32),
        "show": rng.uniform(0.5, 1.0, count),
        "time": 100 + np.arange(count),
    }
    np.savez(folder / "rows.npz", **rows | others)


def build(folder, name, *, workers=1, servers=0, update="sync", table=None):
    nodes = {"worker": {"count": workers}}
    if servers:
        nodes["ps"] = {"count": servers}
    inputs = {"ids": "int64[batch, 3]", "x": "float64[batch, 2]", "y": "int32[batch]"}
    if table:
        inputs |= {"show": "float64[batch]", "time": "int64[batch]"}
    rows = {"source": "npz:rows.npz", "batch": BATCH}
    emb = {"op": "embedding", "in": "ids", "sparse": True, "dim": 4, "partitions": 8}
    content = {
        "name": "no_keys",
        "precision": "float64",
        "nodes": nodes,
        "inputs": inputs,
        "data": {
            "train": {**rows, "remainder": "keep", "shuffle": False},
            "eval": rows,
        },
        "graph": [
            {"name": "emb", **emb, "padding": PADDING, "combiner": "mean"}
            | (table or {}),
            {"name": "h", "op": "concat", "in": ["emb", "x"], "axis": 1},
            {"name": "z", "op": "fc", "in": "h", "size": 3},
            {"name": "loss", "op": "softmax_cross_entropy", "in": ["z", "y"]},
        ],
        "predict": {"outputs": ["z"]},
        "train": {
            "minimize": "loss",
            "epochs": 2,
            "optimizer": {"op": "adagrad", "learning_rate": 0.3, "update": update},
        },
    }
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps(content))
    placer.compile(file, folder / name)
    return folder / name


def trained(folder, name, **settings):
    """Return the parameters, the loss of the evaluation, and the predictions."""
    made, saved = build(folder, name, **settings), folder / f"{name}.saved"
    options = Options(checkpoint=saved, save_params=folder / f"{name}.safetensors")
    result = run_in_threads(made, options)
    predicted = placer.predict(
        made, folder / "rows.npz", params=saved, in_process=True, raw=True
    )
    parameters = load_file(folder / f"{name}.safetensors")
    return parameters | predicted | {"loss": np.array(result.eval["loss"])}


@pytest.mark.parametrize(
    ("has_keys", "table"),
    [(True, None), (True, COUNTED), (False, COUNTED)],
    ids=["some", "counted", "no keys at all"],
)
def test_without_keys_or_rows_a_run_is_that_of_one_process(tmp_path, table, has_keys):
    write_rows(tmp_path, has_keys=has_keys)
    one = trained(tmp_path, "one", table=table)
    several = trained(tmp_path, "several", workers=4, servers=2, table=table)
    free = trained(
        tmp_path, "free", workers=1, servers=2, update="half_async", table=table
    )
    for name in one:
        if "table" not in name:
            assert_allclose(several[name], one[name], rtol=1e-10, atol=1e-13)
            assert_allclose(free[name], one[name], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("update", ["async", "half_async"])
def test_workers_without_rows_do_not_stop_the_others(tmp_path, update):
    write_rows(tmp_path)
    found = trained(tmp_path, "free", workers=4, servers=2, update=update)
    assert all(np.isfinite(values).all() for values in found.values())


@pytest.mark.parametrize(
    ("others", "message"),
    [
        (
            {"show": np.nan},
            r"table emb.table: the scores of 1 of 8 rows are not finite",
        ),
        (
            {"time": 1_700_000_000_000},
            r"1 of 8 rows have other values, such as 1700000000000",
        ),
        ({"time": -1}, r"times must be seconds from 0 to 4294967295, .* such as -1"),
    ],
)
def test_scores_and_times_that_mean_nothing_end_the_run(tmp_path, others, message):
    ((name, bad),) = others.items()
    values = {"show": np.ones(17), "time": np.arange(17)}[name]
    values[3] = bad
    write_rows(tmp_path, **{name: values})
    with pytest.raises(RunError, match=message):
        run_in_threads(build(tmp_path, "wrong", table=COUNTED))
