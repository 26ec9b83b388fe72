"""Which outputs of a prediction score classes, by the losses of the graph."""

from pathlib import Path

import pytest

from placer.compiler.emit.classes import output_classes
from placer.compiler.frontend import load_text
from placer.plan.settings.data.classes import Classes

SPEC = """\
nodes: {{worker: {{}}}}
inputs: {{x: "float32[batch, 3]", kind: "int32[batch]", yes: "float32[batch, 1]"}}
data:
  train:
    source: "csv:train.csv"
    batch: 4
    columns: {{x: "x*", yes: [left]}}
    csv:
      vocabulary: {{kind: {{low: 0, small: 0, high: 2}}, left: [stays, leaves]}}
      unknown: {{kind: 1}}
graph:
  - {{name: scores, op: fc, in: x, size: 3}}
  - {{name: score, op: fc, in: x, size: 1}}
{ops}
  - {{name: total, op: reduce_mean, in: score}}
train: {{minimize: total, optimizer: {{op: sgd, learning_rate: 0.1, place: /node:worker}}}}
predict: {{outputs: {outputs}}}
"""

KINDS = ("low", "unknown", "high")
SOFTMAX = "{name: ce, op: softmax_cross_entropy, in: [scores, kind]}"
SIGMOID = "{name: bce, op: sigmoid_cross_entropy, in: [score, yes]}"


def classes_of(*ops: str, outputs: str, spec: str = SPEC) -> dict[str, Classes]:
    text = spec.format(ops="\n".join(f"  - {op}" for op in ops), outputs=outputs)
    model = load_text(text, "model.yaml", Path())
    return output_classes(model.graph, model.train)


def test_logits_and_their_softmax_have_the_classes_of_the_label():
    got = classes_of(
        SOFTMAX,
        "{name: p, op: softmax, in: scores}",
        "{name: q, op: log_softmax, in: scores}",
        "{name: other, op: fc, in: x, size: 3}",
        "{name: odd, op: softmax, in: other}",
        "{name: mixed, op: softmax, in: scores, axis: 0}",
        outputs="[scores, p, q, other, odd, mixed, x]",
    )
    assert got == {
        "scores": Classes("logits", 3, KINDS),
        "p": Classes("probabilities", 3, KINDS),
        "q": Classes("logits", 3, KINDS),
    }


def test_one_logit_has_two_classes_in_any_shape_of_a_row():
    got = classes_of(
        SIGMOID,
        "{name: flat, op: reshape, in: score, shape: [batch]}",
        "{name: p, op: sigmoid, in: flat}",
        "{name: wide, op: cast, in: p, dtype: float16}",
        "{name: one, op: softmax, in: score}",
        outputs="[score, p, wide, one]",
    )
    words = ("stays", "leaves")
    assert got == {
        "score": Classes("logit", 2, words),
        "p": Classes("probability", 2, words),
        "wide": Classes("probability", 2, words),
    }


def test_a_loss_of_probabilities_has_classes_too():
    """`layers.cross_entropy` takes the logarithm of probabilities, which it clips."""
    got = classes_of(
        "{name: p, op: fc, in: x, size: 3, activation: softmax}",
        "{name: above, op: clip, in: p, min: 1.0e-30}",
        "{name: logarithm, op: log, in: above}",
        "{name: ce, op: softmax_cross_entropy, in: [logarithm, kind]}",
        outputs="[p]",
    )
    assert got == {"p": Classes("probabilities", 3, KINDS)}


def test_labels_without_words_are_numbers_if_they_are_whole():
    spec = SPEC[: SPEC.index("    csv:")] + SPEC[SPEC.index("graph:") :]
    got = classes_of(SOFTMAX, SIGMOID, outputs="[scores, score]", spec=spec)
    assert got == {"scores": Classes("logits", 3)}


def test_a_label_that_is_computed_names_no_classes():
    first = "{name: half, op: scale, in: yes, factor: 0.5}"
    second = "{name: bce, op: sigmoid_cross_entropy, in: [score, half]}"
    assert classes_of(first, second, outputs="[score]") == {}


@pytest.mark.parametrize(("label", "count"), [("kind", 1), ("other", 0)])
def test_labels_of_other_classes_leave_logits_without_names(label, count):
    spec = SPEC.replace('kind: "int32', 'other: "int32[batch]", kind: "int32', 1)
    second = f"{{name: again, op: softmax_cross_entropy, in: [scores, {label}]}}"
    got = classes_of(SOFTMAX, second, outputs="[scores]", spec=spec)
    assert len(got) == count
