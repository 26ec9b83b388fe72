"""Keys of a spec that would have no effect are errors."""

import pytest
from support.small_models import two_layers

from placer.errors import SpecError
from placer.spec import load_text

CSV = """\
nodes: {worker: {count: 1}}
inputs: {x: "float32[batch, 2]", y: "int32[batch]"}
data:
  train:
    source: csv:rows.csv
    batch: 4
    columns: {x: [a, b], y: label}
    KEYS
graph:
  - {name: z, op: fc, in: x, size: 2}
  - {name: loss, op: softmax_cross_entropy, in: [z, y]}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1}}
"""
WORDS = "vocabulary: {label: [no, yes]}"
ASYNC = "{op: sgd, learning_rate: 0.1, place: /node:ps/cpu, update: {async: ASYNC}}"


def load(text, tmp_path):
    return load_text(text, "model.yaml", tmp_path)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (f"csv: {{{WORDS}, missing: {{label: 0}}}}", "'missing' of 'label' has no"),
        (f"csv: {{{WORDS}, unknown: {{a: 0}}}}", "'unknown' of 'a' has no effect"),
        ("csv: {unknown: {'*': 0}}", "'unknown' of '*' has no effect"),
        ("csv: {missing: {'*': 0, a: 1}}", "'a' of 'missing' has no effect: '*'"),
        ("csv: {vocabulary: {l*: [no], label: [a]}}", "'label' of 'vocabulary' has no"),
        (
            f"csv: {{header: [a, b, label], {WORDS}, missing: {{l*: 0}}}}",
            "'missing' of 'l*' has no effect",
        ),
        ("seed: 3", "'seed' has no effect"),
        ("{shuffle: false, seed: 3}", "'seed' has no effect"),
    ],
)
def test_of_a_source(keys, message, tmp_path):
    text = CSV.replace("KEYS", keys.strip("{}") if "csv" not in keys else keys)
    text = text.replace("shuffle: false, seed", "shuffle: false\n    seed")
    with pytest.raises(SpecError) as caught:
        load(text, tmp_path)
    assert message in caught.value.message
    assert caught.value.span is not None


@pytest.mark.parametrize(
    "keys",
    [
        f"csv: {{{WORDS}, missing: {{'*': 0}}}}",
        "csv: {missing: {a: 1, '*': 0}}",
        f"csv: {{{WORDS}, unknown: {{label: 2}}}}",
        f"csv: {{{WORDS}, missing: {{label: 0}}}}\n"
        "    features: {h: {hash: label, bins: 2}}",
    ],
)
def test_entries_of_a_source_with_an_effect(keys, tmp_path):
    assert load(CSV.replace("KEYS", keys), tmp_path).train.csv is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": "  schedule: gpipe"}, "'schedule: gpipe' has no effect"),
        (
            {"optimizer": ASYNC.replace("ASYNC", "{merge: mean}", 1)},
            "'merge: mean' has no effect: max_merge is 1",
        ),
        (
            {"optimizer": ASYNC.replace("ASYNC", "{max_staleness: 0, queue: 3}", 1)},
            "max_staleness 0 is the mode sync, which has no queue",
        ),
    ],
)
def test_of_training(changes, message, tmp_path):
    changes = {k: v.replace("{async: ASYNC}", "") for k, v in changes.items()}
    with pytest.raises(SpecError) as caught:
        load(two_layers(**changes), tmp_path)
    assert message in str(caught.value)
    assert "model.yaml:" in str(caught.value)
