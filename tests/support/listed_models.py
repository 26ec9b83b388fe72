"""Small models that together use every op, optimizer, schedule and clip.

All of them are tested in every run of the tests, while a drawn model has only a few
ops. Ops whose result depends on an order or a sign get values whose elements are
separated, so that rounding does not change the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import yaml

from support.drawn.sketch import INPUTS
from support.plain.graph import as_list, flatten_ops


@dataclass(frozen=True)
class ListedModel:
    """A model: the sections `graph` and `train` of its spec.

    `without_decay` names the parameters with `decay: false`, `zero_gradients` those whose gradients are zero in exact arithmetic;
    `rows` are the numbers of rows to train on and to evaluate on. If they are not
    multiples of the batch, programs for the last batch are compiled too.
    """

    graph: str
    train: str
    without_decay: tuple[str, ...] = ()
    zero_gradients: tuple[str, ...] = ()
    rows: tuple[int, int] = (24, 12)


IMAGES = ListedModel(
    """
- {name: kernels, op: conv2d, in: image, filters: 4, kernel_size: 2, padding: same}
- remat: true
  ops:
    - {name: normed, op: batch_norm, in: kernels, momentum: 0.8}
    - {name: bent, op: tanh, in: normed}
    - {name: deep, op: depthwise_conv2d, in: bent, kernel_size: [2, 1], padding: same}
- {name: grouped, op: group_norm, in: deep, groups: 2, epsilon: 0.01}
- {name: large, op: conv2d_transpose, in: grouped, filters: 3, kernel_size: 2, strides: 2}
- {name: most, op: max_pool2d, in: large, pool_size: 2}
- {name: even, op: avg_pool2d, in: most, pool_size: 2, strides: 1}
- {name: peaks, op: adaptive_max_pool2d, in: even, output_size: [2, 1]}
- {name: means, op: adaptive_avg_pool2d, in: even, output_size: 1}
- {name: row, op: flatten, in: peaks}
- {name: rest, op: flatten, in: means}
- {name: both, op: concat, in: [row, rest]}
- {name: shaken, op: dropout, in: both, rate: 0.25, out: dropped}
- {name: logits, op: fc, in: dropped, size: 4}
- {name: smooth, op: softmax_cross_entropy, in: [logits, label], label_smoothing: 0.1}
- {name: noise, op: nce, in: [dropped, label], classes: 4, num_sampled: 2}
- {name: sampled, op: sampled_softmax, in: [dropped, label], classes: 4, num_sampled: 3}
- {name: two, op: add, in: [smooth, noise]}
- {name: loss, op: add, in: [two, sampled]}
- {name: accuracy, op: accuracy, in: [logits, label]}
- {name: top_2, op: top_k_accuracy, in: [logits, label], k: 2}
- {name: f1, op: f1, in: [logits, label], class_id: 2}
- {name: shift, op: reduce_sum, in: normed.running_mean}
""",
    """
metrics: [loss, accuracy, top_2, f1, shift]
clip: {norm: 0.5}
optimizer:
  - {op: lamb, learning_rate: 0.02, weight_decay: 0.1, match: "*.w"}
  - op: adamw
    learning_rate: {linear: {init: 0.05, end: 0.01, steps: 3}}
    weight_decay: 0.2
    eps: 1.0e-6
    match: "normed.*"
  - {op: momentum, learning_rate: {inverse_time: {init: 0.05, rate: 0.5, steps: 2}}}
""",
    without_decay=("normed.bias",),
    zero_gradients=("kernels.b",),
)

SEQUENCES = ListedModel(
    """
- {name: tokens, op: reshape, in: image, shape: [batch, 6, 4]}
- {name: near, op: conv1d, in: tokens, filters: 4, kernel_size: 3, padding: same,
   activation: tanh}
- {name: learned, op: position_embedding, in: near}
- {name: placed, op: positional_encoding, in: learned}
- remat: true
  ops:
    - {name: normed, op: layer_norm, in: placed, epsilon: 0.01}
    - {name: heads, op: multi_head_attention, in: normed, heads: 2, causal: true}
    - {name: dropped, op: dropout, in: heads, rate: 0.5}
    - {name: sum, op: add, in: [placed, dropped]}
- {name: scaled, op: rms_norm, in: sum, epsilon: 0.01}
- {name: long, op: lstm, in: [scaled, length], size: 2}
- {name: back, op: gru, in: [scaled, long.last], size: 2, reverse: true}
- {name: simple, op: simple_rnn, in: back.sequence, size: 3}
- {name: looked, op: attention, in: [long.sequence, back.sequence, simple.sequence, length]}
- {name: wide, op: conv1d_transpose, in: looked, filters: 2, kernel_size: 2, strides: 2}
- {name: most, op: max_pool1d, in: back.sequence, pool_size: 2}
- {name: even, op: avg_pool1d, in: wide, pool_size: 4}
- {name: all, op: concat, in: [most, even]}
- {name: row, op: flatten, in: all}
- {name: out, op: fc, in: row, size: 1}
- {name: flat, op: squeeze, in: out, axis: 1}
- {name: error, op: huber, in: [flat, y], delta: 0.5}
- {name: kept, op: reduce_mean, in: long.cell}
- {name: loss, op: add, in: [error, kept]}
- {name: rmse, op: root_mean_squared_error, in: [flat, y]}
""",
    """
metrics: [loss, rmse]
optimizer:
  - op: nadam
    learning_rate: {natural_exp: {init: 0.05, rate: 0.5, steps: 2}}
    eps: 1.0e-6
    match: "heads.*"
    clip: {global_norm: 0.1}
  - {op: adamax, learning_rate: 0.02, eps: 1.0e-6, match: "long.*"}
  - {op: lars, learning_rate: 0.1, trust_coefficient: 0.1, weight_decay: 0.1, match: "simple.w*"}
  - {op: nesterov, learning_rate: {noam: {size: 16, warmup: 2, factor: 0.3}}}
""",
    zero_gradients=("heads.b_key",),
)

NUMBERS = ListedModel(
    """
- {name: h, op: fc, in: x, size: 4, activation: tanh}
- {name: g, op: fc, in: x, size: 4, activation: tanh}
- {name: half, op: constant, value: 0.5}
- {name: more, op: scale, in: h, factor: 0.5, bias: 0.7}
- {name: root, op: sqrt, in: more}
- {name: log, op: log, in: more}
- {name: cube, op: pow, in: h, exponent: 3}
- {name: less_than_one, op: pow, in: more, exponent: -0.5}
- {name: e, op: exp, in: g}
- {name: squared, op: square, in: g}
- {name: turned, op: negative, in: squared}
- {name: size, op: abs, in: h}
- {name: kept, op: clip, in: g, min: -0.5, max: 0.4}
- {name: larger, op: maximum, in: [h, g]}
- {name: smaller, op: minimum, in: [root, e]}
- {name: above, op: greater, in: [h, g]}
- {name: below, op: less, in: [h, half]}
- {name: same, op: equal, in: [ids, label]}
- {name: column, op: expand_dims, in: same, axis: 1}
- {name: chosen, op: where, in: [above, larger, cube]}
- {name: other, op: where, in: [below, kept, chosen]}
- {name: third, op: where, in: [column, other, half]}
- {name: shares, op: cast, in: below, dtype: float32}
- {name: products, op: mul, in: [third, shares]}
- {name: quotients, op: div, in: [products, more]}
- {name: differences, op: sub, in: [quotients, less_than_one]}
- {name: sums, op: add, in: [differences, size]}
- {name: more_sums, op: add, in: [sums, smaller]}
- {name: logs, op: mul, in: [more_sums, log]}
- {name: out, op: sub, in: [logs, turned]}
- {name: fixed, op: stop_gradient, in: out}
- {name: free, op: mul, in: [out, fixed]}
- {name: w, op: parameter, shape: [4, 1], init: zeros}
- {name: column_of_sums, op: matmul, in: [free, w]}
- {name: prediction, op: squeeze, in: column_of_sums, axis: 1}
- {name: loss, op: mean_squared_error, in: [prediction, y]}
- {name: activity, op: mean, in: h}
- {name: mae, op: mean_absolute_error, in: [prediction, y]}
""",
    """
metrics: [loss, activity, mae, half]
clip: {value: 0.05}
optimizer:
  - {op: lion, learning_rate: 0.02, weight_decay: 0.1, match: "h.w"}
  - {op: ftrl, learning_rate: 0.1, l1: 0.001, l2: 0.1, beta: 1.0, match: "w"}
  - op: adagrad
    learning_rate: {polynomial: {init: 0.1, end: 0.01, steps: 2, power: 2, cycle: true}}
    match: "g.*"
  - op: rmsprop
    centered: true
    momentum: 0.5
    eps: 1.0e-4
    learning_rate: {piecewise: {boundaries: [1, 3], values: [0.05, 0.02, 0.04]}}
""",
)

_UNEVEN = (29, 17)

ACTIVATIONS = ListedModel(
    """
- {name: h, op: fc, in: x, size: 3}
- {name: relu, op: relu, in: h}
- {name: leaky, op: leaky_relu, in: h, negative_slope: 0.2}
- {name: elu, op: elu, in: h, alpha: 0.5}
- {name: gelu, op: gelu, in: h}
- {name: silu, op: silu, in: h}
- {name: softplus, op: softplus, in: h}
- {name: sigmoid, op: sigmoid, in: h}
- {name: softmax, op: softmax, in: h, axis: 0}
- {name: sides, op: concat, in: [relu, leaky, elu, gelu, silu, softplus, sigmoid, softmax]}
- {name: chance, op: fc, in: sides, size: 3, activation: softmax}
- {name: logs, op: log_softmax, in: h}
- {name: apart, op: kl_div, in: [logs, chance]}
- {name: alike, op: cosine_similarity, in: [chance, sigmoid]}
- {name: likeness, op: reduce_mean, in: alike}
- {name: one, op: fc, in: sides, size: 1}
- {name: flat, op: reshape, in: one, shape: [batch]}
- {name: clicks, op: sigmoid_cross_entropy, in: [flat, click], positive_weight: 2.0}
- {name: side, op: hinge, in: [flat, click]}
- {name: far, op: l1_loss, in: [flat, y]}
- {name: terms, op: add, in: [apart, likeness]}
- {name: losses, op: add, in: [clicks, side]}
- {name: most, op: add, in: [terms, losses]}
- {name: loss, op: add, in: [most, far]}
- {name: auc, op: auc, in: [flat, click], logits: true}
- {name: precision, op: precision, in: [flat, click], logits: true}
- {name: recall, op: recall, in: [flat, click], logits: true, threshold: 0.4}
""",
    """
metrics: [loss, auc, precision, recall]
clip: {global_norm: 0.3}
optimizer:
  - op: adadelta
    learning_rate: {exponential: {init: 1.0, rate: 0.5, steps: 2, staircase: true}}
    match: "h.*"
  - op: adam
    learning_rate: {warmup: {steps: 2, then: {cosine: {init: 0.05, steps: 4}}}}
""",
    rows=_UNEVEN,
)

ROWS = ListedModel(
    """
- {name: h, op: fc, in: z, size: 6, activation: tanh}
- {name: parts, op: split, in: h, sections: [2, 2, 2], out: [query, key, value]}
- {name: steps, op: split, in: h, sections: 2, axis: 1}
- {name: scores, op: einsum, in: [query, key], equation: "bid,bjd->bij"}
- {name: seen_values, op: einsum, in: [scores, value], equation: "bij,bjd->bid"}
- {name: mixed, op: einsum, in: [seen_values, steps.out1], equation: "bid,bsn->bdn"}
- {name: best, op: top_k, in: h, k: 3}
- {name: chosen, op: take_along_axis, in: [h, best.indices]}
- {name: padded, op: pad, in: best.values, paddings: [[0, 0], [1, 0], [0, 2]], mode: edge}
- {name: inner, op: slice, in: padded, axis: [1, 2], start: [1, 0], step: [2, 1]}
- {name: turned, op: transpose, in: inner}
- {name: sums, op: cumsum, in: turned, exclusive: true}
- {name: most, op: reduce_max, in: h, axis: 2}
- {name: least, op: reduce_min, in: h, axis: [0, 2]}
- {name: which, op: argmax, in: most, axis: 0}
- {name: there, op: gather, in: [chosen, which]}
- {name: lowest, op: argmin, in: most}
- {name: hot, op: one_hot, in: lowest, classes: 2}
- {name: tiled, op: tile, in: hot, repeats: [1, 3]}
- {name: table, op: parameter, shape: [6, 6], init: zeros}
- {name: looked_up, op: gather, in: [table, ids]}
- {name: both, op: mul, in: [tiled, looked_up]}
- {name: over_rows, op: einsum, in: [both, most], equation: "bi,bj->ij"}
- {name: total, op: reduce_sum, in: over_rows}
- {name: bag, op: embedding, in: [pairs, most], size: [6, 3], combiner: sqrtn, padding: 0}
- {name: contents, op: reduce_mean, in: bag}
- {name: mean, op: reduce_mean, in: sums}
- {name: means, op: reduce_mean, in: there}
- {name: end, op: reduce_sum, in: least}
- {name: centre, op: reduce_mean, in: mixed}
- {name: a, op: add, in: [total, mean]}
- {name: b, op: add, in: [means, end]}
- {name: c, op: add, in: [a, b]}
- {name: d, op: add, in: [c, centre]}
- {name: e, op: add, in: [d, contents]}
- {name: loss, op: sigmoid, in: e}
""",
    """
metrics: [loss, total, end]
optimizer: {op: sgd, learning_rate: 0.1}
""",
    rows=_UNEVEN,
)

CALLS = ListedModel(
    """
- {name: column, op: parameter, shape: [3, 1], init: zeros}
- {name: vectors, op: embedding, in: ids, size: [6, 3]}
- {name: both, op: add, in: [vectors, x]}
- remat: true
  ops:
    - {name: noisy, op: call, fn: "called:noisy", in: both, batch: rows,
       params: {w: {shape: [3, 4], init: zeros}}, out: [y1: "float32[batch, 4]"]}
    - {name: bent, op: fc, in: y1, size: 3, activation: tanh}
- {name: centred, op: call, fn: "called:centred", in: bent,
   params: {scale: {shape: [3], init: ones}}, state: {mean: {shape: [3], init: zeros}},
   out: [y2: "float32[batch, 3]", far: "float32[batch]"]}
- {name: out, op: fc, in: y2, size: 1, params: {w: column}}
- {name: flat, op: flatten, in: out, axis: 0}
- {name: all, op: add, in: [flat, far]}
- {name: error, op: mean_squared_error, in: [all, y]}
- {name: squares, op: square, in: vectors.table}
- {name: norm, op: reduce_sum, in: squares}
- {name: loss, op: add, in: [error, norm]}
""",
    """
metrics: [loss, norm]
optimizer:
  - op: momentum
    learning_rate:
      linear_scaling: {batch: 12, base_batch: 8, warmup: 2, then: 0.03}
    match: "*.table"
  - {op: sgd, learning_rate: {cosine: {init: 0.05, steps: 4, alpha: 0.1}}}
""",
    rows=_UNEVEN,
)

MODELS = {
    "images": IMAGES,
    "sequences": SEQUENCES,
    "numbers": NUMBERS,
    "activations": ACTIVATIONS,
    "rows": ROWS,
    "calls": CALLS,
}


def spec_of(model: ListedModel) -> dict[str, Any]:
    """Return a listed model as a spec without places, for 3 workers and 2 servers."""
    graph = yaml.safe_load(model.graph)
    used = {
        name for entry in flatten_ops(graph) for name in as_list(entry.get("in", []))
    }
    return {
        "name": "listed",
        "precision": "float64",
        "nodes": {"worker": {"count": 3}, "ps": {"count": 2}},
        "seed": 5,
        "inputs": {name: str(kind) for name, kind in INPUTS.items() if name in used},
        "data": {
            "train": {"source": "npz:train.npz", "batch": 12, "remainder": "keep"},
            "eval": {"source": "npz:eval.npz", "batch": 6},
        },
        "parameters": [{"match": n, "decay": False} for n in model.without_decay],
        "graph": graph,
        "train": {
            "minimize": "loss",
            "slicing": {"min_block": 2},
            **yaml.safe_load(model.train),
        },
    }


def _with_op_places(spec: dict[str, Any], places: Iterator[str]) -> dict[str, Any]:
    """Return the spec with its ops at these places, in turn."""

    def placed(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        result = []
        for entry in entries:
            if "op" not in entry:
                entry = {**entry, "ops": placed(entry["ops"])}
            elif entry["op"] != "parameter":
                entry = {**entry, "place": next(places)}
            result.append(entry)
        return result

    return {**spec, "graph": placed(spec["graph"])}


def _with_optimizer_place(spec: dict[str, Any], place: str) -> dict[str, Any]:
    entries = spec["train"]["optimizer"]
    entries = entries if isinstance(entries, list) else [entries]
    moved = [{**entry, "place": place} for entry in entries]
    return {**spec, "train": {**spec["train"], "optimizer": moved}}


PLACEMENTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "split over workers": lambda spec: spec,
    "op by op on two workers": lambda spec: _with_op_places(
        spec, cycle(["/node:worker:0", "/node:worker:1"])
    ),
    "op by op on all and some, optimizers on all": lambda spec: _with_optimizer_place(
        _with_op_places(
            spec, cycle(["/node:worker", "/node:worker:0-1", "/node:worker:0"])
        ),
        "/node:worker",
    ),
}
