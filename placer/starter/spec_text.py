"""The text of a first spec, with comments that explain it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from math import floor, log10
from pathlib import Path
from shlex import quote
from textwrap import wrap

from placer.front.yaml_text import WIDTH, one_line
from placer.report.numbers import format_count, plural
from placer.starter.column import Words
from placer.starter.draft import Classes, Draft, Quantity, name_inputs

_OWN_NAMES = {
    *(
        "numbers",
        "scaled",
        "clipped",
        "features",
        "h1",
        "h2",
        "out",
        "prediction",
        "scaled_label",
        "scaled_prediction",
    ),
    *("logit", "logits", "opposite", "both", "loss", "accuracy", "auc", "rmse"),
    "probability",
    *("minimize", "batch"),
}
"""The names of the spec's ops, which no input may have."""


def write_spec(draft: Draft, out: Path) -> str:
    """Return the text of a spec for a table. `out` is the file of the spec, to whose
    folder the path of the table is relative."""
    return "\n".join(_Writer(draft, out).lines()) + "\n"


def comment_text(text: str) -> str:
    """Return a text for one line of a comment, without characters that would end it."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text)


class _Writer:
    """Writes one spec."""

    def __init__(self, draft: Draft, out: Path) -> None:
        self.draft, self.out = draft, out
        self.names = name_inputs(draft, _OWN_NAMES)
        self.label = self.names[draft.label.name]

    def lines(self) -> Iterator[str]:
        yield from self._head()
        yield ""
        yield from self._nodes()
        yield ""
        yield from self._inputs()
        yield ""
        yield from self._data()
        yield ""
        yield from self._graph()
        yield ""
        yield from self._train()
        yield ""
        yield from self._predict()

    def _head(self) -> Iterator[str]:
        draft, table = self.draft, self.draft.table
        count = format_count(table.rows)
        how = "" if table.is_whole else "about "
        yield from _comment(
            f"Predict the column {one_line(draft.label.name)} of {one_line(table.path.name)}:"
            f" {how}{count} rows, {plural(len(table.columns), 'column')}. Written by"
            " `placer init`; change it as you like."
        )
        yield "#"
        spec = comment_text(quote(str(self.out)))
        yield f"#     placer train {spec}"
        if not table.is_whole:
            yield "#"
            yield from _comment(
                f"Only the first {format_count(table.read)} rows were read to write this"
                " spec. If a later row has another class, or a word in a column of"
                " numbers, the run ends with its line and what to write."
            )
        if not table.has_header:
            yield "#"
            yield from _comment(
                "The first row of the file has numbers, so the columns have no names:"
                " `header` below gives them some. Write better ones there, and change"
                " them below it. If the first row is the header, delete `header`."
            )
        if draft.left_out:
            yield "#"
            yield "# Columns that are left out:"
            for each in draft.left_out:
                name = one_line(each.name, flow=True)
                yield from _comment(f"{name}: {each.why}", "#   ", "#     ")

    def _nodes(self) -> Iterator[str]:
        yield from _comment(
            "Two processes of this machine compute, each with half of the rows of a"
            " batch, and a parameter server (ps) keeps and updates the parameters. With"
            " other counts, the result is the same; only speed and memory change."
        )
        yield "nodes:"
        yield "  worker: {count: 2}"
        yield "  ps: {count: 1}"

    def _inputs(self) -> Iterator[str]:
        yield from _comment(
            "What a source provides for each row. The first dimension is the batch."
        )
        yield "inputs:"
        if self.draft.numbers:
            yield f"  numbers: float32[batch, {len(self.draft.numbers)}]"
        for each in self.draft.words:
            yield f"  {self.names[each.name]}: int32[batch]"
        if isinstance(self.draft.label, Quantity):
            yield f"  {self.label}: float32[batch]"
        else:
            yield f"  {self.label}: int32[batch]"

    def _data(self) -> Iterator[str]:
        draft, table = self.draft, self.draft.table
        path = os.path.relpath(table.path.resolve(), self.out.parent.resolve())
        source = one_line(f"{table.kind}:{Path(path).as_posix()}")
        yield from _comment(
            "Rows are permuted once with a fixed seed: the first four fifths train, the"
            " last fifth is for evaluation after each epoch. To evaluate on another file,"
            " change the source of eval and leave out both splits."
        )
        yield "data:"
        yield "  train:"
        yield f"    source: {source}"
        yield "    split: train"
        yield f"    batch: {draft.batch}  # rows of a step, of both workers together"
        yield "    shuffle: true  # another order in each epoch"
        yield "    seed: 1"
        yield from self._columns()
        yield from self._options()
        yield f"  eval: {{source: {one_line(f'{table.kind}:{Path(path).as_posix()}', flow=True)}, split: test}}"

    def _columns(self) -> Iterator[str]:
        """Yield the key `columns`: an input without an entry reads that of its name."""
        draft = self.draft
        renamed = {
            name: column for column, name in self.names.items() if column != name
        }
        if not renamed and not draft.numbers:
            return
        yield "    columns:  # an input that is not listed reads the column of its name"
        if draft.numbers:
            names = [each.name for each in draft.numbers]
            yield from _flow_list("numbers", names, 6)
        for name, column in renamed.items():
            yield f"      {name}: {one_line(column)}"

    def _options(self) -> Iterator[str]:
        """Yield the key `csv` or `parquet`: how cells become numbers."""
        draft, form = self.draft, self.draft.table.form
        label = draft.label
        has_words = isinstance(label, Classes) and not label.is_numbered
        incomplete = [
            each for each in draft.numbers if each.missing or not draft.table.is_whole
        ]
        default = form.delimiter == "," and form.comment is None and form.header is None
        if default and not has_words and not draft.words and not incomplete:
            return
        yield f"    {draft.table.kind}:"
        if form.delimiter != ",":
            yield f"      delimiter: {_quoted(form.delimiter)}"
        if form.comment is not None:
            yield f"      comment: {_quoted(form.comment)}"
        if form.header is not None:
            yield from _flow_list("header", form.header, 6)
        if incomplete:
            yield from _comment(
                "The number to use for an empty cell: the median of its column.",
                "      # ",
            )
            yield "      missing:"
            for each in sorted(incomplete, key=lambda each: _is_glob(each.name)):
                yield f"        {one_line(each.name)}: {one_line(_short(each.median))}"
        if not has_words and not draft.words:
            return
        yield from _comment(
            "The number of a word is its position in the list, from 0.", "      # "
        )
        yield "      vocabulary:"
        words = {each.name: each.words for each in draft.words}
        if isinstance(label, Classes) and has_words:
            words[label.name] = label.words
        for name in sorted(words, key=_is_glob):
            yield from _flow_list(name, words[name], 8)
        if draft.words:
            yield from _comment(
                "The number of every other cell: a missing, a rare or a new word.",
                "      # ",
            )
            yield "      unknown:"
            for word in sorted(draft.words, key=lambda each: _is_glob(each.name)):
                yield f"        {one_line(word.name)}: {len(word.words)}"

    def _graph(self) -> Iterator[str]:
        draft, pad = self.draft, " " * 6
        yield "graph:"
        yield from _comment(
            "The place of the ops inside: the CPU of every worker. Each computes its rows.",
            "  # ",
        )
        yield "  - place: /node:worker/cpu"
        yield "    ops:"
        parts = []
        if draft.numbers:
            yield from _comment(
                "Columns of numbers have different scales, and training is slow if one is"
                " a thousand times larger than another. batch_norm gives each of them mean"
                " 0 and variance 1 over the batch; an evaluation uses averages over"
                f" batches, of which each step keeps {draft.momentum}: after an epoch little"
                " is left of their initial values.",
                f"{pad}# ",
            )
            yield (
                f"{pad}- {{name: scaled, op: batch_norm, in: numbers,"
                f" momentum: {draft.momentum}, epsilon: 1.0e-12}}"
            )
            yield from _comment(
                "A value far from all others counts as 10 standard deviations.",
                f"{pad}# ",
            )
            yield f"{pad}- {{name: clipped, op: clip, in: scaled, min: -10, max: 10}}"
            parts.append("clipped")
        if draft.words:
            if draft.numbers:
                yield ""
            yield from _comment(
                "An embedding is a table with a trained vector for each word, and one for"
                " `unknown`; size is [words, length of a vector].",
                f"{pad}# ",
            )
        for each in draft.words:
            name, rows = self.names[each.name], len(each.words) + 1
            if each.is_codes:
                yield from _comment(
                    f"{name} has {len(each.words)} different whole numbers, which are"
                    " read as codes. If they are quantities, add the column to `numbers`"
                    " instead.",
                    f"{pad}# ",
                )
            parts.append(f"{name}_vector")
            yield (
                f"{pad}- {{name: {name}_vector, op: embedding, in: {name}, size:"
                f" [{rows}, {_vector_size(each)}]}}"
            )
        yield ""
        size = 16 if draft.has_few_rows else 32
        features = parts[0]
        if len(parts) > 1:
            features = "features"
            joined = (
                f"- {{name: features, op: concat, in: [{', '.join(parts)}], axis: 1}}"
            )
            if len(pad + joined) <= WIDTH:
                yield pad + joined
            else:
                yield f"{pad}- name: features"
                yield f"{pad}  op: concat"
                yield from _flow_list("in", parts, 8)
                yield f"{pad}  axis: 1"
        yield (
            f"{pad}- {{name: h1, op: fc, in: {features}, size: {2 * size}, activation:"
            " relu}"
        )
        yield f"{pad}- {{name: h2, op: fc, in: h1, size: {size}, activation: relu}}"
        yield from (pad + line if line else "" for line in self._end())

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
        deviation = _rounded(label.deviation)
        mean = round(label.mean, 4 - floor(log10(deviation)))
        # Not rounded: `prediction` is the inverse of `scaled_label`.
        factor, bias = one_line(1 / deviation), one_line(-mean / deviation)
        yield "- {name: out, op: fc, in: h2, size: 1}"
        yield ""
        yield from _comment(
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
        yield from _comment(
            "The root mean squared error, in the unit of the file. A model that always"
            f" predicts the average has {label.deviation:g}.",
            indent=6,
        )
        yield (
            "- {name: rmse, op: root_mean_squared_error, in: [prediction,"
            f" {self.label}]}}"
        )

    def _two_classes(self, label: Classes) -> Iterator[str]:
        yield "- {name: out, op: fc, in: h2, size: 1}"
        yield ""
        yield from _comment(
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
        yield from _comment(
            "accuracy compares the logits of all classes; here that of the first class is"
            f" the negative. {_most_frequent(label)}",
            indent=6,
        )
        yield "- {name: opposite, op: negative, in: out}"
        yield "- {name: both, op: concat, in: [opposite, out], axis: 1}"
        yield f"- {{name: accuracy, op: accuracy, in: [both, {self.label}]}}"
        yield "- {name: probability, op: sigmoid, in: logit}"

    def _classes(self, label: Classes) -> Iterator[str]:
        yield f"- {{name: logits, op: fc, in: h2, size: {len(label.words)}}}"
        yield ""
        yield from _comment(
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

    def _train(self) -> Iterator[str]:
        label = self.draft.label
        metrics = "[loss, accuracy]"
        if isinstance(label, Quantity):
            metrics = "[loss, rmse]"
        elif len(label.words) == 2:
            metrics = "[loss, accuracy, auc]"
        yield "train:"
        yield "  minimize: loss"
        yield f"  epochs: {self.draft.epochs}  # passes over the training rows"
        yield f"  metrics: {metrics}"
        yield from _comment(
            "At this place, the server sums the gradients of the workers. At"
            " /node:worker/cpu, the workers would exchange gradients (all-reduce) instead.",
            "  # ",
        )
        if not self.draft.has_few_rows:
            yield "  optimizer: {op: adam, learning_rate: 0.005, place: /node:ps/cpu}"
            return
        yield from _comment(
            "The table has few rows: weight_decay keeps the weights small, so that the"
            " model does not learn the training rows by heart.",
            "  # ",
        )
        yield "  optimizer:"
        yield "    op: adamw"
        yield "    learning_rate: 0.005"
        yield "    weight_decay: 0.5"
        yield "    place: /node:ps/cpu"

    def _predict(self) -> Iterator[str]:
        is_number = isinstance(self.draft.label, Quantity)
        output = "prediction" if is_number else "probability"
        yield "# What `placer predict` and `placer export` compute; labels are not needed."
        yield f"predict: {{outputs: [{output}]}}"


def _most_frequent(label: Classes) -> str:
    share = max(label.counts) / sum(label.counts)
    word = one_line(label.words[label.counts.index(max(label.counts))])
    return f"A model that always predicts {word} has accuracy {share:.3f}."


def _comment(
    text: str, first: str = "# ", then: str | None = None, indent: int = 0
) -> Iterable[str]:
    """Return comment lines; `indent` blanks are added to them later."""
    return wrap(
        comment_text(text),
        WIDTH - indent,
        initial_indent=first,
        subsequent_indent=first if then is None else then,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _flow_list(key: str, items: Iterable[str], indent: int) -> Iterator[str]:
    """Yield a key with a list, in as many lines as it needs."""
    texts = [one_line(item, flow=True) for item in items]
    pad = " " * indent
    joined = f"{pad}{one_line(key)}: [{', '.join(texts)}]"
    if len(joined) <= WIDTH:
        yield joined
        return
    yield f"{pad}{one_line(key)}:"
    line = f"{pad}  ["
    for position, text in enumerate(texts):
        text += "]" if position == len(texts) - 1 else ","
        if len(line) + len(text) + 1 > WIDTH and not line.endswith("["):
            yield line.rstrip()
            line = f"{pad}   "
        line += text + " "
    yield line.rstrip()


def _vector_size(column: Words) -> int:
    return 4 if len(column.words) <= 10 else 8


def _quoted(text: str) -> str:
    return {"\t": '"\\t"'}.get(text, f'"{text}"')


def _number(value: float) -> str:
    return one_line(_rounded(value))


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _short(value: float) -> float | int:
    return int(value) if value == int(value) else value


def _is_glob(name: str) -> bool:
    """Return whether a column's name is also a pattern, whose entry comes last."""
    return any(character in name for character in "*?[")
