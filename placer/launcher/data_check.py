"""Check that the sources of a build fit its inputs, before a process starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import structs

from placer.build.plan import DATA, Plan, read_sources
from placer.config.data import RowSource
from placer.config.sources import POSITION, SourceError
from placer.errors import DataError, Span, SpecErrors


def check_build_data(plan: Plan, build: Path) -> None:
    """Check the files of a build's sources, as `check_data` does, without running code.

    Raises DataError, with the position in the spec.
    """
    sources = read_sources(build)
    spec = Path(sources.spec).name
    spans = {key: Span(spec, *position) for key, position in sources.data.items()}
    check_data(plan, (build / sources.spec).parent, spans, code=False)


def check_data(
    plan: Plan, folder: Path, spans: Mapping[str, Span], *, code: bool
) -> None:
    """Check that the sources of a plan can be read and fit the inputs.

    What is read of a source says `placer.readers.check`.

    Args:
        plan: the plan.
        folder: the folder of the spec, which paths are relative to unless PLACER_DATA
            names another one.
        spans: the positions of the keys of `data`, and of `inputs.NAME`.
        code: whether the code of a `python:` source is run. Such a source is not checked
            otherwise.

    Raises:
        DataError: a source does not fit, with its position in the spec; SpecErrors if
            both do not.
        RunError: the code of a source raises.
    """
    errors: dict[str, DataError] = {}
    step = [read for node in plan.nodes for read in node.step.reads]
    evaluations = [node.evaluation for node in plan.nodes if node.evaluation]
    evaluation = [read for each in evaluations for read in each.reads]
    for which, data, reads in (
        ("train", plan.train, step),
        ("eval", plan.evaluation, evaluation),
    ):
        used = {read.input for read in reads} - {POSITION}
        if data is None or not used or (data.parsed.kind == "python" and not code):
            continue
        try:
            _check_rows(plan, data, used, folder)
        except DataError as error:
            span = _find_span(which, error, spans)
            located = DataError(error.message, span=span, hint=error.hint)
            errors.setdefault(error.message, located)
    if len(errors) > 1:
        raise SpecErrors(errors.values())
    for located in errors.values():
        raise located


def _check_rows(plan: Plan, data: RowSource, used: set[str], folder: Path) -> None:
    from placer.readers.check import check_source  # it imports numpy

    columns = [
        structs.replace(column, limits=data.ranges.get(column.name))
        for column in plan.columns
        if column.name in used
    ]
    if data.parsed.kind != "python":
        folder = Path(os.environ.get(DATA) or folder)
    feeds = {key: value for key, value in (data.columns or {}).items() if key in used}
    check_source(structs.replace(data, columns=feeds or None), columns, folder)


def _find_span(which: str, error: DataError, spans: Mapping[str, Span]) -> Span | None:
    """Return the position of the key that an error is about, or of the source."""
    keys = error.keys if isinstance(error, SourceError) else ("source",)
    found = spans.get(".".join((which, *keys)))
    if found is None and keys[0] == "columns":
        found = spans.get(f"inputs.{keys[1]}")
    return found or spans.get(f"{which}.source")
