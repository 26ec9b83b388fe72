"""Reads the section `data`: the sources of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from placer.compiler.frontend.entries.context import Context
from placer.compiler.frontend.entries.module_imports import defined_names, modules_of
from placer.compiler.frontend.schema import DataSection
from placer.compiler.frontend.sections.cell_options import read_options
from placer.compiler.frontend.sections.features import check_dtype, read_features
from placer.compiler.frontend.sections.shuffle import read_shuffle
from placer.compiler.frontend.sections.stream import read_stream
from placer.compiler.frontend.yaml.decode import decode
from placer.compiler.frontend.yaml.problems import Problems, inner_span, nodes_on
from placer.compiler.frontend.yaml.tree import MappingNode, ScalarNode, SpecNode
from placer.errors import DataError, Span, nearest
from placer.place.types import TensorType
from placer.plan.settings.data import sources
from placer.plan.settings.data.cell_options import OPTIONS, Cells, Csv, find_effectless
from placer.plan.settings.data.columns import Column, select_columns
from placer.plan.settings.data.feature_columns import expand_features
from placer.plan.settings.data.source import Data, RowSource
from placer.plan.settings.data.unread import find_unread_feature, find_unread_option
from placer.plan.settings.mistake import Mistake

Inputs = Mapping[str, TensorType | None]
"""The types of inputs as written; None for an input with an error."""


@dataclass(frozen=True, slots=True)
class RowSources:
    """The content of the section `data`.

    Attributes:
        train, eval: The sources; None if missing or after an error.
        has_eval: Whether the section has the key `eval`.
        spans: The positions of its keys.
    """

    train: RowSource | None
    eval: RowSource | None
    has_eval: bool
    spans: Mapping[str, Span]


def read_data(section: SpecNode | None, inputs: Inputs, context: Context) -> RowSources:
    """Read the section `data`. `inputs` are all inputs of the model. Adds the Python
    modules of the sources to the modules of the context."""
    good = decode(section, DataSection, "data", context.problems)
    train = _read_rows(good.get("train"), "train", None, inputs, context)
    eval_node = good.get("eval")
    evaluation = _read_rows(eval_node, "eval", train, inputs, context)
    spans = dict(_find_spans(section, "", _SPANNED_LEVELS)) if section else {}
    return RowSources(train, evaluation, eval_node is not None, spans)


_SPANNED_LEVELS = 4
"""Levels of keys that have a position. `train.csv.missing.age` is at the last level."""


def _find_spans(node: SpecNode, path: str, levels: int) -> Iterator[tuple[str, Span]]:
    """Yield the path and the span of each key of a mapping, including nested keys."""
    if isinstance(node, MappingNode) and levels:
        for key, entry in node:
            yield f"{path}{key}", inner_span(entry)
            yield from _find_spans(entry, f"{path}{key}.", levels - 1)


def _read_rows(
    node: SpecNode | None,
    which: str,
    train: RowSource | None,
    inputs: Inputs,
    context: Context,
) -> RowSource | None:
    """Read `train` or `eval`. `eval` inherits settings of `train`."""
    if node is None:
        return None
    good = decode(node, Data, f"data.{which}", context.problems)
    if not isinstance(node, MappingNode):
        return None
    valid = len(good) == len(Data.__struct_fields__)
    columns = None
    if "source" in good and (source := _read_source(node.entries["source"], context)):
        reader = _SourceReader(source, node, inputs, context.problems)
        valid &= reader.check_split(good.get("split"))
        if source.declaration.column_lists and which == "eval":
            if train is None:
                # `train` has an error, so the options that eval inherits are unknown.
                return None
            if train.source.startswith(f"{source.kind}:"):
                for key in (source.kind, "features", "columns"):
                    good[key] = good.get(key) or getattr(train, key)
        columns = reader.assign_columns(good.get("columns"))
        valid &= reader.read_options(good, f"data.{which}")
        valid &= reader.read_features(good, f"data.{which}")
        valid = valid and reader.check_options(good)
        valid = valid and (columns is None or reader.check_unread(columns, good))
        if valid and source.declaration.column_lists and columns is not None:
            valid = reader.check_columns(columns, good)
    if "batch" in good and good["batch"] is None:
        if which == "train":
            context.problems.add(
                "'batch' is missing in data.train",
                node.span,
                "add batch: 64, the rows of a step",
            )
        good["batch"] = train.batch if train else None
    if node.get("seed") is not None and "shuffle" in good and _is_off(good["shuffle"]):
        message = "'seed' has no effect: it seeds the shuffle, and 'shuffle' is false"
        hint = "write shuffle: true, or leave seed out"
        context.problems.add(message, node.keys["seed"].span, hint)
        valid = False
    if isinstance(shuffle := good.get("shuffle"), SpecNode) and "source" in good:
        good["shuffle"] = read_shuffle(
            shuffle,
            node,
            source,
            good.get("split"),
            good.get("batch"),
            which,
            context.problems,
        )
        valid &= good["shuffle"] is not None
    if isinstance(stream := good.get("stream"), SpecNode) and "source" in good:
        good["stream"] = read_stream(
            stream,
            node,
            source,
            good.get("split"),
            good.get("remainder"),
            good.get("shuffle"),
            good.get("batch"),
            which,
            context.problems,
        )
        valid &= good["stream"] is not None
    if not valid or columns is None or good["batch"] is None:
        return None
    good["remainder"] = good["remainder"] or _REMAINDERS[which]
    return RowSource(**{**good, "columns": columns})


def _is_off(shuffle: SpecNode | bool) -> bool:
    return (shuffle.value if isinstance(shuffle, SpecNode) else shuffle) is False


def _read_source(node: SpecNode, context: Context) -> sources.Source | None:
    """Parse a source. The module of a `python:` source must be next to the spec."""
    assert isinstance(node, ScalarNode)
    try:
        source = sources.Source.parse(node.text)
        if source.kind == "python":
            module, function = source.path.split(":")
            _add_modules(module, function, context)
    except DataError as error:
        context.problems.add_error(error, span=node.inner_span)
        return None
    return source


def _add_modules(module: str, function: str, context: Context) -> None:
    """Add the modules of a `python:` source. Raises DataError if they are missing."""
    needed = modules_of(module, function, context.folder)
    names = defined_names(context.folder, module)
    if names is not None and function not in names:
        close = nearest(function, names)
        raise DataError(
            f"{module}.py has no function '{function}'",
            hint=close and f"did you mean '{close}'?",
        )
    context.modules.update(dict.fromkeys(needed))


@dataclass(frozen=True, slots=True)
class _SourceReader:
    """Reads the keys that depend on the kind of source, from the mapping `node`."""

    source: sources.Source
    node: MappingNode
    inputs: Inputs
    problems: Problems

    def report(self, mistake: Mistake) -> None:
        """Report a mistake at its key, or at the source if the key is not in the
        spec.
        """
        if len(nodes_on(mistake.path, self.node)) <= len(mistake.path):
            mistake = replace(mistake, path=("source",), of_key=False)
        self.problems.add_mistake(mistake, self.node)

    def check_split(self, split: str | None) -> bool:
        try:
            sources.check_split(self.source, split)
        except sources.SourceError as error:
            self.report(error.mistake)
            return False
        return True

    def assign_columns(
        self, columns: sources.ColumnMap | None
    ) -> sources.ColumnMap | None:
        """Return the column of each input, with defaults for unmapped inputs."""
        if None in self.inputs.values():
            return None
        dtypes = {name: type_.dtype for name, type_ in self.inputs.items() if type_}
        try:
            return sources.assign_columns(self.source, dtypes, columns)
        except sources.SourceError as error:
            self.report(error.mistake)
            return None

    def read_options(self, good: dict[str, Any], where: str) -> bool:
        """Read the options of the kind of source into `good`; return False on
        errors.
        """
        kind = self.source.kind
        for key in OPTIONS:
            if key != kind and good.get(key) is not None:
                message = (
                    f"'{key}' is for {key}: sources, but the source is"
                    f" {self.source.text}"
                )
                self.problems.add(message, self.node.keys[key].span)
                return False
        node = good.get(kind)
        if isinstance(node, SpecNode):
            where = f"{where}.{kind}"
            good[kind] = read_options(node, self.source, where, self.problems)
            return good[kind] is not None
        return True

    def read_features(self, good: dict[str, Any], where: str) -> bool:
        """Read the features of the source into `good`; return False on errors."""
        features = good.get("features")
        if features is None:
            return True
        if not self.source.declaration.column_lists:
            kinds = sources.WITH_COLUMN_LISTS
            message = (
                f"'features' is for {kinds} sources, but the source is"
                f" {self.source.text}"
            )
            self.problems.add(message, self.node.keys["features"].span)
            return False
        if isinstance(features, SpecNode):
            good["features"] = read_features(
                features,
                self.node,
                self.source.text,
                _header(good),
                f"{where}.features",
                self.problems,
            )
        return good["features"] is not None

    def check_options(self, good: dict[str, Any]) -> bool:
        """Report options that match no column or have no effect; return False on
        errors. Does not read the file: `check_columns` makes the checks that need its header."""
        options = good.get(self.source.kind)
        if self.source.kind not in self.node.entries or not isinstance(options, Cells):
            return True
        errors = find_effectless(
            self.source, options, _header(good), good.get("features")
        )
        for error in errors:
            self.report(error.mistake)
        return not errors

    def check_unread(self, columns: sources.ColumnMap, good: dict[str, Any]) -> bool:
        """Report features and column options that no input reads; False on errors."""
        features, kind = good.get("features") or {}, self.source.kind
        found = [
            ("features", find_unread_feature(columns, features)),
            *(
                (kind, find_unread_option(options, columns, features, _header(good)))
                for options in (good.get(kind),)
                if isinstance(options, Cells)
            ),
        ]
        # `eval` inherits the entries of `train`, which are checked there.
        mistakes = [
            mistake.below(key)
            for key, mistake in found
            if mistake is not None and key in self.node.entries
        ]
        for mistake in mistakes:
            self.problems.add_mistake(mistake, self.node)
        return not mistakes

    def check_columns(self, columns: sources.ColumnMap, good: dict[str, Any]) -> bool:
        """Check the columns of inputs that may read several; return False on errors.
        Does not read the file: its columns are known only if the spec lists its header.
        """
        features, header = good["features"] or {}, _header(good)
        computed: Sequence[str] = ()
        if header is not None:
            try:
                computed = [*expand_features(self.source.text, features, header)]
            except sources.SourceError as error:  # An error in features of train.
                self.report(error.mistake)
                return False
        valid = True
        for name, type_ in self.inputs.items():
            assert type_ is not None
            column = Column(name, type_.dtype, type_.sizes(1)[1:])
            try:
                with sources.errors_of_input(name):
                    select_columns(self.source, column, columns[name], header, computed)
            except sources.SourceError as error:
                self.report(error.mistake)
                valid = False
            if mistake := check_dtype(name, type_, columns[name], features):
                self.report(mistake)
                valid = False
        return valid


def _header(good: Mapping[str, Any]) -> list[str] | None:
    csv = good.get("csv")
    return csv.header if isinstance(csv, Csv) else None


_REMAINDERS = {"train": "drop", "eval": "keep"}
"""Defaults for the short last batch of an epoch."""
