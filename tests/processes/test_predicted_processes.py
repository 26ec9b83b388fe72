"""Predictions by real processes, with the command line."""

import json
import signal

import numpy as np
import pytest
from pyarrow import csv, parquet
from safetensors.numpy import save_file
from support.marks import slow_but
from support.real_runs import (
    compile_small,
    node_processes,
    placer_command,
    run_command,
    running_command,
)
from support.spec_models import SPECS, initial_parameters

import placer
from placer.errors import PlacerError
from placer.launcher.one_process import one_process_build
from placer.plan.plan import read_plan


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
    del rows["id"]
    wanted = placer.predict(
        build, rows, params=params, in_process=True, single_process=True
    )["chance"]
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
        f"{output}.{column}"
        for output in ("logits", "probability")
        for column in ("class", *(f"probability.{i}" for i in range(3)))
    ]
    assert f"{table.num_rows} rows, " in done.out


def test_a_build_predicts_in_one_process_without_its_spec(tmp_path):
    """The paths of its rows are still relative to the folder of the spec."""
    spec, build, out = tmp_path / "small.yaml", tmp_path / "b" / "build", "out.npz"
    text = (SPECS / "two_workers.yaml").read_text()
    random = np.random.default_rng(0)
    np.savez(tmp_path / "rows.npz", features=random.uniform(0, 5, (9, 4)))
    for split in ("train", "test"):
        text = text.replace(f'"sklearn:iris", split: {split}', '"npz:rows.npz"')
    spec.write_text(text)
    plan = placer.compile(spec, build)
    save_file(initial_parameters(plan), tmp_path / "params")
    spec.unlink()
    words = "--params", tmp_path / "params", "--single-process", "--out"
    done = run_command("predict", build, *words, tmp_path / out)
    assert done.status == 0, done.err
    wanted = placer.predict(build, params=tmp_path / "params", in_process=True)
    with np.load(tmp_path / out) as got:
        assert got["probability.2"].shape == got["class"].shape == (9,)
        for name in wanted:
            np.testing.assert_allclose(got[name], wanted[name], rtol=1e-5)
    done = run_command("predict", build, *words, build / out)
    assert "it is inside the build folder" in done.err
    with (
        one_process_build(build) as other,
        pytest.raises(PlacerError, match="can only predict"),
    ):
        placer.launch(other)


def test_a_spec_predicts_from_the_checkpoints_of_its_training(tmp_path):
    """`train` and `predict` set the same keys; the run's folder has the checkpoints."""
    spec, kept = SPECS / "two_workers.yaml", tmp_path / "kept"
    keys = "--set", "nodes.worker.count=3", "--set", "predict.outputs=[logits]"
    done = run_command(
        "train", spec, *keys, "--steps", 2, "--checkpoint", kept, "--in-process",
        "--save-params", tmp_path / "params", "--out", tmp_path / "run",
    )  # fmt: skip
    assert done.status == 0, done.err
    done = run_command(
        "predict", spec, *keys, "--params", kept, "--out", tmp_path / "out.npz", "--raw"
    )
    assert done.status == 0, done.err
    with np.load(tmp_path / "out.npz") as got:
        assert list(got) == ["logits"]
        build, params = tmp_path / "run" / "build", tmp_path / "params"
        wanted = placer.predict(build, params=params, in_process=True, raw=True)
        np.testing.assert_array_equal(got["logits"], wanted["logits"])
    done = run_command(
        "predict", build, *keys, "--params", kept, "--out", tmp_path / "out.npz"
    )
    assert done.status == 2
    assert "is a build, whose keys cannot be changed" in done.err


WAITING_READER = """\
from threading import Event


class Rows:
    def __len__(self):
        return 64

    def __getitem__(self, i):
        if i == 17:
            print("waiting", flush=True)
            Event().wait()
        return {"x": [0.0, 0.0, 0.0, 1.0], "y": 0.0}


def train():
    return Rows()
"""


@pytest.mark.parametrize(
    ("number", "status"),
    slow_but([(signal.SIGINT, 130)], [(signal.SIGINT, 130), (signal.SIGTERM, 143)]),
)
def test_a_signal_ends_a_prediction_and_leaves_no_file(number, status, tmp_path):
    build = compile_small(tmp_path, workers=2, rows=WAITING_READER)
    placer.compile(tmp_path / "small.yaml", build, outputs=["prediction"])
    save_file(initial_parameters(read_plan(build)), tmp_path / "params")
    out = tmp_path / "predicted" / "out.npz"
    out.parent.mkdir()
    line = placer_command("predict", build, "--params", tmp_path / "params")
    with running_command([*line, "--out", str(out)]) as run:
        run.wait_for_line("worker:")
        run.process.send_signal(number)
        ended = run.wait()
    assert (ended.status, ended.out) == (status, "")
    assert "the predictions were not written\n" in ended.err
    assert not [*out.parent.iterdir()]
    assert not node_processes(build)
