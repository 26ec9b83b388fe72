"""The valid values of ids and labels, from the ops that use them as indices."""

from __future__ import annotations

import pytest

from placer.compiler.frontend.parse import load_text
from placer.compiler.memory.input_ranges import limit_inputs

SPEC = """\
nodes: {worker: {count: 1}}
inputs:
  ids: int32[batch, 2]
  small: uint8[batch]
  label: int32[batch]
  x: float32[batch, 4]
data:
  train: {source: "npz:rows.npz", batch: 4}
  eval: {source: "npz:rows.npz"}
graph:
  - {name: scores, op: fc, in: x, size: 10}
OPS
train: {minimize: loss, metrics: [METRICS], optimizer: {op: sgd, learning_rate: 0.1}}
"""
LOSS = ["{name: loss, op: softmax_cross_entropy, in: [scores, label]}"]
PLAIN = ["{name: loss, op: reduce_mean, in: scores}"]


def ranges(tmp_path, ops, metrics="loss", *, evaluating=False):
    """(greatest value, op) of each input; the least value is 0."""
    listed = "\n".join(f"  - {op}" for op in ops)
    text = SPEC.replace("OPS", listed).replace("METRICS", metrics)
    model = limit_inputs(load_text(text, "model.yaml", tmp_path))
    result = (model.eval if evaluating else model.train).ranges
    assert all(each.low == 0 for each in result.values())
    return {name: (each.high, each.op) for name, each in result.items()}


def embedded(ids, rows, name="table"):
    """An embedding of these ids, and a mean of it for the loss."""
    return [
        f"{{name: {name}, op: embedding, in: {ids}, size: [{rows}, 3]}}",
        f"{{name: {name}_mean, op: reduce_mean, in: {name}}}",
    ]


def summed(*names):
    ops, total = [], "scores_mean"
    ops.append("{name: scores_mean, op: reduce_mean, in: scores}")
    for name in names:
        ops.append(f"{{name: {name}_sum, op: add, in: [{total}, {name}_mean]}}")
        total = f"{name}_sum"
    return [*ops, f"{{name: loss, op: scale, in: {total}, factor: 1.0}}"]


def padded(rows, padding, name):
    first, second = embedded("ids", rows, name)
    return [first.replace("}", f", padding: {padding}}}"), second]


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        (padded(7, -1, "a"), (6, -1, "a")),
        (padded(7, 7, "a"), (6, 7, "a")),
        (padded(7, 6, "a"), (6, None, "a")),
        ([*padded(7, -1, "a"), *padded(5, -1, "b")], (4, -1, "b")),
        ([*padded(5, -1, "a"), *padded(7, -2, "b")], (4, None, "a")),
        ([*padded(7, -1, "a"), *embedded("ids", 7, "b")], (6, None, "b")),
        ([*padded(5, 6, "a"), *embedded("ids", 7, "b")], (4, 6, "a")),
        ([*padded(5, 7, "a"), *embedded("ids", 7, "b")], (4, None, "a")),
    ],
)
def test_padding_is_valid_if_all_ops_allow_it(tmp_path, ops, expected):
    loss = summed("a", "b") if len(ops) > 2 else summed("a")
    listed = "\n".join(f"  - {op}" for op in [*ops, *loss])
    text = SPEC.replace("OPS", listed).replace("METRICS", "loss")
    model = limit_inputs(load_text(text, "model.yaml", tmp_path))
    (limits,) = model.train.ranges.values()
    assert (limits.high, limits.padding, limits.op) == expected


def test_labels_of_a_loss_are_limited_to_its_classes(tmp_path):
    assert ranges(tmp_path, LOSS) == {"label": (9, "loss")}


@pytest.mark.parametrize("kind", ["nce", "sampled_softmax"])
def test_labels_of_a_sampled_loss_are_limited_to_its_classes(tmp_path, kind):
    op = f"{{name: loss, op: {kind}, in: [scores, label], classes: 50, num_sampled: 4}}"
    assert ranges(tmp_path, [op]) == {"label": (49, "loss")}


def test_ids_are_limited_to_the_rows_of_the_smallest_table(tmp_path):
    ops = [*embedded("ids", 7, "a"), *embedded("ids", 5, "b"), *embedded("ids", 6, "c")]
    assert ranges(tmp_path, [*ops, *summed("a", "b", "c")]) == {"ids": (4, "b")}


@pytest.mark.parametrize(
    "ops",
    [
        ["{name: same, op: reshape, in: ids, shape: [batch, 1, 2]}"],
        ["{name: same, op: transpose, in: ids, perm: [1, 0]}"],
        ["{name: wide, op: cast, in: small, dtype: int32}"],
        [
            "{name: both, op: expand_dims, in: label, axis: 1}",
            "{name: same, op: concat, in: [ids, both], axis: 1}",
        ],
    ],
)
def test_ranges_pass_through_ops_that_keep_all_values(tmp_path, ops):
    ids = "wide" if "wide" in ops[0] else "same"
    result = ranges(tmp_path, [*ops, *embedded(ids, 5), *summed("table")])
    expected = {"small"} if ids == "wide" else {"ids"}
    expected |= {"label"} if len(ops) == 2 else set()
    assert result == dict.fromkeys(expected, (4, "table"))


@pytest.mark.parametrize(
    "ops",
    [
        ["{name: some, op: slice, in: ids, axis: 1, stop: 1}"],
        [
            "{name: tiny, op: cast, in: ids, dtype: int8}",
            "{name: some, op: cast, in: tiny, dtype: int32}",
        ],
        ["{name: some, op: cast, in: x, dtype: int32}"],
    ],
    ids=["a part", "other values", "other numbers"],
)
def test_ranges_do_not_pass_through_slices_and_conversions(tmp_path, ops):
    assert ranges(tmp_path, [*ops, *embedded("some", 5), *summed("table")]) == {}


def test_ops_that_accept_any_index_set_no_range(tmp_path):
    hot = [
        "{name: hot, op: one_hot, in: label, classes: 3}",
        "{name: hot_mean, op: reduce_mean, in: hot}",
    ]
    right = "{name: right, op: accuracy, in: [scores, label]}"
    assert ranges(tmp_path, [*hot, right, *summed("hot")], "right") == {}


def test_step_and_evaluation_have_the_ranges_of_their_own_ops(tmp_path):
    """An evaluation with only the accuracy accepts labels outside of the classes."""
    ops = [*LOSS, "{name: right, op: accuracy, in: [scores, label]}"]
    assert ranges(tmp_path, ops, "right") == {"label": (9, "loss")}
    assert ranges(tmp_path, ops, "right", evaluating=True) == {}
    assert ranges(tmp_path, ops, "loss", evaluating=True) == {"label": (9, "loss")}


def test_an_unused_op_sets_no_range(tmp_path):
    assert ranges(tmp_path, [*PLAIN, *embedded("ids", 5)]) == {}
