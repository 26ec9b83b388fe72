"""Reads the section `data`: the sources of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placer.config import sources
from placer.config.columns import Column, select_columns
from placer.config.csv import Csv
from placer.config.data import Data, RowSource
from placer.errors import DataError, nearest
from placer.spec.context import Context
from placer.spec.csv_options import read_csv
from placer.spec.decode import decode
from placer.spec.module_imports import defined_names, modules_of
from placer.spec.problems import Problems
from placer.spec.schema import DataSection
from placer.spec.tree import MappingNode, ScalarNode, SpecNode
from placer.types import TensorType


@dataclass(frozen=True, slots=True)
class RowSources:
    """The content of the section `data`.

    `train` and `eval` are None if they are missing or have an error; `has_eval` is
    whether the section has `eval`.
    """

    train: RowSource | None
    eval: RowSource | None
    has_eval: bool


def read_data(
    section: SpecNode | None,
    inputs: Mapping[str, TensorType | None],
    context: Context,
) -> RowSources:
    """Read the section `data`. `inputs` are all inputs of the model.

    The Python modules of the sources are added to those of the context.
    """
    good = decode(section, DataSection, "data", context.problems)
    reader = _Reader(inputs, context.folder, context.problems, context.modules)
    train = reader.read(good.get("train"), "train", None)
    eval_node = good.get("eval")
    evaluation = reader.read(eval_node, "eval", train)
    return RowSources(train, evaluation, eval_node is not None)


@dataclass(frozen=True, slots=True)
class _Reader:
    inputs: Mapping[str, TensorType | None]
    folder: Path
    problems: Problems
    modules: dict[str, None]

    def read(
        self, node: SpecNode | None, which: str, train: RowSource | None
    ) -> RowSource | None:
        """Read `train` or `eval`. `eval` uses settings of `train` where it has none."""
        if node is None:
            return None
        good = decode(node, Data, f"data.{which}", self.problems)
        if not isinstance(node, MappingNode):
            return None
        valid = len(good) == len(Data.__struct_fields__)
        columns = None
        if "source" in good and (source := self._source(node.entries["source"])):
            valid &= self._check_split(source, good.get("split"), node)
            if source.declaration.column_lists and which == "eval":
                if train is None:
                    return None  # the options of train, which eval uses, are not known
                if train.source.startswith(f"{source.kind}:"):
                    good["csv"] = good.get("csv") or train.csv
                    good["columns"] = good.get("columns") or train.columns
            columns = self._columns(source, good.get("columns"), node)
            valid &= self._csv(source, good, node, f"data.{which}.csv")
            if valid and source.declaration.column_lists and columns is not None:
                valid = self._check_columns(source, columns, good["csv"], node)
        if "batch" in good and good["batch"] is None:
            if which == "train":
                self.problems.add("'batch' is missing in data.train", node.span)
            good["batch"] = train.batch if train else None
        if not valid or columns is None or good["batch"] is None:
            return None
        good["remainder"] = good["remainder"] or _REMAINDERS[which]
        return RowSource(**{**good, "columns": columns})

    def _source(self, node: SpecNode) -> sources.Source | None:
        """Parse a source. The module of a `python:` source must be beside the spec."""
        assert isinstance(node, ScalarNode)
        try:
            source = sources.Source.parse(node.text)
            if source.kind == "python":
                self._add_modules(*source.path.split(":"))
        except DataError as error:
            self.problems.add_error(error, span=node.inner_span)
            return None
        return source

    def _add_modules(self, module: str, function: str) -> None:
        """Add the modules of a `python:` source. Raises DataError if it has none."""
        name = "rows" if module == "__main__" else module
        advice = (
            f"nodes import it: write the function to {name}.py; in a notebook,"
            f" put %%writefile {name}.py at the top of its cell"
        )
        needed = modules_of(module, function, self.folder, advice)
        names = defined_names(self.folder, module)
        if names is not None and function not in names:
            close = nearest(function, names)
            raise DataError(
                f"{module}.py has no function '{function}'",
                hint=close and f"did you mean '{close}'?",
            )
        self.modules.update(dict.fromkeys(needed))

    def _check_split(
        self, source: sources.Source, split: str | None, entry: MappingNode
    ) -> bool:
        try:
            sources.check_split(source, split)
        except DataError as error:
            self.problems.add_error(error, span=entry.keys["split"].span)
            return False
        return True

    def _columns(
        self,
        source: sources.Source,
        columns: sources.ColumnMap | None,
        entry: MappingNode,
    ) -> sources.ColumnMap | None:
        """Return the column of each input, also of those not in the spec."""
        if None in self.inputs.values():
            return None
        dtypes = {name: type_.dtype for name, type_ in self.inputs.items() if type_}
        try:
            return sources.assign_columns(source, dtypes, columns)
        except DataError as error:
            section = entry.get("columns" if columns else "source")
            span = section.inner_span if isinstance(section, ScalarNode) else entry.span
            if isinstance(section, MappingNode):
                span = section.span
                if isinstance(error, sources.InputColumnError):
                    nodes = section.entries if error.input in dtypes else section.keys
                    span = nodes[error.input].span
            self.problems.add_error(error, span=span)
            return None

    def _csv(
        self,
        source: sources.Source,
        good: dict[str, Any],
        entry: MappingNode,
        where: str,
    ) -> bool:
        """Read the options of a `csv:` source into `good`; return False on errors."""
        node = good.get("csv")
        if source.kind != "csv" and node is not None:
            message = f"'csv' is for csv: sources, not for {source.text}"
            self.problems.add(message, entry.keys["csv"].span)
            return False
        if isinstance(node, SpecNode):
            good["csv"] = read_csv(node, source, where, self.problems)
            return good["csv"] is not None
        return True

    def _check_columns(
        self,
        source: sources.Source,
        columns: sources.ColumnMap,
        csv: Csv | None,
        entry: MappingNode,
    ) -> bool:
        """Check the columns of inputs that may read several; return False on errors.

        The file is not read: its columns are known only if the spec has its header.
        """
        section = entry.get("columns")
        nodes = section.entries if isinstance(section, MappingNode) else {}
        header = csv.header if csv else None
        valid = True
        for name, type_ in self.inputs.items():
            assert type_ is not None
            column = Column(name, type_.dtype, type_.sizes(1)[1:])
            try:
                select_columns(source, column, columns[name], header)
            except DataError as error:
                span = nodes.get(name, entry.entries["source"]).span
                self.problems.add_error(error, span=span)
                valid = False
        return valid


_REMAINDERS = {"train": "drop", "eval": "keep"}
"""What is done with the short last batch of an epoch where the spec does not say it."""
