"""Exported models with sparse tables: they look rows up in Parquet files, and a key that
is not in one reads what it does in an evaluation."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet
import pytest
from numpy.testing import assert_array_equal
from support.exported import check_close, run_exported
from support.marks import slow_but

import placer
from placer.checkpoint.reading import Checkpoint
from placer.errors import DataError, PlacerError
from placer.publishing.served import load_table
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads
from placer.runtime.saving.row_files import read_partitions

PADDING = -3
TABLES = {
    "drawn": {"padding": PADDING},
    "unsigned": {"combiner": "sqrtn", "init": {"normal": 0.5}},
    "combined": {
        "combiner": "mean",
        "padding": PADDING,
        "weights": "weights",
        "init": {"constant": 0.25},
    },
    "counted": {"admit": {"count": 3}, "default": 0.5},
}


def trained(folder, table, ids="int64", graph=()):
    """Return a build of two workers and servers, and a checkpoint of it."""
    rng = np.random.default_rng(0)
    keys = (rng.zipf(1.3, (64, 3)).astype(np.uint64) * np.uint64(2**60 + 1)).view("i8")
    keys[::7, 1:] = PADDING
    keys[0] = PADDING
    if ids == "int32":
        keys %= 1000
    weights = rng.uniform(0.5, 2, (64, 3)).astype(np.float32)
    rows = {"keys": keys.astype(ids), "y": np.int32(keys[:, 0] % 3)}
    inputs = {"keys": f"{ids}[batch, 3]", "y": "int32[batch]"}
    table = dict(table)
    init = table.pop("init", None)
    lookup = {"name": "emb", "op": "embedding", "in": "keys", "sparse": True, "dim": 3}
    if "weights" in table:
        lookup["in"] = ["keys", table.pop("weights")]
        rows["weights"], inputs["weights"] = weights, "float32[batch, 3]"
    np.savez(folder / "rows.npz", **rows)
    content = {
        "name": "exported",
        "nodes": {"worker": {"count": 2}, "ps": {"count": 2}},
        "inputs": inputs,
        "data": {"train": {"source": "npz:rows.npz", "batch": 16}},
        "graph": [
            *graph,
            lookup | table,
            {"name": "flat", "op": "flatten", "in": "emb"},
            {"name": "z", "op": "fc", "in": "flat", "size": 3},
            {"name": "loss", "op": "softmax_cross_entropy", "in": ["z", "y"]},
        ],
        "train": {
            "minimize": "loss",
            "optimizer": {"op": "adagrad", "learning_rate": 0.5},
        },
        "predict": {"outputs": ["emb", "z"]},
    }
    if init is not None:
        content["parameters"] = [{"match": "emb.table", "init": init}]
    file = folder / "exported.yaml"
    file.write_text(json.dumps(content))
    placer.compile(file, folder / "build")
    options = Options(steps=3, checkpoint=folder / "saved")
    run_in_threads(folder / "build", options)
    return folder / "build", folder / "saved"


@pytest.mark.parametrize("name", slow_but(["combined"], TABLES))
def test_an_exported_model_and_predictions_look_up_the_same_rows(tmp_path, name):
    ids = "uint64" if name == "unsigned" else "int64"
    build, saved = trained(tmp_path, TABLES[name], ids)
    with np.load(tmp_path / "rows.npz") as opened:
        rows = dict(opened)
    rows["keys"][1::5] += np.array(12345, ids)  # keys that were never seen
    model = placer.export(build, tmp_path / "model", params=saved)
    got = run_exported(model.folder, rows, tmp_path)
    for single in (False, True):
        wanted = placer.predict(
            build,
            rows,
            params=saved,
            single_process=single,
            in_process=not single,
            raw=True,
        )
        for output, array in wanted.items():
            assert np.isfinite(array).all()
            for found in (got[output], got[f"model.stablehlo:{output}"]):
                check_close(found, array, "float32", output)


def test_a_parquet_file_has_the_keys_and_rows_of_a_table(tmp_path):
    build, saved = trained(tmp_path, {})
    placer.export(build, tmp_path / "model", params=saved)
    written = pyarrow.parquet.read_table(tmp_path / "model" / "emb.table.parquet")
    assert written.column_names == ["key", "row"]
    keys = written["key"].to_pylist()
    checkpoint = Checkpoint(max(saved.glob("step-*")).resolve())
    found = dict(zip(keys, written["row"].to_pylist(), strict=True))
    count = 0
    for partition in range(256):
        (arrays,) = read_partitions(checkpoint, [("emb.table", partition)], finite=True)
        signed = arrays["keys"].view(np.int64).tolist()
        for key, row in zip(signed, arrays["values"], strict=True):
            assert_array_equal(np.float32(found[key]), row[:3])
            count += 1
    assert count == len(keys) > 10
    check_damage_is_found(tmp_path / "model" / "emb.table.parquet", arrays_of(written))


def arrays_of(table):
    rows = table["row"].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
    return table["key"].to_numpy().view(np.uint64), rows


def check_damage_is_found(file, arrays):
    """The functions of the exported model read the table, and no damaged row."""
    table = load_table(str(file))
    order, loaded = np.argsort(arrays[0]), np.argsort(table.keys)
    assert_array_equal(table.keys[loaded], arrays[0][order])
    assert_array_equal(table.rows[loaded], arrays[1][order])
    content = bytearray(file.read_bytes())
    content[content.index(table.rows[3].tobytes())] ^= 1
    file.write_bytes(content)
    with pytest.raises(OSError, match="checksum"):
        load_table(str(file))


def test_the_types_of_an_exported_model_are_those_of_rows_and_not_of_keys(tmp_path):
    build, saved = trained(tmp_path, TABLES["combined"])
    model = placer.export(build, tmp_path / "model", params=saved)
    assert model.arguments == ("weights", "emb_rows", "emb_present")
    text = (model.folder / "model.py").read_text()
    assert "jax_enable_x64" not in text
    assert "emb_rows: float32[batch, 3, 3]" in text


def test_a_file_of_parameters_has_no_rows_to_export_or_predict_with(tmp_path, capsys):
    build, _ = trained(tmp_path, {})
    dense = tmp_path / "dense.safetensors"
    kept = tmp_path / "kept"
    run_in_threads(build, Options(steps=1, save_params=dense, checkpoint=kept))
    assert "no rows of sparse tables" not in capsys.readouterr().err
    run_in_threads(build, Options(steps=1, save_params=dense))
    assert "will not contain rows of sparse tables" in capsys.readouterr().err
    with pytest.raises(DataError, match=r"does not contain the model.s sparse tables"):
        placer.export(build, tmp_path / "model", params=dense)
    assert not (tmp_path / "model").exists()
    with pytest.raises(
        PlacerError, match=r"does not contain the model.s sparse tables"
    ):
        placer.predict(build, params=dense, in_process=True)


def test_keys_that_are_computed_cannot_be_looked_up_before_the_model(tmp_path):
    graph = ({"name": "ids", "op": "concat", "in": ["keys", "keys"]},)
    build, saved = trained(tmp_path, {"in": "ids"}, "int32", graph)
    with pytest.raises(PlacerError, match="'emb' looks up keys that are computed"):
        placer.export(build, tmp_path / "model", params=saved)
