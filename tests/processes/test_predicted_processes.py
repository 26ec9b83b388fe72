"""Predictions by real processes, with the command line."""

import json

import numpy as np
from pyarrow import csv, parquet
from safetensors.numpy import save_file
from support.real_runs import run_command
from support.spec_models import SPECS, initial_parameters

import placer


def test_processes_predict_the_rows_of_a_file_in_their_order(tmp_path):
    build, params = tmp_path / "build", tmp_path / "params"
    plan = placer.compile(SPECS / "wide_deep.yaml", build)
    save_file(initial_parameters(plan), params)
    random = np.random.default_rng(0)
    rows = {
        "id": np.array([f"{i:05}" for i in range(300)]),
        "user": random.integers(60, size=300),
        "item": random.integers(40, size=300),
    }
    columns = {c.name: c for c in plan.columns}
    for name in ("measured", "cross"):
        shape = (300, *columns[name].shape)
        drawn = random.integers(2000, size=shape)
        rows[name] = drawn if name == "cross" else drawn / 2000
    np.savez(tmp_path / "rows.npz", **rows)
    done = run_command(
        "predict", build, "--params", params, "--in", tmp_path / "rows.npz",
        "--out", tmp_path / "out.parquet", "--keys", "id", "--emulate", "--json",
    )  # fmt: skip
    assert done.status == 0, done.err
    assert json.loads(done.out)["rows"] == 300
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table["id"].to_pylist() == rows["id"].tolist()
    placer.compile(SPECS / "wide_deep.yaml", build, single_process=True)
    del rows["id"]
    wanted = placer.predict(build, rows, params=params, in_process=True)["chance"]
    got = np.array(table["chance"].to_pylist())
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_a_spec_is_compiled_for_a_prediction(tmp_path):
    plan = placer.compile(SPECS / "two_workers.yaml", tmp_path / "build")
    save_file(initial_parameters(plan), tmp_path / "params")
    done = run_command(
        "predict", SPECS / "two_workers.yaml", "--single-process",
        "--outputs", "logits,probability", "--params", tmp_path / "params",
        "--out", tmp_path / "out.csv",
    )  # fmt: skip
    assert done.status == 0, done.err
    table = csv.read_csv(tmp_path / "out.csv")
    assert table.schema.names == [
        *(f"logits.{i}" for i in range(3)),
        *(f"probability.{i}" for i in range(3)),
    ]
    assert f"{table.num_rows} rows, " in done.out
