"""Specs with errors, and their complete messages.

A file of `invalid/` contains a spec, a line `---- expected`, and the message.
"""

import shlex
from pathlib import Path

import pytest

from placer.compiler.frontend import load, load_text, op_names
from placer.compiler.frontend.entries.op_kinds import op_kinds
from placer.compiler.frontend.op_names import op_hint
from placer.compiler.frontend.yaml import events
from placer.errors import SpecError, SpecErrors
from placer.system.resources import find_file

CASES = sorted((Path(__file__).parent / "invalid").glob("*.txt"))


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_the_complete_message_of_an_invalid_spec(case, tmp_path):
    spec, expected = case.read_text(encoding="utf-8").split("---- expected\n")
    with pytest.raises(SpecError) as caught:
        load_text(spec, "model.yaml", tmp_path)
    assert str(caught.value) + "\n" == expected


def test_there_are_at_least_twenty_cases():
    assert len(CASES) >= 20


def test_independent_errors_are_reported_together_in_file_order(tmp_path):
    spec, _ = (
        (Path(__file__).parent / "invalid" / "several_errors.txt")
        .read_text(encoding="utf-8")
        .split("---- expected\n")
    )
    with pytest.raises(SpecErrors) as caught:
        load_text(spec, "model.yaml", tmp_path)
    lines = [error.span.line for error in caught.value.errors]
    assert len(lines) == 4
    assert lines == sorted(lines)


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("dense", "fc"),
        ("keras.layers.Dense", "fc"),
        ("nn.Linear", "fc"),
        ("Conv2D", "conv2d"),
        ("MaxPool2d", "max_pool2d"),
        ("LayerNorm", "layer_norm"),
        ("softmx", "softmax"),
    ],
)
def test_an_op_of_another_framework_is_named_as_here(name, op):
    assert op_hint(name, op_kinds()) == f"did you mean '{op}'?"


def test_other_names_of_ops_lead_to_ops():
    kinds = op_kinds()
    assert set(op_names._SYNONYMS.values()) <= kinds.keys()
    plain = {kind.replace("_", "") for kind in kinds}
    assert not plain & op_names._SYNONYMS.keys()


def test_errors_that_follow_from_another_are_not_reported(tmp_path):
    lines = ["- {name: h0, op: fx, in: x}"]
    lines += [f"- {{name: h{i}, op: relu, in: h{i - 1}}}" for i in range(1, 10)]
    lines += ["- {name: loss, op: reduce_mean, in: h9}"]
    with pytest.raises(SpecError, match="unknown op 'fx'") as caught:
        load_text(_spec(graph=lines), "model.yaml", tmp_path)
    assert not isinstance(caught.value, SpecErrors)


@pytest.mark.parametrize(
    ("train", "says"),
    [
        ("microbatches: x, schedule: gpipe", "'microbatches' must be"),
        (
            "gradient_accumulation: x, schedule: gpipe",
            "'gradient_accumulation' must be",
        ),
        (
            "gradient_accumulation: 1, microbatches: 2, schedule: gpipe",
            "are the same setting",
        ),
        ("metrics: 3, BEST", "'metrics' must be a list"),
        ("metrics: [loss, 3], BEST", "an item of 'metrics' must be text"),
        ("metrics: [], BEST", "'loss' is not in train.metrics"),
        ("minimize: [], BEST", "'minimize' must be"),
        (
            "bucket_cap_mb: 3.0, optimizer: [3, {RATE, place: '/node:worker'}]",
            r"optimizer\[0\] must be a mapping",
        ),
        ("optimizer: {place: 3, shard_state: true, RATE}", "'place' must be"),
        ("optimizer: {place: /node:w, all_reduce: ring, RATE}", "no node 'w' in this"),
    ],
)
def test_a_wrong_value_of_train_is_one_error(train, says, tmp_path):
    """Not one more error in each key that depends on it."""
    rate = "op: sgd, learning_rate: 0.1"
    best = "checkpoint: {best: {metric: loss, mode: min}}"
    train = train.replace("BEST", best).replace("RATE", rate)
    for key, value in {"minimize": "loss", "optimizer": f"{{{rate}}}"}.items():
        train += "" if f"{key}: " in train else f", {key}: {value}"
    text = _spec().rpartition("train:")[0] + f"train: {{{train}}}\n"
    text = text.replace("8}", "8}, eval: {source: 'npz:rows.npz'}")
    text = text.replace("{worker: {count: 1}", "{worker: {count: 2}, ps: {count: 1}")
    with pytest.raises(SpecError, match=says) as caught:
        load_text(text, "model.yaml", tmp_path)
    assert not isinstance(caught.value, SpecErrors)


def test_errors_over_the_limit_are_counted(tmp_path):
    lines = [f"- {{name: h{i}, op: relu, in: nothing}}" for i in range(70)]
    with pytest.raises(SpecErrors) as caught:
        load_text(_spec(graph=lines), "model.yaml", tmp_path)
    assert len(caught.value.errors) == 51
    assert str(caught.value).endswith("and 21 more errors")


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"wroker": 2}, "the spec has no node kind 'wroker'"),
        (
            {"worker": 0},
            "the number of nodes of kind 'worker' must be at least 1, not 0",
        ),
    ],
)
def test_wrong_node_counts_are_rejected(counts, message, tmp_path):
    with pytest.raises(SpecError, match=message):
        load_text(_spec(), "model.yaml", tmp_path, nodes=counts)


def test_the_hint_for_a_wrong_node_count_names_the_nearest_kind(tmp_path):
    with pytest.raises(SpecError) as caught:
        load_text(_spec(), "model.yaml", tmp_path, nodes={"wroker": 2})
    assert caught.value.hint == "did you mean 'worker'?"


def test_places_are_checked_against_overridden_counts(tmp_path):
    graph = ["- {name: h, op: fc, in: x, size: 1, place: '/node:worker:1'}"]
    graph += ["- {name: loss, op: reduce_mean, in: h}"]
    spec = _spec(graph=graph)
    assert load_text(spec, "model.yaml", tmp_path, nodes={"worker": 2})
    with pytest.raises(SpecError, match="no 'worker:1' in this cluster"):
        load_text(spec, "model.yaml", tmp_path, nodes={"worker": 1})


def test_a_missing_file(tmp_path):
    with pytest.raises(SpecError, match=r"cannot read .*none\.yaml: No such file"):
        load(tmp_path / "none.yaml")


@pytest.mark.parametrize("name", ["my rows.csv", "t.CSV.gz", "t.parquet", "t"])
def test_a_table_is_no_spec(name, tmp_path):
    (tmp_path / name).write_bytes(b"PAR1\xff")
    with pytest.raises(SpecError, match="is a table, not a spec") as caught:
        load(tmp_path / name)
    file = shlex.quote(str(tmp_path / name))
    assert caught.value.hint == f"write a spec for it: placer init {file}"


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("metrics:", "batch: 3\n  metrics:", "data.train: data.train.batch"),
        ("metrics:", "lr: 3\n  metrics:", "train.optimizer: train.optimizer.learning_rate"),
        ("train:\n  min", "outputs: [x]\ntrain:\n  min", "predict: predict.outputs"),
        ("metrics:", "seed: 3\n  metrics:", "the spec, not of a section"),
        ("shuffle:", "epochs: 3, shuffle:", "train: train.epochs"),
    ],
)  # fmt: skip
def test_a_key_in_the_wrong_section_is_named_with_the_right_one(
    old, new, where, tmp_path
):
    text = find_file("specs/digits.yaml").read_text()
    assert old in text
    with pytest.raises(SpecError) as caught:
        load_text(text.replace(old, new, 1), "m.yaml", tmp_path)
    assert f" is a key of {where}" in str(caught.value)


def test_a_file_that_is_not_utf_8(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"name: x\n# caf\xe9\n")
    with pytest.raises(SpecError, match="line 2 is not UTF-8"):
        load(path)


def test_a_file_that_is_too_big_is_rejected(tmp_path):
    path = tmp_path / "big.yaml"
    with path.open("wb") as file:
        file.truncate(5 << 20)
    with pytest.raises(SpecError, match="over 4 MB"):
        load(path)


def test_more_than_a_million_values(tmp_path, monkeypatch):
    assert events.MAX_NODES == 1_000_000  # which takes ten seconds to read
    monkeypatch.setattr(events, "MAX_NODES", 1000)
    text = "[" + "a," * 1001 + "]"
    with pytest.raises(SpecError, match="more than 1,000 values"):
        load_text(text, "model.yaml", tmp_path)


@pytest.mark.parametrize("opener", ["[", "{a: ", "- ", "? "])
def test_deep_nesting_is_rejected_without_a_crash(opener, tmp_path):
    of_libyaml = "',' or '}'|exceeded maximum nesting depth"
    of_placer = "nested deeper|a key must be a name"
    with pytest.raises(SpecError, match=f"{of_placer}|{of_libyaml}"):
        load_text(opener * 100_000, "model.yaml", tmp_path)


def _spec(
    graph=(
        "- {name: h, op: fc, in: x, size: 1}",
        "- {name: loss, op: reduce_mean, in: h}",
    ),
):
    """Return a small spec with this graph."""
    return (
        "nodes: {worker: {count: 1}}\n"
        "inputs: {x: 'float32[batch, 4]'}\n"
        "data: {train: {source: 'npz:rows.npz', batch: 8}}\n"
        "graph:\n" + "".join(f"  {line}\n" for line in graph) + "train:\n"
        "  minimize: loss\n"
        "  optimizer: {op: sgd, learning_rate: 0.1}\n"
    )
