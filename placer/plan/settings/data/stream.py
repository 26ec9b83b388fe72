"""The setting `stream` of `data.train`: a set of files, or the rows of a Python function, that
grows while a run trains it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Struct

from placer.plan.settings.data.columns import is_glob
from placer.plan.settings.data.lanes import find_lane_mistake
from placer.plan.settings.data.sources import WITH_FILES, Source
from placer.plan.settings.data.window import Window
from placer.plan.settings.fields import Count, doc
from placer.plan.settings.mistake import Mistake, refuse

NOW: Final = "now"
"""The value of `until` (--until) for the files that exist when a command starts."""


class Stream(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Train a set of files, or the rows of a Python function, in passes.

    A pass is an epoch over the next files of the set, or over the next rows.
    """

    files: Annotated[Count | None, doc("the number of files of a pass")] = None
    folder: Annotated[
        str | None,
        doc(
            "a pass is a folder; a folder is complete once it has a file of this name,"
            " such as _SUCCESS"
        ),
    ] = None
    late: Annotated[
        Literal["skip", "train"],
        doc(
            "what to do with a file whose name comes before the last trained one: skip it"
            " with a warning, or train it in the next pass"
        ),
    ] = "skip"
    lanes: Annotated[
        Count | None,
        doc(
            "for python: sources, the number of parts in which the function gives its rows;"
            " each lane gives the same part of every batch"
        ),
    ] = None
    rows: Annotated[
        Count | None,
        doc(
            "for python: sources, the number of rows of a pass, rounded down to whole"
            " batches"
        ),
    ] = None

    def __post_init__(self) -> None:
        """Raise MistakeError if an option is wrong."""
        refuse(self._find_mistake())

    def _find_mistake(self) -> Mistake | None:
        if self.lanes is not None or self.rows is not None:
            return self._find_mistake_of_lanes()
        if (self.files is None) == (self.folder is None):
            message = "'stream' needs exactly one of 'files' and 'folder'"
            hint = "write files: 1 for passes of one file, or folder: _SUCCESS"
            return Mistake((), message, hint)
        if self.folder is not None and (
            not self.folder.strip(".") or not {*self.folder}.isdisjoint("/\\\0")
        ):
            message = f"'folder' must be the name of a file, not {self.folder!r}"
            hint = "a writer adds this file to a complete folder, such as _SUCCESS"
            return Mistake(("folder",), message, hint)
        return None

    def _find_mistake_of_lanes(self) -> Mistake | None:
        if self.lanes is None or self.rows is None:
            missing = "lanes" if self.lanes is None else "rows"
            message = f"'stream' of a Python function needs '{missing}'"
            hint = "write both, such as lanes: 24, rows: 1000000"
            return Mistake((), message, hint)
        given = {"files": self.files, "folder": self.folder}
        for key, value in given.items():
            if value is not None:
                message = (
                    f"'{key}' cannot be used with 'lanes': a function has no files"
                )
                return Mistake((key,), message, f"leave {key} out", of_key=True)
        if self.late != "skip":
            message = "'late' cannot be used with 'lanes': a function has no files"
            return Mistake(("late",), message, "leave late out", of_key=True)
        return None

    def check(
        self,
        source: Source,
        split: str | None,
        remainder: str | None,
        shuffle: bool | Window,
        batch: int | None,
    ) -> Mistake | None:
        """Return a mistake in a stream of a source, or None.

        Args:
            source: the source.
            split, remainder, shuffle: the keys of the source.
            batch: the number of rows of a batch; None after an error.
        """
        kind = source.declaration
        if source.kind == "python":
            return self._check_function(source, remainder, shuffle, batch)
        if self.lanes is not None:
            return Mistake(
                ("stream", "lanes"),
                f"'lanes' and 'rows' are for python: sources, and {source.text} is none",
                "write files: 1 for passes of one file, or folder: _SUCCESS",
                of_key=True,
            )
        if not kind.is_file or not is_glob(source.path):
            hint = (
                f"only sets of files ({WITH_FILES}) and python: functions are streams"
            )
            if kind.is_file:
                hint = f"write a glob, such as {source.kind}:clicks/*{kind.suffixes[0]}"
            return Mistake(
                ("stream",),
                f"a stream is a set of files, but {source.text} is not a set",
                hint,
                of_key=True,
            )
        if split is not None:
            return Mistake(
                ("split",),
                "'split' cannot be used with 'stream': a split needs all rows at once",
                "write the test rows to a separate file",
                of_key=True,
            )
        if remainder == "keep":
            return Mistake(
                ("remainder",),
                "'remainder: keep' cannot be used with 'stream': rows at the end of a pass"
                " that fill no batch are left out",
                "leave remainder out",
                of_key=True,
            )
        return None

    def _check_function(
        self,
        source: Source,
        remainder: str | None,
        shuffle: bool | Window,
        batch: int | None,
    ) -> Mistake | None:
        if self.lanes is None or self.rows is None:
            return Mistake(
                ("stream",),
                f"a stream of a Python function needs 'lanes' and 'rows', and {source.text}"
                " has no files",
                "write stream: {lanes: 24, rows: 1000000}",
                of_key=True,
            )
        if shuffle is not False:
            return Mistake(
                ("shuffle",),
                "'shuffle' cannot be used with a stream of a Python function, which gives"
                " the order of the rows",
                "leave shuffle out; the function may shuffle the rows of a block",
                of_key=True,
            )
        if remainder == "keep":
            return Mistake(
                ("remainder",),
                "'remainder: keep' cannot be used with 'stream': a pass has whole batches",
                "leave remainder out",
                of_key=True,
            )
        if batch is None:
            return None
        if self.rows < batch:
            return Mistake(
                ("stream", "rows"),
                f"a pass of {self.rows} rows does not fill one batch of {batch} rows",
                f"write at least rows: {batch}",
            )
        return find_lane_mistake(self.lanes, batch)
