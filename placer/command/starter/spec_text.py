"""Writes the text of a first spec by filling its template."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from glob import escape
from math import floor, log10
from pathlib import Path
from shlex import quote

from placer.command.starter.column import Ids, Words
from placer.command.starter.draft import Draft
from placer.command.starter.inputs import (
    NUMBERS,
    Inputs,
    make_inputs,
    name_columns,
    rounded,
)
from placer.command.starter.label import Classes, Label, Quantity
from placer.command.starter.template import OWN_NAMES, TEMPLATE
from placer.command.starter.text import comment, comment_text, flow_list, render
from placer.compiler.frontend.python.yaml_text import WIDTH, one_line
from placer.report.numbers import format_count, plural

Values = dict[str, object]
"""The values of the template, by name."""


def write_spec(draft: Draft, out: Path) -> str:
    """Return the text of a spec for a table. The path of the table is written relative to
    the folder of `out`, the file of the spec."""
    used = (draft.label, *draft.numbers, *draft.dates, *draft.words, *draft.ids)
    names = name_columns(
        [each.name for each in used], [*draft.table.columns], OWN_NAMES
    )
    inputs = make_inputs(
        draft, names, is_whole=draft.table.is_whole, has_few_rows=draft.has_few_rows
    )
    label = names[draft.label.name]
    keys = _keys(*draft.table.columns, *(each.name for each in inputs.features))
    values = _table(draft, out) | _columns(draft, inputs, label, keys)
    values |= _cells(draft, inputs, keys) | _layers(inputs) | _label(draft.label)
    values |= {"batch": draft.batch, "epochs": draft.epochs, **draft.size}
    return render(TEMPLATE, values | {"label": label})


def _keys(*names: str) -> dict[str, str]:
    """Return the YAML key for each name of a column or feature. A key is a glob, so a name that
    would match another name is escaped."""

    def key(name: str) -> str:
        is_pattern = escape(name) != name
        others = (other for other in names if other != name)
        matches = is_pattern and any(fnmatchcase(other, name) for other in others)
        return escape(name) if matches else name

    return {name: key(name) for name in names}


def _table(draft: Draft, out: Path) -> Values:
    """Return the template values for the file and the first comment."""
    table, left_out = draft.table, []
    for each in draft.left_out:
        name = one_line(each.name, flow=True)
        left_out += comment(f"{name}: {each.why}", "#   ", "#     ")
    path = os.path.relpath(table.path.resolve(), out.parent.resolve())
    source = f"{table.kind}:{Path(path).as_posix()}"
    return {
        "label_column": one_line(draft.label.name),
        "file": one_line(table.path.name),
        "rows": f"{'' if table.is_whole else 'about '}{format_count(table.rows)}",
        "column_count": plural(len(table.columns), "column"),
        "spec": comment_text(quote(str(out))),
        "is_part": not table.is_whole,
        "read": format_count(table.read),
        "has_no_header": not table.has_header,
        "left_out": left_out,
        "source": one_line(source),
        "source_in_braces": one_line(source, flow=True),
    }


def _columns(
    draft: Draft, inputs: Inputs, label: str, keys: Mapping[str, str]
) -> Values:
    """Return the template values for inputs, features and input columns."""
    types = {each.name: "int32[batch]" for each in inputs.embedded}
    sparse = [each.name for each in inputs.embedded if each.rows is None]
    types |= dict.fromkeys(sparse, "int64[batch]")
    is_quantity = isinstance(draft.label, Quantity)
    types[label] = "float32[batch]" if is_quantity else "int32[batch]"
    if inputs.numbers:
        types = {NUMBERS: f"float32[batch, {len(inputs.numbers)}]", **types}
    columns = [*flow_list(NUMBERS, inputs.numbers, 6)] if inputs.numbers else []
    sources = {each.name: each.source for each in inputs.embedded}
    for name, source in (sources | {label: draft.label.name}).items():
        if name != source:
            columns.append(f"{name}: {one_line(keys[source])}")
    kinds = {feature.kind for feature in inputs.features}
    return {
        "inputs": [f"{name}: {type_}" for name, type_ in types.items()],
        "is_dense": not sparse,
        "sparse": [line for name in sparse for line in _sparse_optimizer(name)],
        "columns": columns,
        "features": [line for each in inputs.features for line in each.lines(6)],
        **{f"has_{k}": k in kinds for k in ("log1p", "buckets", "days", "hash")},
    }


def _sparse_optimizer(name: str) -> tuple[str, ...]:
    rule = "- op: adagrad", f"  match: {name}_vector.table", "  learning_rate: 0.05"
    return *rule, "  place: /node:ps/cpu"


def _cells(draft: Draft, inputs: Inputs, keys: Mapping[str, str]) -> Values:
    """Return the template values of the key `csv` or `parquet`, which converts cells."""
    form, label = draft.table.form, draft.label
    written: list[str] = []
    markers: list[str] = []
    vocabulary: list[str] = []
    if form.delimiter != ",":
        written.append('delimiter: "{}"'.format(form.delimiter.replace("\t", "\\t")))
    if form.comment is not None:
        written.append(f'comment: "{form.comment}"')
    if form.header is not None:
        written += flow_list("header", form.header, 6)
    for name, column in inputs.markers.items():
        markers += comment(f"{column.first_marker}.", indent=8)
        markers += flow_list(keys[name], column.markers, 8)
    words = {each.name: each.words for each in draft.words}
    unknown = {name: len(listed) for name, listed in words.items()}
    if isinstance(label, Classes) and not label.is_numbered:
        words[label.name] = label.words
    for name, listed in words.items():
        vocabulary += flow_list(keys[name], listed, 8)
    filled = {name: one_line(number) for name, number in inputs.filled.items()}
    return {
        "kind": draft.table.kind,
        "has_options": written or markers or filled or words,
        "form": written,
        "markers": markers,
        "filled": [f"{one_line(keys[n])}: {number}" for n, number in filled.items()],
        "vocabulary": vocabulary,
        "unknown": [f"{one_line(keys[n])}: {number}" for n, number in unknown.items()],
    }


def _layers(inputs: Inputs) -> Values:
    """Return the template values for the embeddings and the op that joins the inputs."""
    parts = ["clipped"] if inputs.numbers else []
    parts += [f"{each.name}_vector" for each in inputs.embedded]
    concat = []
    if len(parts) > 1:
        joined = f"- {{name: features, op: concat, in: [{', '.join(parts)}], axis: 1}}"
        concat = [joined]
        if len(joined) > WIDTH - 6:
            listed = ["op: concat", *flow_list("in", parts, 8), "axis: 1"]
            concat = ["- name: features", *(f"  {line}" for line in listed)]
    return {
        "has_numbers": inputs.numbers,
        "has_both": inputs.numbers and inputs.embedded,
        "embeddings": [*_embedding_lines(inputs)],
        "concat": concat,
        "first": "features" if concat else parts[0],
    }


def _embedding_lines(inputs: Inputs) -> Iterator[str]:
    for each in inputs.embedded:
        if isinstance(each.column, Words) and each.column.is_codes:
            yield from comment(
                f"{each.name} has {len(each.column.words)} different whole "
                "numbers, which are read as codes. If they are quantities, add "
                f"the column to `{NUMBERS}` instead.",
                indent=6,
            )
        column = each.column
        if isinstance(column, Ids) and not column.are_numbers and not column.is_sparse:
            yield from comment(
                f"{each.name} has {format_count(column.distinct)} different texts, which "
                f"are hashed. To give each text its own row of the table, delete the "
                f"feature {each.source} and its line in `columns`, list the texts in "
                "`vocabulary`, and set a number in `unknown`.",
                indent=6,
            )
        size = f"size: [{each.rows}, {each.size}]"
        if each.rows is None:
            size = f"dim: {each.size}, sparse: true"
        yield f"- {{name: {each.name}_vector, op: embedding, in: {each.name}, {size}}}"


def _label(label: Label) -> Values:
    """Return the template values for the last layer and the metrics."""
    count = len(label.words) if isinstance(label, Classes) else 0
    values: Values = {"classes": count, "is_quantity": count == 0}
    values |= {"has_two_classes": count == 2, "has_more_classes": count > 2}
    if isinstance(label, Quantity):
        deviation = rounded(label.deviation)
        mean = round(label.mean, 4 - floor(log10(deviation)))
        return values | {
            "mean": f"{label.mean:g}",
            "deviation": f"{label.deviation:g}",
            # Not rounded, so that `prediction` is the exact inverse of `scaled_label`.
            "to_scaled": f"factor: {one_line(1 / deviation)},"
            f" bias: {one_line(-mean / deviation)}",
            "from_scaled": f"factor: {one_line(deviation)}, bias: {one_line(mean)}",
            "metrics": "loss, rmse",
            "output": "prediction",
        }
    most = max(label.counts)
    return values | {
        "class0": one_line(label.words[0]),
        "class1": one_line(label.words[1]),
        "frequent": one_line(label.words[label.counts.index(most)]),
        "share": f"{most / sum(label.counts):.3f}",
        "metrics": "loss, accuracy, auc" if count == 2 else "loss, accuracy",
        "output": "probability",
    }
