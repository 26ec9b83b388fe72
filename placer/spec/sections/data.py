"""The sections `inputs` and `data`: what a row is, and where rows come from."""

from __future__ import annotations

import re
from collections.abc import Mapping as Types
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from placer.config import sources
from placer.config.checks import shown
from placer.errors import DataError, Span, did_you_mean, nearest
from placer.graph.model import Source
from placer.spec.csv_options import check_columns, read_csv
from placer.spec.decode import decode
from placer.spec.module_imports import defined, neighbours
from placer.spec.names import Names, is_name, why_not
from placer.spec.problems import Problems
from placer.spec.schema import Data, DataSection
from placer.spec.tree import Mapping, Node, Scalar
from placer.types import BATCH, ITEM_BYTES, LARGEST, TensorType

_DTYPES = tuple(name for name in ITEM_BYTES if name != "key")


def read_inputs(
    section: Node | None, wide: bool, names: Names, problems: Problems
) -> dict[str, TensorType | None]:
    """The type of each input, as written; None where it is wrong. `wide` is whether
    the precision is float64."""
    if not isinstance(section, Mapping):
        if section is not None:
            message = f"'inputs' must be a mapping, not {shown(section.value)}"
            problems.add(message, section.span, "write image: float32[batch, 64]")
        return {}
    types: dict[str, TensorType | None] = {}
    for name, node in section:
        key = section.keys[name]
        if names.check(name, key):
            names.define(name, key.span)
        found = types[name] = _input_type(name, node, problems)
        if found is not None and found.dtype == "float64" and not wide:
            message = f"input '{name}' is float64, and the precision is float32"
            hint = f"declare it {replace(found, dtype='float32')}, or write precision: float64"
            problems.add(message, node.span, hint)
            types[name] = None
    return types


def _input_type(name: str, node: Node, problems: Problems) -> TensorType | None:
    if not isinstance(node, Scalar) or not isinstance(node.value, str):
        message = f"input '{name}' must be a type, not {shown(node.value)}"
        problems.add(message, node.span, "write for example float32[batch, 64]")
        return None
    return parse_type(node, problems, input_name=name)


def parse_type(
    node: Scalar, problems: Problems, *, input_name: str
) -> TensorType | None:
    """The type of an input; its first dimension, and no other, is the batch."""
    try:
        found = TensorType.parse(node.text, LARGEST)
    except ValueError as error:
        word = re.match(r"\w*", node.text.strip())
        dtype = word.group() if word else ""
        known = dtype in _DTYPES or "[" not in node.text
        hint = None if known else did_you_mean(dtype, _DTYPES)
        problems.add(str(error), node.inside, hint)
        return None
    if found.dtype == "key":
        problems.add("'key' is not a dtype", node.inside)
        return None
    if not found.has_rows or BATCH in found.shape[1:]:
        message = f"'batch' is the first dimension of an input, and only that: {found}"
        shape = ", ".join([BATCH, *(str(d) for d in found.shape if d != BATCH)])
        problems.add(message, node.inside, f"write {found.dtype}[{shape}]")
        return None
    if 0 in found.shape:
        problems.add(f"a dimension of {found} is 0", node.inside)
        return None
    return found


@dataclass(frozen=True, slots=True)
class Rows:
    """The section `data`, read."""

    train: Source | None
    eval: Source | None
    eval_given: bool
    modules: tuple[str, ...]


def read_data(
    section: Node | None,
    inputs: Types[str, TensorType | None],
    folder: Path,
    problems: Problems,
) -> Rows:
    """The rows to train on and to evaluate on."""
    good = decode(section, DataSection, "data", problems)
    reader = _Reader(inputs, folder, problems)
    train = reader.read(good.get("train"), "train", None)
    given = good.get("eval")
    evaluation = reader.read(given, "eval", train)
    return Rows(train, evaluation, given is not None, tuple(reader.modules))


class _Reader:
    def __init__(
        self,
        inputs: Types[str, TensorType | None],
        folder: Path,
        problems: Problems,
    ) -> None:
        self.inputs = inputs
        self.folder = folder
        self.problems = problems
        self.modules: dict[str, None] = {}

    def read(
        self, node: Node | None, which: str, train: Source | None
    ) -> Source | None:
        """One entry; what `eval` does not say it takes from `train`, where it can."""
        if node is None:
            return None
        good = decode(node, Data, f"data.{which}", self.problems)
        if not isinstance(node, Mapping):
            return None
        whole = len(good) == len(Data.__struct_fields__)
        columns = None
        if "source" in good and (found := self._source(node.entries["source"])):
            whole &= self._check_split(found, good.get("split"), node)
            if found.kind == "csv" and which == "eval":
                if train is None:
                    return None  # what eval takes from it is not known
                if train.source.startswith("csv:"):
                    good["csv"] = good.get("csv") or train.csv
                    good["columns"] = good.get("columns") or train.columns
            columns = self._columns(found, good.get("columns"), node)
            whole &= self._csv(found, good, columns, node, f"data.{which}.csv")
        if "batch" in good and good["batch"] is None:
            if which == "train":
                self.problems.add("'batch' is missing in data.train", node.span)
            good["batch"] = train.batch if train else None
        if not whole or columns is None or good["batch"] is None:
            return None
        remainder = good["remainder"] or ("drop" if which == "train" else "keep")
        return Source(**{**good, "columns": columns, "remainder": remainder})

    def _source(self, node: Node) -> sources.Source | None:
        """The source that a text names; its module must stand beside the spec."""
        assert isinstance(node, Scalar)
        span = node.inside
        try:
            found = sources.Source.parse(node.text)
        except DataError as error:
            self.problems.take(error, span=span)
            return None
        if found.kind == "python":
            module, _, function = found.path.partition(":")
            for name in (module, function):
                if not is_name(name):
                    message, hint = why_not(name)
                    self.problems.add(message, span, hint)
                    return None
            if not (self.folder / f"{module}.py").is_file():
                beside = [path.stem for path in self.folder.glob("*.py")]
                message = f"there is no {module}.py beside the spec"
                near = nearest(module, beside)
                name = "rows" if module == "__main__" else module
                hint = (
                    f"did you mean '{near}'?"
                    if near
                    else f"nodes import it: write the function to {name}.py; in a"
                    f" notebook, %%writefile {name}.py at the top of its cell does"
                )
                self.problems.add(message, span, hint)
                return None
            try:
                needed = (module, *neighbours(self.folder, module))
                there = defined(self.folder, module)
            except DataError as error:
                self.problems.take(error, span=span)
                return None
            if there is not None and function not in there:
                message = f"{module}.py has no function '{function}'"
                close = nearest(function, there)
                self.problems.add(message, span, close and f"did you mean '{close}'?")
                return None
            self.modules.update(dict.fromkeys(needed))
        return found

    def _check_split(
        self, source: sources.Source, split: str | None, entry: Mapping
    ) -> bool:
        try:
            sources.check_split(source, split)
        except DataError as error:
            self.problems.take(error, span=entry.keys["split"].span)
            return False
        return True

    def _columns(
        self, source: sources.Source, given: sources.Feeds | None, entry: Mapping
    ) -> sources.Feeds | None:
        """The column of each input, those that are not written among them."""
        if None in self.inputs.values():
            return None
        dtypes = {name: type_.dtype for name, type_ in self.inputs.items() if type_}
        try:
            return sources.assign(source, dtypes, given)
        except DataError as error:
            section = entry.get("columns" if given else "source")
            span = section.inside if isinstance(section, Scalar) else entry.span
            if isinstance(section, Mapping):
                span = _blamed(section, given or {}, dtypes, source)
            self.problems.take(error, span=span)
            return None

    def _csv(
        self,
        source: sources.Source,
        good: dict[str, Any],
        columns: sources.Feeds | None,
        entry: Mapping,
        where: str,
    ) -> bool:
        """Whether the file's text can be read as the spec says, which goes to `good`."""
        node = good.get("csv")
        if source.kind != "csv":
            if node is None:
                return True
            message = f"'csv' is for csv: sources, not for {source.text}"
            self.problems.add(message, entry.keys["csv"].span)
            return False
        if isinstance(node, Node):
            good["csv"] = read_csv(node, source, where, self.problems)
            if good["csv"] is None:
                return False
        types = {name: type_ for name, type_ in self.inputs.items() if type_}
        section = entry.get("columns")
        given = section.entries if isinstance(section, Mapping) else {}
        spans = {name: given.get(name, entry.entries["source"]).span for name in types}
        header = good["csv"].header if good["csv"] else None
        return columns is not None and check_columns(
            source, columns, types, header, spans, self.problems
        )


def _blamed(
    section: Mapping,
    given: sources.Feeds,
    dtypes: dict[str, str],
    source: sources.Source,
) -> Span:
    """Where `columns` is wrong: at an unknown input, at an unknown column, or whole."""
    for name, column in given.items():
        if name not in dtypes:
            return section.keys[name].span
        if isinstance(column, list) and source.kind != "csv":
            return section.entries[name].span
        if source.kind == "sklearn" and column not in sources.SKLEARN[source.path]:
            return section.entries[name].span
    return section.span
