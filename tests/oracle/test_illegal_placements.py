"""Illegal placements are refused with an error that shows the conflicting lines."""

from pathlib import Path

import pytest

from placer.compiler.driver import compile
from placer.errors import GraphError

HEAD = """\
nodes:
  worker: {count: 4, devices: {cpu: 1, gpu: 2}}
  heter: {count: 2}
  ps: {count: 2}
inputs: {x: "float32[batch, 3]", y: "float32[batch, 1]"}
data: {train: {source: "npz:rows.npz", batch: BATCH}}
graph:
"""
TAIL = """
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1OPTIMIZER}}
"""


def message(ops, tmp_path, batch=12, optimizer=""):
    """Return the error of the compiler for a graph, without the path of its folder."""
    head = HEAD.replace("BATCH", str(batch))
    lines = "".join(f"  - {{{op}}}\n" for op in ops)
    spec = tmp_path / "bad.yaml"
    spec.write_text(head + lines + TAIL.replace("OPTIMIZER", optimizer))
    with pytest.raises(GraphError) as caught:
        compile(spec, tmp_path / "build")
    assert not (tmp_path / "build").exists()
    return str(caught.value).replace(f"{Path(tmp_path)}/", "")


H = "name: h, op: fc, in: x, size: 1"
LOSS = "name: loss, op: mean_squared_error, in: [h, y]"


@pytest.mark.parametrize(
    ("batch", "near"),
    [(2, "batch: 4"), (9, "batch: 8 or batch: 12"), (14, "batch: 12 or batch: 16")],
)
def test_the_error_for_an_uneven_batch_names_the_nearest_sizes(batch, near, tmp_path):
    ops = [f'{H}, place: "/node:worker/cpu"', LOSS]
    assert message(ops, tmp_path, batch=batch) == (
        f"bad.yaml:5:10: a batch of {batch} rows cannot be split evenly over the 4"
        " nodes of /node:worker/cpu, as 'x' needs\n"
        '  5 | inputs: {x: "float32[batch, 3]", y: "float32[batch, 1]"}\n'
        "    |          ^\n"
        f"  hint: use {near}"
    )


def test_the_error_for_an_uneven_batch_of_an_evaluation_names_its_key(tmp_path):
    evaluation = '}, eval: {source: "npz:rows.npz", batch: 6'
    ops = [f'{H}, place: "/node:worker/cpu"', LOSS]
    metrics = "}, metrics: [loss], slicing: {min_block: 8"
    text = message(ops, tmp_path, batch=f"12{evaluation}", optimizer=metrics)
    assert "a batch of 6 rows of an evaluation cannot be split evenly over" in text
    assert "hint: use data.eval.batch: 4 or data.eval.batch: 8" in text


@pytest.mark.parametrize(
    ("batch", "near"),
    [(4, "batch: 8"), (12, "batch: 8 or batch: 16"), (20, "batch: 16 or batch: 24")],
)
def test_the_error_for_a_batch_uneven_over_devices_names_the_nearest_sizes(
    batch, near, tmp_path
):
    ops = [f'{H}, place: "/node:worker/gpu"', LOSS]
    assert message(ops, tmp_path, batch=batch) == (
        f"bad.yaml:8:12: a batch of {batch} rows cannot be split evenly over the 4"
        " nodes x 2 devices of /node:worker/gpu, as 'h' needs\n"
        '  8 |   - {name: h, op: fc, in: x, size: 1, place: "/node:worker/gpu"}\n'
        "    |            ^\n"
        f"  hint: use {near}"
    )


def test_the_error_for_a_batch_uneven_over_heter_nodes_names_the_workers(
    tmp_path,
):
    """Each heter node has all rows of two workers."""
    ops = [f'{H}, place: "/node:heter"', LOSS]
    assert message(ops, tmp_path, batch=14) == (
        "bad.yaml:5:10: a batch of 14 rows cannot be split evenly over the 4 workers of"
        " /node:heter/cpu, as 'x' needs\n"
        '  5 | inputs: {x: "float32[batch, 3]", y: "float32[batch, 1]"}\n'
        "    |          ^\n"
        "  hint: use batch: 12 or batch: 16"
    )


@pytest.mark.parametrize(
    ("place", "parts"),
    [("/node:worker/cpu", "8 threads"), ("/node:heter/cpu", "8 threads of workers")],
)
def test_the_error_for_a_batch_uneven_over_threads_names_them(place, parts, tmp_path):
    ops = [f'{H}, place: "{place}"', LOSS]
    threads = "}, threads: 2, slicing: {min_block: 8"
    assert message(ops, tmp_path, batch=12, optimizer=threads).startswith(
        "bad.yaml:5:10: a batch of 12 rows cannot be split evenly over the"
        f" {parts} of {place}, as 'x' needs\n"
    )


def test_a_loss_that_depends_on_no_parameter_is_refused(tmp_path):
    ops = [H, "name: loss, op: mean_squared_error, in: [y, y]"]
    assert message(ops, tmp_path).startswith(
        "bad.yaml:9:12: 'loss' depends on no trainable parameter, so minimizing it"
        " has no effect\n"
    )


def test_a_clip_of_all_and_a_clip_of_one_optimizer_are_refused(tmp_path):
    optimizer = ", clip: {global_norm: 1.0}}, clip: {global_norm: 2.0"
    assert message([H, LOSS], tmp_path, optimizer=optimizer).startswith(
        "bad.yaml:11:37: both train.clip and the clip of an optimizer are set\n"
    )


def test_the_rows_of_heter_nodes_are_split_over_their_devices_too(tmp_path):
    """Each node has the rows of two workers, and two devices: 12 rows fit, 14 do
    not."""
    spec = tmp_path / "good.yaml"
    head = HEAD.replace("BATCH", "12").replace(
        "heter: {count: 2}", "heter: {count: 2, devices: {cpu: 1, gpu: 2}}"
    )
    lines = f'  - {{{H}, place: "/node:heter/gpu"}}\n  - {{{LOSS}}}\n'
    tail = TAIL.replace("OPTIMIZER", "")
    spec.write_text(head + lines + tail)
    compile(spec, tmp_path / "good")
    spec.write_text(head.replace("batch: 12", "batch: 14") + lines + tail)
    with pytest.raises(GraphError, match="over the 4 workers of /node:heter/cpu"):
        compile(spec, tmp_path / "bad")


def test_an_uneven_batch_in_the_mask_of_dropout_is_reported_at_the_dropout(tmp_path):
    ops = [
        f'{H}, place: "/node:worker:0-1/cpu"',
        'name: d, op: dropout, in: h, rate: 0.5, place: "/node:worker/cpu"',
        'name: loss, op: mean_squared_error, in: [d, y], place: "/node:worker:0/cpu"',
    ]
    assert message(ops, tmp_path, batch=6).startswith(
        "bad.yaml:9:12: a batch of 6 rows cannot be split evenly over the 4 nodes of"
        " /node:worker/cpu, as 'd.dropped' needs\n"
    )
