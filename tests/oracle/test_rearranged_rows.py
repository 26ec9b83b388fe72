"""R1 for ops that slice, select and move elements.

The batch dimension is not the first, rows use elements of other rows, or the loss uses
only some results of an op.
"""

import numpy as np
import pytest
import yaml
from support.marks import slow_but
from support.plain_jax_checks import check_against_plain_jax, op
from support.run_ways import check_all_same, run_three_ways

pytestmark = pytest.mark.usefixtures("in_float64")

SPEC = """\
name: small
precision: float64
nodes: {worker: {count: 3}, ps: {count: 2}}
inputs: {x: "float32[batch, 6, 6]", ids: "int32[batch]"}
data:
  train: {source: "npz:train.npz", batch: 9, remainder: keep}
  eval: {source: "npz:eval.npz", batch: 6}
train:
  minimize: loss
  epochs: 5
  optimizer: {op: sgd, learning_rate: 0.1}
"""
H = "{name: h, op: fc, in: x, size: 6, activation: tanh}"
LOSS = "{name: loss, op: reduce_mean, in: out}"
MODELS = {
    "parts of a layer, one of them unused": [
        H,
        "{name: parts, op: split, in: h, sections: [2, 2, 2], out: [q, k, v]}",
        "{name: rows, op: split, in: h, sections: 2, axis: 1}",
        '{name: scores, op: einsum, in: [q, k], equation: "bid,bjd->bij"}',
        '{name: out, op: einsum, in: [scores, rows.out1], equation: "bij,bkj->bik"}',
        LOSS,
    ],
    "the largest elements, and others at their positions": [
        H,
        "{name: best, op: top_k, in: h, k: 3}",
        "{name: chosen, op: take_along_axis, in: [x, best.indices]}",
        "{name: fixed, op: stop_gradient, in: best.values}",
        "{name: free, op: mul, in: [best.values, fixed]}",
        "{name: out, op: mul, in: [free, chosen]}",
        LOSS,
    ],
    "the batch as the last dimension, a cumulative sum and a maximum over it": [
        H,
        "{name: padded, op: pad, in: h, paddings: [[0, 0], [1, 0], [0, 2]], mode: edge}",
        "{name: cut, op: slice, in: padded, axis: [1, 2], start: [1, 0], step: [2, 1]}",
        "{name: t, op: transpose, in: cut}",
        "{name: sums, op: cumsum, in: t, exclusive: true}",
        "{name: most, op: reduce_max, in: sums, axis: 2}",
        "{name: out, op: flatten, in: most, axis: 0}",
        LOSS,
    ],
    "partial sums over rows pass through linear ops": [
        H,
        "{name: hot, op: one_hot, in: ids, classes: 5}",
        '{name: sums, op: einsum, in: [hot, h], equation: "bc,bij->cj"}',
        "{name: e, op: expand_dims, in: sums, axis: 0}",
        "{name: twice, op: tile, in: e, repeats: [2, 1, 1]}",
        "{name: which, op: argmax, in: twice}",
        "{name: out, op: gather, in: [twice, which], axis: 2}",
        "{name: mean, op: reduce_mean, in: out}",
        "{name: loss, op: mul, in: [mean, mean]}",
    ],
    "rows of a table, and of the batch": [
        H,
        "{name: w, op: parameter, shape: [5, 6], init: zeros}",
        "{name: looked, op: gather, in: [w, ids]}",
        "{name: column, op: expand_dims, in: looked, axis: 1}",
        "{name: mixed, op: mul, in: [h, column]}",
        "{name: shuffled, op: gather, in: [mixed, ids]}",
        "{name: least, op: reduce_min, in: shuffled, axis: [1, 2], keepdims: true}",
        "{name: flat, op: squeeze, in: least, axis: [1, 2]}",
        '{name: pairs, op: einsum, in: [flat, flat], equation: "b,c->bc"}',
        "{name: out, op: tanh, in: pairs}",
        LOSS,
    ],
}  # fmt: skip


def columns(rows: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        "x": random.uniform(-1, 1, (rows, 6, 6)),
        "ids": random.integers(0, 5, rows).astype(np.int32),
    }


@pytest.mark.parametrize("name", slow_but([*MODELS][:3], MODELS))
def test_a_model_trains_like_plain_jax(name, tmp_path):
    spec = yaml.safe_load(SPEC) | {"graph": [yaml.safe_load(op) for op in MODELS[name]]}
    random = np.random.default_rng(3)
    shapes = {"h.w": (6, 6), "h.b": (6,)}
    if any(op["name"] == "w" for op in spec["graph"]):
        shapes["w"] = (5, 6)
    initial = {n: random.uniform(-0.7, 0.7, shape) for n, shape in shapes.items()}
    rows = {"train": columns(23, 1), "eval": columns(11, 2)}
    graph = str(spec["graph"])
    spec["inputs"] = {n: t for n, t in spec["inputs"].items() if f"'{n}'" in graph}
    rows = {w: {n: c[n] for n in spec["inputs"]} for w, c in rows.items()}
    traces = run_three_ways(spec, rows, initial, tmp_path)
    check_all_same(traces)
    assert any(
        not np.allclose(traces["placed"].parameters[n], initial[n], rtol=1e-6, atol=0)
        for n in initial
    )


def test_a_batch_that_is_not_split_can_be_uneven(tmp_path):
    """Each worker has all 7 rows."""
    graph = [
        op("w", "parameter", shape=[3], init="ones"),
        op("most", "reduce_max", "x", "/node:worker", axis=0),
        op("d", "mul", ["most", "w"], "/node:worker"),
        op("loss", "reduce_sum", "d", "/node:worker"),
    ]
    train = {"optimizer": {"op": "sgd", "learning_rate": 0.1}}
    nodes = {"worker": {"count": 2}}
    check_against_plain_jax(nodes, graph, {"w": (3,)}, train, tmp_path, batch=7)
