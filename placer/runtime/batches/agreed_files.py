"""Lets all nodes read the same files of a source that is a set."""

from __future__ import annotations

from collections.abc import Mapping

from placer.checkpoint.attempts import AttemptFiles, add_attempt, read_files
from placer.plan.data_positions import located, read_spans
from placer.plan.plan import data_root
from placer.plan.settings.data.columns import is_glob
from placer.plan.settings.data.source import RowSource
from placer.readers.file_sets import list_files
from placer.runtime.batches.opened_sources import KEYS, PREDICTION, readers_of
from placer.runtime.control.barrier import FILES, barrier
from placer.runtime.control.execution import Execution


def agree_on_files(
    execution: Execution, sources: Mapping[str, RowSource | None]
) -> None:
    """Agree on the files of all sets, which `execution.shared_rows.files` has afterwards.

    The first node that reads a source lists its files. In a later attempt of a run, a process
    that has read the files before names them, or the list of attempts does. So a file that came
    meanwhile does not count. All nodes call this before they open the sources.

    Args:
        execution: the node's run.
        sources: the source of each phase.

    Raises:
        DataError: on the first node, if no file matches, with the position in the spec.
    """
    plan, kept = execution.plan, execution.shared_rows.files
    settings = execution.checkpointing
    records = bool(execution.run) and settings is not None  # on the control node
    sets = {
        phase: data
        for phase, data in sources.items()
        if data is not None
        and data.parsed.declaration.is_file
        and is_glob(data.parsed.path)
    }
    if not sets:
        return
    if records and not kept:
        assert settings is not None
        kept.update(read_files(settings.folder, execution.run))
    own: dict[str, tuple[str, ...] | None] = {}
    for phase, data in sets.items():
        first = next(iter(readers_of(plan, phase).values()), None)
        own[phase] = kept.get(phase)
        if own[phase] is None and first and first[0].name == execution.me.name:
            own[phase] = _list(execution, phase, data)
    have_read = bool(kept)
    reports = barrier(plan, execution.channel, {"read": have_read, "files": own}, FILES)
    reports.sort(key=lambda report: not report["read"])
    for phase in sets:
        listed = (report["files"][phase] for report in reports)
        kept[phase] = tuple(next((each for each in listed if each), ()))
    if records:
        assert settings is not None
        if read_files(settings.folder, execution.run) != kept:
            add_attempt(settings.folder, AttemptFiles(execution.run, {**kept}))


def _list(execution: Execution, phase: str, data: RowSource) -> tuple[str, ...]:
    folder = data_root(execution.folder)
    if phase == PREDICTION:
        return list_files(data.parsed, folder)
    with located(KEYS[phase], read_spans(execution.folder)):
        return list_files(data.parsed, folder)
