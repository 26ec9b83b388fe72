"""What `placer checkpoints` prints: the checkpoints of a folder, and what each holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from placer.checkpoint.folder import (
    BEST,
    broken_checkpoints,
    incomplete_checkpoint,
    list_checkpoints,
)
from placer.checkpoint.manifest import FILE, Manifest, read_manifest
from placer.checkpoint.reading import Checkpoint
from placer.errors import CheckpointError
from placer.report.numbers import format_count, format_metrics, format_size, plural


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint that was found.

    Attributes:
        path: its folder.
        manifest: its manifest, None if that cannot be read.
        problem: what is wrong with it, None if nothing.
        verified: whether the checksums of its files were checked.
        is_best: whether the folder links it as the best one.
    """

    path: Path
    manifest: Manifest | None
    problem: CheckpointError | None
    verified: bool
    is_best: bool = False


def find_checkpoints(folder: Path, *, verify: bool) -> Iterator[Listed]:
    """Yield the checkpoints of a folder, the last one first, or the one that it is.

    Raises CheckpointError if there is none.
    """
    if (folder / FILE).exists():
        yield _listed(folder, read_manifest(folder), verify, is_best=False)
        return
    if (incomplete := incomplete_checkpoint(folder)) is not None:
        raise incomplete
    best = (folder / BEST).resolve()
    found = list_checkpoints(folder)
    broken = list(broken_checkpoints(folder))
    if not found and not broken:
        raise CheckpointError(
            f"'{folder}' has no checkpoints",
            hint="placer train SPEC --checkpoint DIR saves some",
        )
    for path, manifest in found:
        yield _listed(path, manifest, verify, is_best=path.resolve() == best)
    for path, problem in broken:
        yield Listed(path, None, problem, verify)


def _listed(path: Path, manifest: Manifest, verify: bool, *, is_best: bool) -> Listed:
    problem = None
    try:
        checkpoint = Checkpoint(path)
        if verify:
            checkpoint.verify()
    except CheckpointError as error:
        problem = error
    return Listed(path, manifest, problem, verify, is_best)


def checkpoint_lines(listed: Listed) -> Iterator[str]:
    """Yield a checkpoint as lines of text."""
    manifest = listed.manifest
    if manifest is None:
        assert listed.problem is not None
        yield f"{listed.path.name}  {listed.problem.message}"
        return
    progress = manifest.progress
    state = "verified" if listed.verified else "not verified"
    if listed.problem is not None:
        state = listed.problem.message
    best = "  best" if listed.is_best else ""
    yield f"{listed.path.name}{best}  {state}"
    yield (
        f"  {manifest.name}  step {format_count(progress.step)}"
        f"  epoch {format_count(progress.epoch)}"
        f" (after {format_count(progress.batches)} of its batches)"
    )
    numbers = sum(prod(each.shape) for each in manifest.parameters.values())
    slots = sorted(
        {slot for each in manifest.parameters.values() for slot in each.slots}
    )
    nbytes = sum(file.nbytes for file in manifest.files.values())
    yield (
        f"  {plural(len(manifest.parameters), 'parameter')} with"
        f" {plural(numbers, 'value')}{', slots ' + ', '.join(slots) if slots else ''};"
        f" {plural(len(manifest.files), 'file')}, {format_size(nbytes)}"
    )
    if progress.eval:
        metrics = {name: float(value) for name, value in progress.eval.items()}
        yield f"  last evaluation  {format_metrics(metrics)}"
