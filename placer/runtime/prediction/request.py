"""Defines and checks the request for a prediction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import structs

from placer.errors import DataError, PlacerError, did_you_mean
from placer.plan.class_prefixes import class_prefixes
from placer.plan.plan import Output, Plan
from placer.plan.settings.data.cell_options import OPTIONS, Cells
from placer.plan.settings.data.columns import is_glob
from placer.plan.settings.data.source import RowSource

SUFFIXES = (".parquet", ".csv", ".npz", ".npy")
"""The suffixes of the supported file formats."""


class PredictionRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rows to predict, and the file to write.

    Attributes:
        out: the file to write. Its suffix is one of `SUFFIXES`.
        source: the rows, such as `csv:/data/rows.csv`; None for the source in the build.
        columns: the columns that inputs read, where they differ from the build.
        keys: columns of the source to copy to the file.
        outputs: the outputs to write, in order; empty for all outputs of the build.
        raw: write class scores unchanged instead of as `class` and `probability.NAME`.
    """

    out: str
    source: str | None = None
    columns: dict[str, str | list[str]] = {}
    keys: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    raw: bool = False


def chosen_outputs(plan: Plan, request: PredictionRequest) -> tuple[Output, ...]:
    """Return the outputs to write. Outputs that are written unchanged have no classes.

    Raises PlacerError if the build has no outputs or does not have a requested output.
    """
    by_name = {output.name: output for output in plan.outputs}
    if not by_name:
        raise PlacerError(
            f"the build of '{plan.name}' has no outputs to predict",
            hint="write predict: {outputs: [NAME]} in the spec, or compile the spec with"
            " --outputs NAME",
        )
    names = request.outputs or tuple(by_name)
    for i, name in enumerate(names):
        if name not in by_name:
            near = did_you_mean(name, by_name)
            added = f"to add an output, compile the spec with --outputs {name}"
            raise PlacerError(
                f"'{name}' is not an output of this build",
                hint=added if near is None else f"{near}; {added}",
            )
        if name in names[:i]:
            raise PlacerError(f"the output '{name}' is listed twice")
    outputs = tuple(by_name[name] for name in names)
    if request.raw or Path(request.out).suffix == ".npy":
        return tuple(structs.replace(each, classes=None) for each in outputs)
    return outputs


def check_columns(outputs: Sequence[Output], keys: Sequence[str] = ()) -> None:
    """Raise PlacerError if two columns of the predictions have the same name."""
    prefixes = class_prefixes(outputs)
    used = {*keys}
    for output in outputs:
        columns: Iterable[str] = [output.name]
        hint = "choose keys and outputs with different names"
        if output.classes is not None:
            columns = output.classes.columns(prefixes[output.name])
            hint = "choose other outputs with --outputs, or add --raw (raw=True)"
        for column in columns:
            if column in used:
                raise PlacerError(
                    f"two columns of the predictions are named '{column}'", hint=hint
                )
            used.add(column)


def check_request(plan: Plan, request: PredictionRequest) -> None:
    """Raise PlacerError if a request does not fit the build."""
    outputs = chosen_outputs(plan, request)
    check_columns(outputs, request.keys)
    suffix = Path(request.out).suffix
    if suffix not in SUFFIXES:
        raise PlacerError(
            f"predictions cannot be written to '{request.out}'",
            hint=f"use a file name that ends in {', '.join(SUFFIXES)}",
        )
    if suffix == ".npy" and len(outputs) + len(request.keys) > 1:
        raise PlacerError(
            f"'{request.out}' can store only one output, not"
            f" {', '.join((*request.keys, *(each.name for each in outputs)))}",
            hint="write an .npz file, or choose one output with --outputs",
        )
    used = {name for output in plan.outputs for name in output.inputs}
    for name in request.columns:
        if name not in used:
            hint = did_you_mean(name, used)
            raise PlacerError(f"no output depends on an input '{name}'", hint=hint)
    repeated = [k for i, k in enumerate(request.keys) if k in request.keys[:i]]
    if repeated:
        raise PlacerError(f"the key '{repeated[0]}' is listed twice")
    try:
        data = rows_of(plan, request)
        is_file = data.parsed.declaration.is_file
    except DataError as error:
        raise PlacerError(error.message, hint=error.hint) from error
    if request.keys and not is_file:
        raise PlacerError(
            f"keys must be columns of a file, but the rows come from {data.source}"
        )
    if request.keys and is_glob(data.parsed.path):
        raise PlacerError(
            f"keys must be columns of one file, but the rows come from {data.source}",
            hint="predict the rows of one file after another",
        )


def rows_of(plan: Plan, request: PredictionRequest) -> RowSource:
    """Return the source of the rows to predict.

    The settings are those of the build, for the inputs that outputs depend on.
    """
    data = plan.prediction
    assert data is not None
    used = {name for output in plan.outputs for name in output.inputs}
    columns = {k: v for k, v in (data.columns or {}).items() if k in used}
    if request.source is not None:
        data = structs.replace(data, source=request.source, split=None)
        assert plan.prediction is not None
        before, now = plan.prediction.parsed, data.parsed
        has_lists = before.declaration.column_lists and now.declaration.column_lists
        if before.kind != now.kind and not has_lists:
            columns = {}  # these names belong to another kind of source
            data = structs.replace(data, features=None)
        data = _with_cells_for(data)
    return structs.replace(data, columns={**columns, **request.columns})


def _with_cells_for(data: RowSource) -> RowSource:
    """Move the cell options of a source to the key of its own kind.

    All kinds of sources share vocabularies and numbers for missing cells.
    """
    form = data.csv or data.parquet or data.python
    data = structs.replace(data, csv=None, parquet=None, python=None)
    kind = data.parsed.kind
    options = OPTIONS.get(kind)
    if form is None or options is None:
        return data
    if not isinstance(form, options):
        options = Cells
    same = {f.name: getattr(form, f.name) for f in structs.fields(options)}
    return structs.replace(data, **{kind: OPTIONS[kind](**same)})


def write_request(request: PredictionRequest) -> str:
    """Return a request as text, for a node's process."""
    return msgspec.json.encode(request).decode()


def read_request(text: str) -> PredictionRequest:
    """Parse the text of a request; raise PlacerError if it is not valid."""
    try:
        return msgspec.json.decode(text, type=PredictionRequest)
    except (ValueError, RecursionError) as error:  # msgspec raises ValueErrors
        raise PlacerError(f"--prediction is not a valid request: {error}") from error
