"""The key `features` of a source, from the spec to the plan."""

import textwrap

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from placer import compile
from placer.compiler.frontend import json_schema, load_text
from placer.errors import SpecError
from placer.plan.plan import read_plan
from placer.plan.settings.data.features import Feature

HEAD = """\
nodes: {worker: {count: 1}}
inputs: {x: "float32[batch, 2]", ids: "int32[batch]", label: "int32[batch]"}
graph:
  - {name: e, op: embedding, in: ids, size: [10, 2]}
  - {name: h, op: add, in: [x, e]}
  - {name: logits, op: fc, in: h, size: 2}
  - {name: loss, op: softmax_cross_entropy, in: [logits, label]}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1}}
"""
TRAIN = """\
train:
  source: "csv:t.csv"
  batch: 8
  columns: {x: "*.log", ids: pair}
  features:
    "*.log": {log1p: [a, b]}
    word.key: {hash: word, field: item, seed: 3}
    b.bucket: {buckets: b, log: 2, to: 9}
    pair: {cross: [word.key, b.bucket], bins: 10}
"""
FEATURES = {
    "*.log": Feature(log1p=["a", "b"]),
    "word.key": Feature(hash="word", field="item", seed=3),
    "b.bucket": Feature(buckets="b", log=2, to=9),
    "pair": Feature(cross=["word.key", "b.bucket"], bins=10),
}


def load_data(folder, data, head=HEAD):
    return load_text(
        head + "data:\n" + textwrap.indent(data, "  "), "model.yaml", folder
    )


def test_the_plan_has_the_features(tmp_path):
    model = load_data(tmp_path, TRAIN)
    assert model.train.features == FEATURES
    compile(model, tmp_path / "build")
    plan = read_plan(tmp_path / "build")
    assert plan.train.features == FEATURES


def test_eval_uses_the_features_of_train_unless_it_has_its_own(tmp_path):
    same = load_data(tmp_path, TRAIN + 'eval: {source: "csv:u.csv"}\n').eval
    assert same.features == FEATURES
    assert same.columns["ids"] == "pair"
    own = TRAIN + 'eval: {source: "csv:u.csv", features: {pair: {buckets: a, boundaries: [1]}}}\n'  # fmt: skip
    assert load_data(tmp_path, own).eval.features == {
        "pair": Feature(buckets="a", boundaries=[1])
    }
    other = TRAIN + 'eval: {source: "npz:u.npz"}\n'
    assert load_data(tmp_path, other).eval.features is None


def test_features_of_train_have_to_fit_the_header_of_eval(tmp_path):
    data = TRAIN + 'eval: {source: "csv:u.csv", csv: {header: [a, b, label]}}\n'
    with pytest.raises(SpecError) as caught:
        load_data(tmp_path, data)
    assert caught.value.message == (
        "csv:u.csv has no column 'word' for feature 'word.key'"
    )


def test_a_header_tells_how_many_features_an_input_reads(tmp_path):
    data = TRAIN.replace("[a, b]", "[a]") + "  csv: {header: [a, b, word, label]}\n"
    with pytest.raises(SpecError) as caught:
        load_data(tmp_path, data)
    assert caught.value.message == (
        "input 'x' is float32[batch, 2] and needs 2 columns of csv:t.csv, not 1"
    )


KEYS = HEAD.replace(
    'label: "int32[batch]"}', 'label: "int32[batch]", k: "int64[batch]"}'
)


@pytest.mark.parametrize("wanted", ["word.key", "word.*", "[word.key]", "'*.key'"])
def test_an_input_with_keys_keeps_64_bits(wanted, tmp_path):
    data = TRAIN.replace("ids: pair", f"ids: pair, k: {wanted}")
    model = load_data(tmp_path, data, KEYS)
    assert str(model.inputs["k"]) == "int64[batch]"
    assert "k" not in model.narrowed_inputs


def test_an_input_with_bins_does_not_keep_64_bits(tmp_path):
    data = TRAIN.replace("ids: pair", "ids: pair, k: pair")
    model = load_data(tmp_path, data, KEYS)
    assert str(model.inputs["k"]) == "int32[batch]"
    assert model.narrowed_inputs == ("k",)


def test_a_float64_model_computes_with_keys(tmp_path):
    head = "precision: float64\n" + KEYS.replace("in: ids", "in: k")
    data = TRAIN.replace("ids: pair", "ids: pair, k: word.key")
    assert str(load_data(tmp_path, data, head).inputs["k"]) == "int64[batch]"


def test_keys_cannot_be_an_output(tmp_path):
    head = KEYS + "predict: {outputs: [k]}\n"
    data = TRAIN.replace("ids: pair", "ids: pair, k: word.key")
    with pytest.raises(SpecError) as caught:
        load_data(tmp_path, data, head)
    assert caught.value.message == (
        "op 'predict': 'k' is a 64-bit key; only an embedding with sparse: true accepts it"
    )


def test_the_json_schema_has_the_keys_of_features():
    schema = json_schema()["$defs"]["Feature"]
    assert set(schema["properties"]) == set(Feature.__struct_fields__)


leaves = (
    st.sampled_from(["a", "b", "word", "*", "*.x", "pair", "[", "text"])
    | st.integers()
    | st.floats()
    | st.booleans()
    | st.none()
    | st.text(max_size=3)
)
options = st.dictionaries(
    st.sampled_from([*Feature.__struct_fields__, "x"]),
    leaves | st.lists(leaves, max_size=3),
    max_size=4,
)
trees = st.dictionaries(leaves.map(str), options | leaves, max_size=4)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(tree=trees, header=st.booleans())
def test_any_features_are_accepted_or_rejected(tree, header, tmp_path_factory):
    data = yaml.safe_load(TRAIN)
    data["train"]["features"] = tree
    if header:
        data["train"]["csv"] = {"header": ["a", "b", "word", "label"]}
    text = yaml.safe_dump(data, allow_unicode=True)
    result: object
    try:
        result = load_data(tmp_path_factory.getbasetemp(), text)
    except SpecError as error:
        result = error
    assert str(result)
