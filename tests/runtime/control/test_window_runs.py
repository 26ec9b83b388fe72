"""Runs that read their rows through a window: the same batches in every placement, and
after a break."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from support.checkpointed import check_equal, lines
from support.dealt_rows import dealt_rows

import placer
from placer.checkpoint.folder import list_checkpoints
from placer.errors import CheckpointError, PlacerError, RunError
from placer.plan.plan import read_plan
from placer.plan.settings.data.digests import Digests
from placer.plan.settings.data.window import Window
from placer.readers import window_advice
from placer.readers.deal import Deal
from placer.readers.order import Order
from placer.runtime.batches.same_rows import check_same_rows
from placer.runtime.control.events import Notice
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

ROWS, GROUP, BATCH, RATE = 130, 11, 12, 0.125
WINDOW = {"window": 40, "lanes": 5}


def values(rows=ROWS):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(rows, 3)).astype(np.float32)
    return x, (x @ np.float32([1, -2, 3]) + 1).astype(np.float32)[:, None]


def write(folder, name="rows", group=GROUP):
    x, y = values()
    columns = {n: pa.FixedSizeListArray.from_arrays(pa.array(v.reshape(-1)), v.shape[1])
               for n, v in (("x", x), ("y", y))}  # fmt: skip
    pq.write_table(pa.table(columns), folder / f"{name}.parquet", row_group_size=group)


def spec(workers=2, train=None, **data):
    source = {
        "source": "parquet:rows.parquet",
        "batch": BATCH,
        "seed": 7,
        "shuffle": dict(WINDOW),
        "remainder": "keep",
    }
    rate = {"op": "sgd", "learning_rate": RATE, "place": "/node:ps"}
    fc = {"name": "h", "op": "fc", "in": "x", "size": 1, "bias": False}
    loss = {"name": "loss", "op": "mean_squared_error", "in": ["h", "y"]}
    return {
        "name": "window",
        "nodes": {"worker": {"count": workers}, "ps": {"count": 1}},
        "inputs": {"x": "float32[batch, 3]", "y": "float32[batch, 1]"},
        "data": {"train": source | data},
        "graph": [{"place": "/node:worker", "ops": [fc, loss]}],
        "parameters": [{"match": "h.w", "init": "zeros"}],
        "train": {"minimize": "loss", "epochs": 2, "optimizer": rate} | (train or {}),
    }


def build(folder: Path, model, name="b", **options) -> Path:
    write(folder)
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(model, sort_keys=False))
    placer.compile(folder / f"{name}.yaml", folder / name, **options)
    return folder / name


def losses(built: Path, **options) -> list[float]:
    history = built.parent / f"{built.name}.history"
    run_in_threads(built, Options(history=history, **options))
    return [
        json.loads(line)["metrics"]["loss"] for line in history.read_text().splitlines()
    ]


def plain_losses():
    """Train by numpy on the rows that the order has."""
    x, y = values()
    groups = [min(GROUP, ROWS - at) for at in range(0, ROWS, GROUP)]
    deal = Deal(Order(ROWS, BATCH, Window(**WINDOW), 7, "keep"), tuple(groups))
    w, found = np.zeros((3, 1), np.float32), []
    for epoch in (1, 2):
        for step in range(deal.order.steps_per_epoch):
            rows = dealt_rows(deal, epoch, step)
            difference = x[rows] @ w - y[rows]
            found.append(float((difference**2).mean()))
            w = w - RATE * 2 * x[rows].T @ difference / len(rows)
    return found


def test_the_rows_of_each_step_are_those_of_the_order(tmp_path):
    built = build(tmp_path, spec(), single_process=True)
    np.testing.assert_allclose(losses(built), plain_losses(), rtol=1e-4)


@pytest.mark.parametrize(
    ("workers", "train"),
    [
        (1, {}),
        (2, {}),
        (4, {}),
        (2, {"threads": 3}),
        (1, {"threads": 4}),
        (2, {"microbatches": 3}),
    ],
)
def test_every_placement_trains_on_the_same_batches(workers, train, tmp_path):
    model = spec(
        workers, train, remainder="drop" if "microbatches" in train else "keep"
    )
    count = 10 if "microbatches" in train else 22  # those before the first short batch
    found = losses(build(tmp_path, model))
    np.testing.assert_allclose(found[:count], plain_losses()[:count], rtol=1e-4)


def test_an_evaluation_reads_every_row_once(tmp_path, monkeypatch):
    monkeypatch.setattr(window_advice, "ADVISED_WINDOW", 50)
    monkeypatch.setattr(window_advice, "SLOW_SECONDS", 0)
    monkeypatch.setattr(window_advice, "FEW_LANES", 1)
    events = []
    model = spec()
    model["data"]["eval"] = {"source": "parquet:rows.parquet", "shuffle": dict(WINDOW)}
    results = [run_in_threads(build(tmp_path, model), watch=events.append)]
    assert not [each for each in events if isinstance(each, Notice)]
    model["data"]["eval"]["shuffle"] = False
    built = build(tmp_path, model, "other")
    results.append(run_in_threads(built, watch=events.append))
    window, memory = (result.eval["loss"] for result in results)
    np.testing.assert_allclose(window, memory, rtol=1e-5)
    (notice,) = (each for each in events if isinstance(each, Notice))
    assert "'shuffle: {window: 50, lanes: 6}' in data.eval" in notice.message


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run without an interruption, with a checkpoint after every step."""
    folder = tmp_path_factory.mktemp("whole")
    built = build(folder, spec())
    options = Options(
        history=folder / "history",
        save_params=folder / "params",
        checkpoint=folder / "checkpoints",
        checkpoint_every="1",
        checkpoint_keep=100,
    )
    assert run_in_threads(built, options).steps == 22
    return folder, built


@pytest.mark.parametrize("step", [1, 7, 11, 12, 20])
def test_a_resumed_run_has_the_same_bits(step, whole, tmp_path):
    folder, built = whole
    options = Options(
        history=tmp_path / "history",
        save_params=tmp_path / "params",
        resume=folder / "checkpoints" / f"step-{step:06d}",
    )
    run_in_threads(built, options)
    check_equal(tmp_path / "params", folder / "params")
    assert lines(tmp_path / "history") == lines(folder / "history")[step:]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            {"shuffle": {"window": 45, "lanes": 5}},
            "{window: 45, lanes: 5}, but was {win",
        ),
        (
            {"shuffle": {"window": 40, "lanes": 4}},
            "{window: 40, lanes: 4}, but was {win",
        ),
        ({"shuffle": True}, "shuffle is true, but was {window: 40, lanes: 5}"),
        ({"source": "parquet:other.parquet"}, "the file has changed"),
    ],
)
def test_another_order_is_not_a_continuation(change, problem, whole, tmp_path):
    folder, _ = whole
    write(tmp_path, "other", group=13)
    built = build(tmp_path, spec(**change))
    with pytest.raises(CheckpointError) as caught:
        run_in_threads(built, Options(resume=folder / "checkpoints"))
    assert "data.train differs from the data of the checkpoint" in caught.value.message
    assert problem in caught.value.message


def test_a_checkpoint_stores_the_window(whole):
    (_, manifest), *_ = list_checkpoints(whole[0] / "checkpoints")
    assert manifest.train.settings.shuffle == Window(40, 5)
    assert manifest.train.digests is not None
    assert manifest.train.digests.file is not None


def test_nodes_with_other_files_are_told(whole):
    data = read_plan(whole[1]).train
    digests = {"worker:0": 1, "worker:1": 1, "worker:2": 2}
    with pytest.raises(RunError) as caught:
        check_same_rows(
            data, "training", {n: Digests((), {}, file=f) for n, f in digests.items()}
        )
    assert caught.value.message == (
        "the nodes do not read the same training data: parquet:rows.parquet: the file on"
        " worker:2 differs from that on worker:0, worker:1"
    )


def test_a_wrong_value_ends_the_run_at_its_row(tmp_path):
    built = build(tmp_path, spec())
    table = pq.read_table(tmp_path / "rows.parquet")
    x = table["x"].combine_chunks().to_pylist()
    x[77] = [0.0, None, 1.0]
    kind = table.schema.field("x").type
    table = table.set_column(0, "x", pa.array(x, kind))
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=GROUP)
    with pytest.raises(PlacerError, match="column 'x', row 77 is null"):
        run_in_threads(built)
