"""A gradient of a row that is not finite ends the run, or is dropped with `nan: warn`."""

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

ROWS, BATCH = 16, 8
BAD = -3
"""The key that stands in the row whose weight is 0."""


def trained(
    folder,
    name,
    *,
    inside=True,
    workers=2,
    servers=2,
    update="sync",
    clip=None,
    **train,
):
    """Train a model with √(w·x²) of rows x or, if the weight is not `inside`, w·√(x²).

    Both are the same, also their derivatives, but for w = 0: the first has NaN, the
    second 0.
    """
    rng = np.random.default_rng(0)
    keys = np.tile(np.arange(BATCH) + BAD, ROWS // BATCH)
    w = np.where(keys == BAD, 0.0, 1.0)[:, None]
    labels = rng.integers(0, 3, ROWS).astype(np.int32)
    np.savez(folder / "rows.npz", keys=keys, w=w, y=labels)
    ops = [("mul", ["square", "w"]), ("sqrt", "mul")]
    if not inside:
        ops = [("sqrt", "square"), ("mul", ["sqrt", "w"])]
    nodes = {"worker": {"count": workers}} | (
        {"ps": {"count": servers}} if servers else {}
    )
    optimizer = {"op": "sgd", "learning_rate": 0.5, "update": update}
    content = {
        "name": "not_finite",
        "precision": "float64",
        "nodes": nodes,
        "inputs": {
            "keys": "int64[batch]",
            "w": "float64[batch, 1]",
            "y": "int32[batch]",
        },
        "data": {
            "train": {"source": "npz:rows.npz", "batch": BATCH},
            "eval": {"source": "npz:rows.npz", "batch": BATCH},
        },
        "graph": [
            {"name": "emb", "op": "embedding", "in": "keys", "dim": 4}
            | {"sparse": True, "partitions": 8},
            {"name": "square", "op": "square", "in": "emb"},
            *({"name": op, "op": op, "in": operands} for op, operands in ops),
            {"name": "z", "op": "fc", "in": ops[-1][0], "size": 3},
            {"name": "loss", "op": "softmax_cross_entropy", "in": ["z", "y"]},
        ],
        "train": {
            "minimize": "loss",
            "epochs": 2,
            "optimizer": optimizer | ({"clip": clip} if clip else {}),
            **train,
        },
    }
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps(content))
    placer.compile(file, folder / name)
    saved = folder / f"{name}.safetensors"
    result = run_in_threads(folder / name, Options(save_params=saved))
    return load_file(saved), result.eval["loss"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"clip": {"global_norm": 0.1}},
        {"workers": 1, "servers": 0},
        {"workers": 1, "update": "async"},
        {"workers": 1, "update": "half_async"},
    ],
    ids=["sync", "clipped", "one node", "async", "half_async"],
)
def test_with_warn_only_the_gradients_of_these_rows_are_dropped(
    tmp_path, capsys, settings
):
    parameters, loss = trained(tmp_path, "warned", nan="warn", **settings)
    lines = capsys.readouterr().err.splitlines()
    (line,) = (each for each in lines if "not finite" in each)
    assert "table emb.table: the gradients of 1 of " in line
    assert "such gradients are dropped, and the run continues" in line
    if settings.get("update") == "async":
        assert np.isfinite(loss)  # its steps depend on time
        return
    others, expected = trained(tmp_path, "expected", inside=False, **settings)
    assert_allclose(loss, expected, rtol=1e-12)
    for name, values in parameters.items():
        assert_allclose(values, others[name], rtol=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"1 of \d keys are not finite in step 1,"),
        ({"clip": {"global_norm": 0.1}}, r"1 of \d keys are not finite in step 1,"),
        ({"update": "async"}, r"1 of \d keys are not finite in step 1 of worker:\d,"),
    ],
    ids=["sync", "clipped", "async"],
)
def test_else_they_end_the_run(tmp_path, settings, message):
    key = rf"such as key {2**64 + BAD} \(int64 {BAD}\)"
    with pytest.raises(
        RunError, match=f"table emb.table: the gradients of {message} {key}"
    ):
        trained(tmp_path, "stopped", **settings)
