"""The text of a first spec, with comments that explain it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path
from shlex import quote

from placer.front.yaml_text import one_line
from placer.report.numbers import format_count, plural
from placer.starter.draft import Draft
from placer.starter.inputs import NUMBERS, make_inputs, name_columns
from placer.starter.label import Classes, Quantity
from placer.starter.model_text import OWN_NAMES, model_lines
from placer.starter.text import comment, comment_text, flow_list


def write_spec(draft: Draft, out: Path) -> str:
    """Return the text of a spec for a table. `out` is the file of the spec, to whose
    folder the path of the table is relative."""
    return "\n".join(_Writer(draft, out).lines()) + "\n"


class _Writer:
    """Writes one spec."""

    def __init__(self, draft: Draft, out: Path) -> None:
        self.draft, self.out = draft, out
        columns = [
            draft.label.name,
            *(each.name for each in draft.numbers),
            *(each.name for each in draft.dates),
            *(each.name for each in draft.words),
            *(each.name for each in draft.ids),
        ]
        names = name_columns(columns, [*draft.table.columns], OWN_NAMES)
        self.label = names[draft.label.name]
        self.inputs = make_inputs(
            draft,
            names,
            is_whole=draft.table.is_whole,
            has_few_rows=draft.has_few_rows,
        )

        self.features = {each.name for each in self.inputs.features}

    def lines(self) -> Iterator[str]:
        yield from self._head()
        yield ""
        yield from self._nodes()
        yield ""
        yield from self._inputs()
        yield ""
        yield from self._data()
        yield ""
        yield from model_lines(self.draft, self.inputs, self.label)

    def _head(self) -> Iterator[str]:
        draft, table = self.draft, self.draft.table
        count = format_count(table.rows)
        how = "" if table.is_whole else "about "
        yield from comment(
            f"Predict the column {one_line(draft.label.name)} of {one_line(table.path.name)}:"
            f" {how}{count} rows, {plural(len(table.columns), 'column')}. Written by"
            " `placer init`; change it as you like."
        )
        yield "#"
        spec = comment_text(quote(str(self.out)))
        yield f"#     placer train {spec}"
        if not table.is_whole:
            yield "#"
            yield from comment(
                f"Only the first {format_count(table.read)} rows were read to write this"
                " spec. If a later row has another class, or a word in a column of"
                " numbers, the run ends with its line and what to write."
            )
        if not table.has_header:
            yield "#"
            yield from comment(
                "The first row of the file has numbers, so the columns have no names:"
                " `header` below gives them some. Write better ones there, and change"
                " them below it. If the first row is the header, delete `header`."
            )
        if draft.left_out:
            yield "#"
            yield "# Columns that are left out:"
            for each in draft.left_out:
                name = one_line(each.name, flow=True)
                yield from comment(f"{name}: {each.why}", "#   ", "#     ")

    def _nodes(self) -> Iterator[str]:
        yield from comment(
            "Two processes of this machine compute, each with half of the rows of a"
            " batch, and a parameter server (ps) keeps and updates the parameters. With"
            " other counts, the result is the same; only speed and memory change."
        )
        yield "nodes:"
        yield "  worker: {count: 2}"
        yield "  ps: {count: 1}"

    def _inputs(self) -> Iterator[str]:
        inputs = self.inputs
        yield from comment(
            "What a source provides for each row. The first dimension is the batch."
        )
        yield "inputs:"
        if inputs.numbers:
            yield f"  {NUMBERS}: float32[batch, {len(inputs.numbers)}]"
        for each in inputs.embedded:
            dtype = "int64" if each.rows is None else "int32"
            yield f"  {each.name}: {dtype}[batch]"
        dtype = "float32" if isinstance(self.draft.label, Quantity) else "int32"
        yield f"  {self.label}: {dtype}[batch]"

    def _data(self) -> Iterator[str]:
        draft, table = self.draft, self.draft.table
        path = os.path.relpath(table.path.resolve(), self.out.parent.resolve())
        source = one_line(f"{table.kind}:{Path(path).as_posix()}")
        yield from comment(
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
        yield from self._features()
        yield from self._columns()
        yield from self._options()
        yield f"  eval: {{source: {one_line(f'{table.kind}:{Path(path).as_posix()}', flow=True)}, split: test}}"

    def _features(self) -> Iterator[str]:
        """Yield the key `features`: what is computed from columns."""
        features = self.inputs.features
        if not features:
            return
        yield from comment(
            "Features are computed from columns. `standardize` gives numbers mean 0 and"
            " variance 1: with very different scales, training is slow.",
            "    # ",
        )
        kinds = {feature.kind for feature in features}
        for kind, text in _FEATURE_COMMENTS.items():
            if kind in kinds:
                yield from comment(text, "    # ")
        yield "    features:"
        for feature in features:
            yield from feature.lines(6)

    def _columns(self) -> Iterator[str]:
        """Yield the key `columns`: an input without an entry reads that of its name."""
        feeds = {each.name: each.source for each in self.inputs.embedded}
        feeds[self.label] = self.draft.label.name
        renamed = {name: source for name, source in feeds.items() if name != source}
        if not renamed and not self.inputs.numbers:
            return
        yield "    columns:  # an input that is not listed reads the column of its name"
        if self.inputs.numbers:
            yield from flow_list(NUMBERS, self.inputs.numbers, 6)
        for name, source in renamed.items():
            yield f"      {name}: {one_line(self._key(source))}"

    def _options(self) -> Iterator[str]:
        """Yield the key `csv` or `parquet`: how cells become numbers."""
        draft, form, inputs = self.draft, self.draft.table.form, self.inputs
        words = {each.name: each.words for each in draft.words}
        unknown = {each.name: len(each.words) for each in draft.words}
        if isinstance(draft.label, Classes) and not draft.label.is_numbered:
            words[draft.label.name] = draft.label.words
        default = form.delimiter == "," and form.comment is None and form.header is None
        if default and not words and not inputs.filled and not inputs.markers:
            return
        yield f"    {draft.table.kind}:"
        if form.delimiter != ",":
            yield f"      delimiter: {_quoted(form.delimiter)}"
        if form.comment is not None:
            yield f"      comment: {_quoted(form.comment)}"
        if form.header is not None:
            yield from flow_list("header", form.header, 6)
        if inputs.markers:
            yield from comment(
                "Words in columns of numbers that count as a missing number, as NA, n/a, -"
                " and other usual ones do.",
                "      # ",
            )
            yield "      missing_values:"
            for name, column in inputs.markers.items():
                yield from comment(f"{column.first_marker}.", "        # ")
                yield from flow_list(self._key(name), column.markers, 8)
        if inputs.filled:
            yield from comment(
                "The number to use for an empty cell: the median of its column.",
                "      # ",
            )
            yield "      missing:"
            for name, number in inputs.filled.items():
                yield f"        {one_line(self._key(name))}: {one_line(number)}"
        if not words:
            return
        yield from comment(
            "The number of a word is its position in the list, from 0.", "      # "
        )
        yield "      vocabulary:"
        for name, listed in words.items():
            yield from flow_list(self._key(name), listed, 8)
        if unknown:
            yield from comment(
                "The number of every other cell: a missing, a rare or a new word.",
                "      # ",
            )
            yield "      unknown:"
            for name, number in unknown.items():
                yield f"        {one_line(self._key(name))}: {number}"

    def _key(self, column: str) -> str:
        """Return a column's name as a key that no other column matches."""
        others = {*self.draft.table.columns, *self.features} - {column}
        return escape(column) if any(fnmatchcase(n, column) for n in others) else column


_FEATURE_COMMENTS = {
    "log1p": "`log1p`, ln(1 + x), is for numbers of which a few are very large.",
    "buckets": "`buckets` are ranges, numbered from 0; a missing number has one of its own.",
    "days": "`days` are those since 1970-01-01.",
    "hash": "`hash` makes a number below `bins` of an id; a few ids share one.",
}


def _quoted(text: str) -> str:
    return {"\t": '"\\t"'}.get(text, f'"{text}"')
