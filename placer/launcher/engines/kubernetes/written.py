"""Checks that the files of a run are on volumes, because other files are lost with the
pod."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Final

from placer.errors import PlacerError
from placer.launcher.engines.engine import JobRequest
from placer.launcher.engines.kubernetes.volumes import Volume
from placer.plan.plan import SOURCES, decode_sources
from placer.plan.settings.run import TrainSettings
from placer.runtime.control.options import OPTIONS

_FOLDERS: Final = tuple(
    option.flag
    for option in OPTIONS
    # The run only reads the folder of --resume.
    if option.file == "folder" and option.name != "resume"
)
"""Options that name a folder to which nodes write."""
_STREAMS: Final = ("/dev/null", "/dev/stdout", "/dev/stderr")
"""Paths to which nodes write that are not files."""


def check_written(request: JobRequest, build: str, volumes: Sequence[Volume]) -> None:
    """Raise PlacerError for a file of the run that would be lost with its pod. `build` is
    the folder of the build in the pods."""
    for what, path, hint in _written(request, build):
        # The volume with the longest matching path contains the file.
        holders = [each for each in volumes if path.is_relative_to(each.path)]
        holder = max(holders, key=lambda each: len(each.path), default=None)
        if holder is None and str(path) not in _STREAMS:
            raise PlacerError(
                f"{what} is '{path}', which is not on a volume: it would be lost "
                "with the pod",
                hint=f"{hint}mount a volume there: --option volumes=CLAIM:/PATH",
            )
        if holder is not None and holder.read_only:
            raise PlacerError(
                f"{what} is '{path}', but its volume is read-only",
                hint="make it writable: --option "
                f"volumes={holder.claim}:{holder.path}, without :ro",
            )


def _written(
    request: JobRequest, build: str
) -> Iterator[tuple[str, PurePosixPath, str]]:
    """Yield the description and the path of each written file, and the start of a hint."""
    named = {flag: str(path) for flag, path in request.writes.items()}
    for argument in request.arguments:
        flag, _, path = argument.partition("=")
        if flag in _FOLDERS:
            named[flag] = path
    for flag, path in named.items():
        yield flag, PurePosixPath(normpath(path)), ""
    for key, flag, given in _planned(request.plan.settings.train):
        if given is None or flag in named:
            continue
        sources = decode_sources(request.files[SOURCES], Path(build, SOURCES))
        folder = normpath(f"{build}/{sources.spec}/../{given}")
        if given.startswith("/"):
            folder = normpath(given)
        yield key, PurePosixPath(folder), f"choose another folder with {flag} DIR, or "


def _planned(train: TrainSettings) -> Iterator[tuple[str, str, str | None]]:
    """Yield the keys of a spec that name folders, the options that replace them, and the
    folders."""
    if train.checkpoint is not None:
        yield "train.checkpoint.to", "--checkpoint", train.checkpoint.to
    if train.publish is not None:
        yield "train.publish.folder", "--publish", train.publish.folder
