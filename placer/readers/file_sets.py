"""The files of a source: one, or a set that a glob such as `parquet:clicks/*.parquet` names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from placer.errors import DataError
from placer.plan.settings.data.columns import in_natural_order, is_glob
from placer.plan.settings.data.sources import Source
from placer.readers.arguments import ReadRequest
from placer.readers.feeds import Feeds
from placer.system.files.globs import UNFINISHED, matching_files


def is_set(source: Source, folder: Path) -> bool:
    """Whether a source is a set of files. A glob that is the name of a file is one file."""
    is_pattern = source.declaration.is_file and is_glob(source.path)
    return is_pattern and not (folder / source.path).is_file()


def list_files(source: Source, folder: Path) -> tuple[str, ...]:
    """Return the paths of the files of a source, in natural order: `part-2` before `part-10`.

    Hidden files and files `*.tmp` do not count, see `matching_files`. The paths are relative to
    `folder` if the path of the source is.

    Raises:
        DataError: if a glob matches no file, or a folder cannot be listed.
    """
    if not is_set(source, folder):
        return (source.path,)
    found = matching_files(source.path, folder)
    if not found:
        raise DataError(f"{source.text}: no file matches", hint=_hint(source, folder))
    return tuple(in_natural_order(found))


def _hint(source: Source, folder: Path) -> str:
    parts = Path(source.path).parts
    if "://" in source.path:
        return "a source is on this machine: download the files"
    fixed = next(i for i, part in enumerate(parts) if is_glob(part))
    first = folder.joinpath(*parts[:fixed])
    if not first.is_dir():
        return f"the folder '{first}' does not exist"
    return f"placer looked in '{first}'; hidden files and files '*{UNFINISHED}' do not count"


def files_of(request: ReadRequest) -> Iterator[ReadRequest]:
    """Yield a request for each file of a source, in their order."""
    paths = request.options.files
    if paths is None:
        paths = list_files(request.source, request.folder)
    for i, path in enumerate(paths):
        yield request_file(request, path, is_first=i == 0)


def request_file(request: ReadRequest, path: str, *, is_first: bool) -> ReadRequest:
    """Return the request for one file of a source."""
    kind = request.source.kind
    return replace(
        request, source=Source(f"{kind}:{path}", kind, path), is_first=is_first
    )


class SameColumns:
    """Checks that the inputs read the same columns, of the same types, in all files."""

    def __init__(self) -> None:
        self._first: tuple[str, Feeds, Mapping[str, str]] | None = None

    def check(self, source: str, feeds: Feeds, types: Mapping[str, str]) -> None:
        """Check the next file.

        Args:
            source: the text of the file's source.
            feeds: the columns that feed the inputs.
            types: the type of each column, if the format has types.

        Raises:
            DataError: if the file differs from the first one.
        """
        own = {name: types.get(name, "") for name in feeds.read}
        if self._first is None:
            self._first = source, feeds, own
            return
        first, others, kinds = self._first
        for name, columns in feeds.inputs.items():
            if columns != others.inputs[name]:
                raise DataError(
                    f"{source}: input '{name}' reads {_listed(columns)}, but"
                    f" {_listed(others.inputs[name])} of {first}",
                    hint="each input must read the same columns of all files",
                )
        check_same_types(source, own, first, kinds)


def check_same_types(
    source: str, types: Mapping[str, str], first: str, others: Mapping[str, str]
) -> None:
    """Raise DataError if a column of a file has another type than in the first file."""
    for name, kind in types.items():
        if kind != others[name]:
            raise DataError(
                f"{source}: column '{name}' holds {kind}, but {others[name]} in {first}",
                hint="write the column with the same type to all files",
            )


def _listed(columns: tuple[str, ...]) -> str:
    return ", ".join(f"'{name}'" for name in columns)
