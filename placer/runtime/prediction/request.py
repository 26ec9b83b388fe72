"""What a prediction is asked for, besides what the build says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import structs

from placer.errors import DataError, PlacerError, did_you_mean
from placer.plan.plan import Output, Plan
from placer.plan.settings.data.cell_options import OPTIONS, Cells
from placer.plan.settings.data.source import RowSource

SUFFIXES = (".parquet", ".csv", ".npz", ".npy")
"""The formats of a file of predictions."""


class PredictionRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rows of a prediction, and the file that its outputs are written to.

    Attributes:
        out: the file to write; its suffix is one of `SUFFIXES`.
        source: the rows, such as `csv:/data/rows.csv`; None for those of the build.
        columns: the column or columns that inputs read, instead of those of the build.
        keys: columns of the source that are copied to the file.
        outputs: the outputs to write, in this order; none for all of the build.
        raw: whether outputs that score classes are written as they are computed, instead
            of as `class` and `probability.NAME`.
    """

    out: str
    source: str | None = None
    columns: dict[str, str | list[str]] = {}
    keys: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    raw: bool = False


def chosen_outputs(plan: Plan, request: PredictionRequest) -> tuple[Output, ...]:
    """Return the outputs to write; those that are written as they are have no classes.

    Raises PlacerError for a build without outputs, and for an output that it does not
    have.
    """
    by_name = {output.name: output for output in plan.outputs}
    if not by_name:
        raise PlacerError(
            f"the build of '{plan.name}' predicts nothing: it has no outputs",
            hint="write predict: {outputs: [NAME]} in the spec, or compile it with"
            " --outputs NAME",
        )
    names = request.outputs or tuple(by_name)
    for i, name in enumerate(names):
        if name not in by_name:
            raise PlacerError(
                f"'{name}' is not an output of this build",
                hint=f"{did_you_mean(name, by_name)}; others have to be compiled, with"
                f" --outputs {name}",
            )
        if name in names[:i]:
            raise PlacerError(f"the output '{name}' is listed twice")
    outputs = tuple(by_name[name] for name in names)
    if request.raw or Path(request.out).suffix == ".npy":
        return tuple(structs.replace(each, classes=None) for each in outputs)
    return outputs


def class_prefixes(outputs: Sequence[Output]) -> dict[str, str]:
    """Return what comes before `class` in the columns of each output that scores classes:
    its name, if there are several."""
    names = [output.name for output in outputs if output.classes is not None]
    return {name: f"{name}." if len(names) > 1 else "" for name in names}


def check_columns(outputs: Sequence[Output], keys: Sequence[str] = ()) -> None:
    """Raise PlacerError if two columns of the predictions have one name."""
    prefixes = class_prefixes(outputs)
    used = {*keys}
    for output in outputs:
        columns: Iterable[str] = [output.name]
        hint = "keys and outputs need different names"
        if output.classes is not None:
            columns = output.classes.columns(prefixes[output.name])
            hint = "choose other outputs by --outputs, or predict with --raw (raw=True)"
        for column in columns:
            if column in used:
                raise PlacerError(
                    f"two columns of the predictions are named '{column}'", hint=hint
                )
            used.add(column)


def check_request(plan: Plan, request: PredictionRequest) -> None:
    """Raise PlacerError for a request that does not fit the build."""
    outputs = chosen_outputs(plan, request)
    check_columns(outputs, request.keys)
    suffix = Path(request.out).suffix
    if suffix not in SUFFIXES:
        raise PlacerError(
            f"predictions cannot be written to '{request.out}'",
            hint=f"the name of the file ends in {', '.join(SUFFIXES)}",
        )
    if suffix == ".npy" and len(outputs) + len(request.keys) > 1:
        raise PlacerError(
            f"'{request.out}' has room for one output, not for"
            f" {', '.join((*request.keys, *(each.name for each in outputs)))}",
            hint="write an .npz file, or choose one by --outputs",
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
            f"keys are columns of a file, and the rows are those of {data.source}"
        )


def rows_of(plan: Plan, request: PredictionRequest) -> RowSource:
    """Return the rows to predict: how they are read is as in the build, for the inputs
    that outputs depend on."""
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
            columns = {}  # the names of another kind of source
            data = structs.replace(data, features=None)
        data = _with_cells_for(data)
    return structs.replace(data, columns={**columns, **request.columns})


def _with_cells_for(data: RowSource) -> RowSource:
    """Return a source with the options of cells under the key of its own kind: all kinds
    have the same vocabularies and numbers for missing cells."""
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
    """Return a request as text, for the process of a node."""
    return msgspec.json.encode(request).decode()


def read_request(text: str) -> PredictionRequest:
    """Return the request of a text; PlacerError if it is not one."""
    try:
        return msgspec.json.decode(text, type=PredictionRequest)
    except (ValueError, RecursionError) as error:  # msgspec raises ValueErrors
        raise PlacerError(f"--prediction is not a prediction: {error}") from error
