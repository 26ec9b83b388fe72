"""Checks, before any process starts, that the data sources of a build fit its inputs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from placer.errors import DataError, PlacerError, RunError, SpecErrors, SpecWarning
from placer.plan.data_positions import Spans, located, read_spans
from placer.plan.plan import DATA, NodePlan, Plan, data_root, read_sources
from placer.plan.settings.data.columns import in_natural_order
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.data.sources import POSITION
from placer.runtime.prediction.column_errors import outputs_named
from placer.runtime.prediction.request import PredictionRequest, rows_of
from placer.system.callsite import warn_at_caller
from placer.system.memory.limit import available_nbytes

if TYPE_CHECKING:  # it loads numpy
    from placer.readers.check import FirstRows


@dataclass(frozen=True, slots=True)
class CheckedPart:
    """The checked part of a source.

    Attributes:
        rows: the number of rows that were read.
        files: the number of files of the source.
        advice: a better way to read it, if any.
    """

    rows: int
    files: int
    advice: str | None


def check_build_data(
    plan: Plan, build: Path, nodes: Sequence[NodePlan] | None = None
) -> None:
    """Check the files of the data sources of a build, without running code. Raises
    DataError if a source does not fit, with the position in the spec."""
    folder = (build / read_sources(build).spec).parent
    check_data(plan, folder, read_spans(build), code=False, nodes=nodes)


def check_rows_to_predict(plan: Plan, build: Path, request: PredictionRequest) -> None:
    """Check the rows of a prediction, without running code."""
    data = rows_of(plan, request)
    predictions = [node.prediction for node in plan.nodes if node.prediction]
    used = {read.input for each in predictions for read in each.reads} - {POSITION}
    if used and data.parsed.kind != "python":
        with outputs_named(plan, data):
            _check_rows(plan, data, used, data_root(build), to_predict=True)


def check_data(
    plan: Plan,
    folder: Path,
    spans: Spans,
    *,
    code: bool,
    all_files: bool = False,
    nodes: Sequence[NodePlan] | None = None,
) -> dict[str, CheckedPart]:
    """Check that the data sources of a plan can be read and fit the inputs.

    See `placer.readers.check` for the number of rows that are read.

    Args:
        plan: the plan.
        folder: the folder of the spec. Relative paths start there, or in PLACER_DATA if
            it is set.
        spans: the positions of the keys of `data` and of `inputs.NAME`.
        code: run the code of `python:` sources. Without it, they are not checked.
        all_files: check the columns of all files of sets and the first file of a stream,
            and advise windows. A run checks the files of a stream when their pass begins.
        nodes: the nodes whose inputs are checked. Default: all nodes.

    Returns:
        The sources that were read in part.

    Raises:
        DataError: a source does not fit, with its position in the spec.
        SpecErrors: both sources do not fit.
        RunError: the code of a source raises, with the position of the source.
    """
    errors: dict[str, PlacerError] = {}
    parts: dict[str, CheckedPart] = {}
    nodes = plan.nodes if nodes is None else nodes
    step = [read for node in nodes for read in node.step.reads]
    evaluations = [node.evaluation for node in nodes if node.evaluation]
    evaluation = [read for each in evaluations for read in each.reads]
    for which, data, reads in (
        ("train", plan.train, step),
        ("eval", plan.evaluation, evaluation),
    ):
        used = {read.input for read in reads} - {POSITION}
        if data is None or not used or (data.parsed.kind == "python" and not code):
            continue
        if data.stream is not None and not all_files:
            continue  # its files may come later
        try:
            with located(which, spans):
                is_of_files = data.stream is not None and data.stream.lanes is None
                checked = _first_file(data, folder) if is_of_files else data
                if checked is None:
                    continue
                read = _check_rows(plan, checked, used, folder, all_files=all_files)
                if read is not None:
                    advice = _advise(plan, checked, which, read)
                    part = CheckedPart(read.rows, read.files, advice)
                    parts[checked.source] = part
        except (DataError, RunError) as error:
            errors.setdefault(error.message, error)
    if len(errors) > 1:
        raise SpecErrors(errors.values())
    for found in errors.values():
        raise found
    return parts


def _check_rows(
    plan: Plan,
    data: RowSource,
    used: set[str],
    folder: Path,
    *,
    all_files: bool = False,
    to_predict: bool = False,
) -> FirstRows | None:
    # Imported late, because it loads numpy.
    from placer.readers.check import check_source

    columns = [
        structs.replace(column, limits=data.ranges.get(column.name))
        for column in plan.columns
        if column.name in used
    ]
    if data.parsed.kind != "python":
        folder = _folder_of_files(folder)
    feeds = {key: value for key, value in (data.columns or {}).items() if key in used}
    data = structs.replace(data, columns=feeds or None)
    return check_source(
        data, columns, folder, all_files=all_files, to_predict=to_predict
    )


def _advise(plan: Plan, data: RowSource, key: str, read: FirstRows) -> str | None:
    pieces, whole = read.pieces, read.whole
    if pieces is None or whole is None:
        return None
    from placer.readers.window_advice import advise_window
    from placer.runtime.batches.opened_sources import KEYS, readers_of

    phase = next(phase for phase, each in KEYS.items() if each == key)
    processes = len(readers_of(plan, phase))
    available = available_nbytes()
    return advise_window(data, key, whole, processes, available, lambda: pieces)


def _first_file(data: RowSource, folder: Path) -> RowSource | None:
    """Return the first file of a stream as a source. Without a file, warn and return None."""
    from placer.readers.streams.names import list_stream

    source, stream = data.parsed, data.stream
    # `import placer` imports this module, and does without numpy.

    files = in_natural_order(list_stream(data, _folder_of_files(folder)))
    if not files:
        marker = "" if stream is None else stream.folder
        what = f"no folder with '{marker}'" if marker else "no file"
        warn_at_caller(
            f"{source.text}: {what} matches; a run waits for one", SpecWarning
        )
        return None
    return structs.replace(data, source=f"{source.kind}:{files[0]}")


def _folder_of_files(folder: Path) -> Path:
    return Path(os.environ.get(DATA) or folder)
