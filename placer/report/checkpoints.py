"""The output of `placer checkpoints` for a folder: its checkpoints and their
problems.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console, RenderableType
from rich.text import Text

from placer.checkpoint.attempts import AttemptBegun, AttemptFailed, Line
from placer.checkpoint.choice import no_checkpoints, without_digest
from placer.checkpoint.folder import (
    best_checkpoint,
    broken_checkpoints,
    incomplete_checkpoint,
    list_checkpoints,
)
from placer.checkpoint.manifest import FILE, Manifest
from placer.checkpoint.manifest_file import read_manifest
from placer.checkpoint.reading import Checkpoint, StoredRows
from placer.errors import CheckpointError
from placer.place.ids import format_nodes
from placer.report.fitted_table import ListColumn, fitted_table, list_table
from placer.report.numbers import (
    format_count,
    format_metrics,
    format_size,
    format_time,
    plural,
)

MOST_ATTEMPTS: Final = 20
"""The largest number of attempts that are listed."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint that was found.

    Attributes:
        path: Its folder.
        manifest: Its manifest; None if unreadable.
        problem: What is wrong with the checkpoint; None if it is intact.
        verified: Whether the checksums of its files were checked.
        is_best: Whether it is the best checkpoint in its folder.
        rows: For each sparse table, the contents of each file, by its name. Empty if
            the checkpoint is damaged.
    """

    path: Path
    manifest: Manifest | None
    problem: CheckpointError | None
    verified: bool
    is_best: bool = False
    rows: Mapping[str, Mapping[str, StoredRows]] = field(default_factory=dict)


def find_checkpoints(folder: Path, *, verify: bool) -> Iterator[Listed]:
    """Yield the checkpoints in a folder, newest first. `folder` may be a checkpoint.
    Raises CheckpointError if no checkpoint is found."""
    if (folder / FILE).exists():
        path = folder.resolve() if folder.is_symlink() else folder
        beside = list_checkpoints(path.parent)
        best = best_checkpoint(path.parent, beside)
        yield _listed(path, read_manifest(path), verify, best)
        return
    if (incomplete := incomplete_checkpoint(folder)) is not None:
        raise incomplete
    found = list_checkpoints(folder)
    broken = list(broken_checkpoints(folder))
    if not found and not broken:
        raise no_checkpoints(folder)
    best = best_checkpoint(folder, found)
    for path, manifest in found:
        yield _listed(path, manifest, verify, best)
    for path, problem in broken:
        yield Listed(path, None, problem, verify)


def _listed(path: Path, manifest: Manifest, verify: bool, best: Path | None) -> Listed:
    problem, rows = None, {}
    try:
        checkpoint = Checkpoint(path)
        rows = {name: checkpoint.stored_rows(name) for name in manifest.sparse}
        if verify:
            checkpoint.verify()
    except CheckpointError as error:
        problem = error
    return Listed(path, manifest, problem, verify, path == best, rows)


def list_view(listed: Sequence[Listed], screen: Console) -> Iterator[RenderableType]:
    """Yield a table with a line for each checkpoint, then their problems. On a narrow
    screen the nodes are left out first, then the sizes, then metrics."""
    yield fitted_table(_columns(listed), screen)
    for each in listed:
        if each.problem is not None:
            yield Text(f"{each.path.name}: {each.problem.message}", "red")
        elif each.manifest is not None and not each.manifest.digest:
            yield Text(without_digest(each.path))


def attempts_view(lines: Sequence[Line], screen: Console) -> Iterator[RenderableType]:
    """Yield a table of the attempts of runs with `--restarts`, oldest first: when each
    began, after which step, and the failure that ended it."""
    attempts = [*_attempts(lines)]
    if not attempts:
        return
    yield Text()
    if (more := len(attempts) - MOST_ATTEMPTS) > 0:
        yield Text(f"{plural(more, 'attempt')} before")
    names = ("attempt", "began", "after step", "failure")
    rows = zip(*attempts[-MOST_ATTEMPTS:], strict=True)
    yield list_table(
        [
            ListColumn(name, cells, is_number=name in ("attempt", "after step"))
            for name, cells in zip(names, rows, strict=True)
        ]
    )


def _attempts(lines: Sequence[Line]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the cells of each attempt."""
    counts: Counter[str] = Counter()
    for i, line in enumerate(lines):
        if isinstance(line, AttemptFailed):
            continue
        counts[line.run] += 1
        after = (each for each in lines[i + 1 :] if each.run == line.run)
        yield (
            str(counts[line.run]),
            format_time(line.time),
            format_count(line.step),
            _failure(next(after, None)),
        )


def _failure(following: Line | None) -> str:
    """Return the failure that ended an attempt, from the next line of its run."""
    if following is None:
        return ""
    if isinstance(following, AttemptBegun):
        return "the first node was lost"  # it writes the failures
    node, where = following.node, following.where
    what = following.what.partition("\n")[0]
    if where.startswith("seen from "):  # another node has lost it
        where, what = "", what.partition(";")[0]
    return ": ".join(filter(None, (node, where, what)))


def _columns(listed: Sequence[Listed]) -> Iterator[ListColumn]:
    """Yield the columns. Cells of a checkpoint without a manifest are empty."""

    def cells(text: Callable[[Manifest], str]) -> list[str]:
        return [text(each.manifest) if each.manifest else "" for each in listed]

    yield ListColumn("checkpoint", [each.path.name for each in listed])
    epochs = cells(lambda each: format_count(each.progress.epoch))
    streams = [each.manifest.progress.stream for each in listed if each.manifest]
    yield ListColumn("pass" if any(streams) else "epoch", epochs, is_number=True)
    yield ListColumn("written", cells(lambda each: format_time(each.written)))
    sizes = cells(
        lambda each: format_size(sum(file.nbytes for file in each.files.values()))
    )
    yield ListColumn("size", sizes, is_number=True, drop=_FIRST)
    yield ListColumn("on", cells(lambda each: holders(each.files)), drop=_FIRST + 1)
    found = (each.manifest.progress.eval for each in listed if each.manifest)
    for i, name in enumerate(dict.fromkeys(chain.from_iterable(found)), start=1):
        values = cells(partial(_metric, name))
        yield ListColumn(name, values, is_number=True, drop=i)
    yield ListColumn("", [state_of(each) for each in listed])


_FIRST = 1 << 20
"""Larger than the index of any metric."""


def _metric(name: str, manifest: Manifest) -> str:
    value = manifest.progress.eval.get(name)
    return "" if value is None else f"{float(value):.4g}"


def state_of(listed: Listed) -> str:
    """Describe whether a checkpoint is complete, damaged, or the best one."""
    state = "verified" if listed.verified else "not verified"
    if listed.manifest is not None and not listed.manifest.digest:
        state += ", except for its manifest"
    if listed.problem is not None:
        state = "damaged"
    return f"{state}, best" if listed.is_best else state


def evaluation_text(manifest: Manifest) -> str:
    """Return the metrics of the last evaluation before a checkpoint."""
    metrics = manifest.progress.eval
    return format_metrics({name: float(value) for name, value in metrics.items()})


def holders(files: Iterable[str]) -> str:
    """Return the nodes that wrote these files of a checkpoint."""
    return format_nodes(
        ":".join(name.partition(".")[0].rpartition("-")[::2])
        for name in dict.fromkeys(files)
    )


def checkpoint_facts(listed: Listed) -> dict[str, Any]:
    """Return a checkpoint's facts for JSON, without checksums and sums of metrics."""
    facts: dict[str, Any] = {
        "path": str(listed.path),
        "problem": listed.problem.message if listed.problem is not None else None,
        "verified": listed.verified and listed.problem is None,
        "best": listed.is_best,
        "rows": {
            table: {holders([file]): each._asdict() for file, each in files.items()}
            for table, files in listed.rows.items()
        },
    }
    if (manifest := listed.manifest) is not None:
        stored = msgspec.to_builtins(manifest)
        del stored["progress"]["statistics"]
        stored["files"] = {n: file.nbytes for n, file in manifest.files.items()}
        facts["manifest"] = stored
    return facts
