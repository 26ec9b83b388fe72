"""The part of a first spec about the model: its layers, and how it is trained."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor, log10

from placer.front.yaml_text import WIDTH, one_line
from placer.starter.column import Words
from placer.starter.draft import Draft
from placer.starter.inputs import NUMBERS, Inputs, rounded
from placer.starter.label import Classes, Quantity
from placer.starter.text import comment, flow_list

OWN_NAMES = {
    *(NUMBERS, "clipped", "features", "h1", "h2", "dropped1", "dropped2", "out"),
    *("prediction", "scaled_label", "scaled_prediction", "logit", "logits", "opposite"),
    *("both", "loss", "accuracy", "auc", "rmse", "probability", "minimize", "batch"),
}
"""The names of the spec's ops, which no input may have."""


def model_lines(draft: Draft, inputs: Inputs, label: str) -> Iterator[str]:
    """Yield the sections `graph`, `train` and `predict` of a spec; `label` is the input
    with the label."""
    writer = _ModelWriter(draft, inputs, label)
    yield from writer.graph()
    yield ""
    yield from writer.train()
    yield ""
    yield from writer.predict()


class _ModelWriter:
    """Writes the model of one spec."""

    def __init__(self, draft: Draft, inputs: Inputs, label: str) -> None:
        self.draft, self.inputs, self.label = draft, inputs, label

    def graph(self) -> Iterator[str]:
        pad = " " * 6
        yield "graph:"
        yield from comment(
            "The place of the ops inside: the CPU of every worker. Each computes its rows.",
            "  # ",
        )
        yield "  - place: /node:worker/cpu"
        yield "    ops:"
        yield from (pad + line if line else "" for line in self._layers())
        yield from (pad + line if line else "" for line in self._end())

    def _layers(self) -> Iterator[str]:
        """Yield the ops up to the last hidden layer."""
        parts = []
        if self.inputs.numbers:
            yield from comment(
                "A value far from all others counts as 10 standard deviations.",
                indent=6,
            )
            yield f"- {{name: clipped, op: clip, in: {NUMBERS}, min: -10, max: 10}}"
            parts.append("clipped")
        if self.inputs.embedded:
            if parts:
                yield ""
            yield from comment(
                "An embedding is a table with a trained vector for each number, such as"
                " that of a word; size is [numbers, length of a vector].",
                indent=6,
            )
        for each in self.inputs.embedded:
            if isinstance(each.column, Words) and each.column.is_codes:
                yield from comment(
                    f"{each.name} has {len(each.column.words)} different whole numbers,"
                    " which are read as codes. If they are quantities, add the column to"
                    f" `{NUMBERS}` instead.",
                    indent=6,
                )
            shape = f"size: [{each.rows}, {each.size}]"
            if each.rows is None:
                shape = f"dim: {each.size}, sparse: true"
            parts.append(f"{each.name}_vector")
            yield f"- {{name: {each.name}_vector, op: embedding, in: {each.name}, {shape}}}"
        yield ""
        features = parts[0]
        if len(parts) > 1:
            features = "features"
            joined = (
                f"- {{name: features, op: concat, in: [{', '.join(parts)}], axis: 1}}"
            )
            if len(joined) <= WIDTH - 6:
                yield joined
            else:
                yield "- name: features"
                yield "  op: concat"
                yield from flow_list("in", parts, 2)
                yield "  axis: 1"
        size = self.draft.width
        yield f"- {{name: h1, op: fc, in: {features}, size: {2 * size}, activation: relu}}"
        yield from comment(
            "In training, dropout leaves out some of these numbers, others in each step:"
            " so the model does not learn the rows by heart.",
            indent=6,
        )
        yield f"- {{name: dropped1, op: dropout, in: h1, rate: {self.draft.dropout}}}"
        yield f"- {{name: h2, op: fc, in: dropped1, size: {size}, activation: relu}}"
        yield f"- {{name: dropped2, op: dropout, in: h2, rate: {self.draft.dropout}}}"

    def _end(self) -> Iterator[str]:
        """Yield the ops from the last layer on."""
        label = self.draft.label
        if isinstance(label, Quantity):
            yield from self._regression(label)
        elif len(label.words) == 2:
            yield from self._two_classes(label)
        else:
            yield from self._classes(label)

    def _regression(self, label: Quantity) -> Iterator[str]:
        deviation = rounded(label.deviation)
        mean = round(label.mean, 4 - floor(log10(deviation)))
        # Not rounded: `prediction` is the inverse of `scaled_label`.
        factor, bias = one_line(1 / deviation), one_line(-mean / deviation)
        yield "- {name: out, op: fc, in: dropped2, size: 1}"
        yield ""
        yield from comment(
            f"{self.label} is {label.mean:g} on average, with a standard deviation of"
            f" {label.deviation:g}. The network predicts it as a number with mean 0 and"
            " variance 1, and `prediction` has the scale of the file again.",
            indent=6,
        )
        yield "- {name: scaled_prediction, op: reshape, in: out, shape: [batch]}"
        yield (
            f"- {{name: scaled_label, op: scale, in: {self.label}, factor:"
            f" {factor}, bias: {bias}}}"
        )
        yield (
            f"- {{name: prediction, op: scale, in:"
            f" scaled_prediction, factor: {one_line(deviation)}, bias: {one_line(mean)}}}"
        )
        yield "- name: loss"
        yield "  op: mean_squared_error"
        yield "  in: [scaled_prediction, scaled_label]"
        yield ""
        yield from comment(
            "The root mean squared error, in the unit of the file. A model that always"
            f" predicts the average has {label.deviation:g}.",
            indent=6,
        )
        yield (
            "- {name: rmse, op: root_mean_squared_error, in: [prediction,"
            f" {self.label}]}}"
        )

    def _two_classes(self, label: Classes) -> Iterator[str]:
        yield "- {name: out, op: fc, in: dropped2, size: 1}"
        yield ""
        yield from comment(
            f"The logit of {one_line(label.words[1])}: its sigmoid is the probability,"
            f" and above 0 the prediction is {one_line(label.words[1])}, not"
            f" {one_line(label.words[0])}. The loss is the log loss.",
            indent=6,
        )
        yield "- {name: logit, op: reshape, in: out, shape: [batch]}"
        yield (
            f"- {{name: loss, op: sigmoid_cross_entropy, in: [logit, {self.label}]}}"
        )
        yield f"- {{name: auc, op: auc, in: [logit, {self.label}], logits: true}}"
        yield ""
        yield from comment(
            "accuracy compares the logits of all classes; here that of the first class is"
            f" the negative. {_most_frequent(label)}",
            indent=6,
        )
        yield "- {name: opposite, op: negative, in: out}"
        yield "- {name: both, op: concat, in: [opposite, out], axis: 1}"
        yield f"- {{name: accuracy, op: accuracy, in: [both, {self.label}]}}"
        yield "- {name: probability, op: sigmoid, in: logit}"

    def _classes(self, label: Classes) -> Iterator[str]:
        yield f"- {{name: logits, op: fc, in: dropped2, size: {len(label.words)}}}"
        yield ""
        yield from comment(
            f"One logit for each of the {len(label.words)} classes; softmax makes"
            " probabilities of them, and the largest is the prediction."
            f" {_most_frequent(label)}",
            indent=6,
        )
        yield (
            f"- {{name: loss, op: softmax_cross_entropy, in: [logits, {self.label}]}}"
        )
        yield f"- {{name: accuracy, op: accuracy, in: [logits, {self.label}]}}"
        yield "- {name: probability, op: softmax, in: logits}"

    def train(self) -> Iterator[str]:
        draft, label = self.draft, self.draft.label
        metrics = "[loss, accuracy]"
        if isinstance(label, Quantity):
            metrics = "[loss, rmse]"
        elif len(label.words) == 2:
            metrics = "[loss, accuracy, auc]"
        yield "train:"
        yield "  minimize: loss"
        yield f"  metrics: {metrics}"
        yield from comment(
            f"At most {draft.epochs} passes over the training rows. The run ends before if"
            f" the loss of {draft.patience} evaluations in a row is not the best one. The"
            " parameters of the best evaluation are in the folder of the run, in"
            " checkpoints/best.",
            "  # ",
        )
        yield f"  epochs: {draft.epochs}"
        yield (
            f"  early_stopping: {{metric: loss, mode: min, patience: {draft.patience}}}"
        )
        yield "  checkpoint: {every: 10m, best: {metric: loss, mode: min}}"
        yield from comment(
            "At this place, the server sums the gradients of the workers. At"
            " /node:worker/cpu, the workers would exchange gradients (all-reduce) instead."
            " weight_decay keeps the weights small.",
            "  # ",
        )
        yield "  optimizer:"
        sparse = [e.name for e in self.inputs.embedded if e.rows is None]
        for name in sparse:
            yield "    - op: adagrad"
            yield f"      match: {name}_vector.table"
            yield "      learning_rate: 0.05"
            yield "      place: /node:ps/cpu"
        first, pad = ("    - ", "      ") if sparse else ("    ", "    ")
        yield f"{first}op: adamw"
        yield f"{pad}learning_rate: {draft.learning_rate}"
        yield f"{pad}weight_decay: {draft.weight_decay}"
        yield f"{pad}place: /node:ps/cpu"

    def predict(self) -> Iterator[str]:
        is_number = isinstance(self.draft.label, Quantity)
        output = "prediction" if is_number else "probability"
        yield "# What `placer predict` and `placer export` compute; labels are not needed."
        yield f"predict: {{outputs: [{output}]}}"


def _most_frequent(label: Classes) -> str:
    share = max(label.counts) / sum(label.counts)
    word = one_line(label.words[label.counts.index(max(label.counts))])
    return f"A model that always predicts {word} has accuracy {share:.3f}."
