"""The options of a `csv:` source, from the spec to the plan."""

import textwrap
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from placer import compile
from placer.compiler.frontend import json_schema, load_text
from placer.errors import SpecError
from placer.plan.plan import read_plan
from placer.plan.settings.data.cell_options import Cells, Csv
from placer.runtime.batches.opened_sources import TRAINING, open_rows
from placer.runtime.control.shared_rows import SharedRows

HEAD = """\
nodes: {worker: {count: 2}}
inputs: {x: "float32[batch, 2]", label: "int32[batch]"}
graph:
  - {name: logits, op: fc, in: x, size: 2}
  - {name: loss, op: softmax_cross_entropy, in: [logits, label]}
train:
  minimize: loss
  optimizer: {op: sgd, learning_rate: 0.1}
"""

TRAIN = """\
train:
  source: "csv:t.csv"
  batch: 8
  split: train
  columns: {x: [a, "b*"]}
  csv:
    header: [a, b1, c, label]
    delimiter: ";"
    comment: "#"
    vocabulary: {label: {no: 0, 1: 1, true: 2}}
    unknown: {label: 3}
    missing: {"*": 0.5}
"""


def load_data(folder, data):
    data = textwrap.indent(textwrap.dedent(data), "  ")
    return load_text(HEAD + "data:\n" + data, "model.yaml", folder)


def test_words_of_a_vocabulary_are_read_as_text(tmp_path):
    source = load_data(tmp_path, TRAIN).train
    assert source.columns == {"x": ["a", "b*"], "label": "label"}
    assert source.split == "train"
    assert source.csv == Csv(
        header=["a", "b1", "c", "label"],
        delimiter=";",
        comment="#",
        vocabulary={"label": {"no": 0, "1": 1, "true": 2}},
        unknown={"label": 3},
        missing={"*": 0.5},
    )


def test_a_file_needs_no_options(tmp_path):
    data = 'train: {source: "csv:t.csv", batch: 8, columns: {x: "x*"}}\n'
    assert load_data(tmp_path, data).train.csv is None


def test_eval_uses_columns_and_options_of_train_unless_it_has_its_own(tmp_path):
    same = load_data(tmp_path, TRAIN + 'eval: {source: "csv:u.csv", split: test}\n')
    assert same.eval is not None
    assert same.eval.csv == same.train.csv
    assert same.eval.columns == same.train.columns
    own = load_data(
        tmp_path,
        TRAIN
        + 'eval: {source: "csv:u.csv", csv: {delimiter: "|"}, columns: {x: "*"}}\n',
    )
    assert own.eval is not None
    assert own.eval.csv == Csv(delimiter="|")
    assert own.eval.columns == {"x": "*", "label": "label"}
    other = load_data(tmp_path, TRAIN + 'eval: {source: "npz:rows.npz"}\n')
    assert other.eval is not None
    assert other.eval.csv is None
    assert other.eval.columns == {"x": "x", "label": "label"}


def test_a_parquet_source_has_options_for_words_and_missing_numbers(tmp_path):
    options = "{vocabulary: {label: [no, 1]}, missing: {x*: 0}}"
    data = f'train: {{source: "parquet:t.parquet", batch: 8, parquet: {options}}}\n'
    model = load_data(tmp_path, data + 'eval: {source: "parquet:u.parquet"}\n')
    assert model.train.parquet == Cells(
        vocabulary={"label": ["no", "1"]}, missing={"x*": 0.0}
    )
    assert model.eval is not None
    assert model.eval.parquet == model.train.parquet


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            '{source: "csv:t.csv", batch: 8, parquet: {}}',
            "'parquet' is for parquet: sources, but the source is csv:t.csv",
        ),
        (
            '{source: "parquet:t.parquet", batch: 8, csv: {}}',
            "'csv' is for csv: sources, but the source is parquet:t.parquet",
        ),
        (
            '{source: "parquet:t.parquet", batch: 8, parquet: {delimiter: ";"}}',
            "unknown key 'delimiter' in data.train.parquet",
        ),
    ],
)
def test_options_of_another_kind_of_source_are_refused(data, message, tmp_path):
    with pytest.raises(SpecError) as caught:
        load_data(tmp_path, f"train: {data}\n")
    assert caught.value.message == message


def test_an_error_of_train_is_not_repeated_for_eval(tmp_path):
    data = TRAIN.replace("a, b1", "a, d1") + 'eval: {source: "csv:u.csv"}\n'
    with pytest.raises(SpecError) as caught:
        load_data(tmp_path, data)
    assert caught.value.message == "csv:t.csv has no column 'b*' for input 'x'"


def test_the_plan_has_the_options_and_the_run_uses_them(tmp_path):
    rows = "".join(f"{i};{i % 3};low;{'no' if i % 2 else 1}\n" for i in range(40))
    (tmp_path / "t.csv").write_text("# forty rows\n" + rows, encoding="utf-8")
    model = load_data(tmp_path, TRAIN)
    compile(model, tmp_path / "build")
    plan = read_plan(tmp_path / "build")
    assert plan.train.csv == model.train.csv
    assert plan.train.columns == model.train.columns
    execution = SimpleNamespace(
        plan=plan,
        me=plan.nodes[0],
        folder=tmp_path / "build",
        report_rows=print,
        shared_rows=SharedRows(),
        keeps_digests=False,
    )
    rows = open_rows(execution, plan.train, TRAINING)
    assert rows.rows == 32
    read = rows.take(np.arange(32))
    np.testing.assert_array_equal(read["x"][:, 1], read["x"][:, 0] % 3)
    np.testing.assert_array_equal(read["label"], 1 - read["x"][:, 0] % 2)


def test_the_json_schema_has_the_options_of_csv():
    schema = json_schema()["$defs"]["Csv"]
    assert set(schema["properties"]) == set(Csv.__struct_fields__)
    assert schema["additionalProperties"] is False


leaves = (
    st.sampled_from(["a", "b*", "[", "label", "x", ";", "\t", '"', "low", "csv:t.csv"])
    | st.integers()
    | st.floats()
    | st.booleans()
    | st.none()
    | st.text(max_size=3)
)
keys = st.sampled_from(["header", "delimiter", "comment", "vocabulary", "unknown"])
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(keys | leaves.map(str), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    tree=trees, part=st.sampled_from(["csv", "columns", "x", *Csv.__struct_fields__])
)
def test_any_value_of_an_option_is_accepted_or_rejected(tree, part, tmp_path_factory):
    data = yaml.safe_load(TRAIN)
    within = {
        "csv": data["train"],
        "columns": data["train"],
        "x": data["train"]["columns"],
    }
    within.get(part, data["train"]["csv"])[part] = tree
    text = yaml.safe_dump(data, allow_unicode=True)
    result: object
    try:
        result = load_data(tmp_path_factory.getbasetemp(), text)
    except SpecError as error:
        result = error
    assert str(result)
