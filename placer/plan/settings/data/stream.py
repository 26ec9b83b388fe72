"""The setting `stream` of `data.train`: a set of files that grows while a run trains it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from placer.plan.settings.data.columns import is_glob
from placer.plan.settings.data.sources import WITH_FILES, Source
from placer.plan.settings.fields import Count, doc
from placer.plan.settings.mistake import Mistake, refuse


class Stream(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Train a set of files in passes. A pass is an epoch over the next files of the set."""

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

    def __post_init__(self) -> None:
        """Raise MistakeError if an option is wrong."""
        refuse(self._find_mistake())

    def _find_mistake(self) -> Mistake | None:
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

    def check(
        self, source: Source, split: str | None, remainder: str | None
    ) -> Mistake | None:
        """Return a mistake in a stream of a source, or None."""
        kind = source.declaration
        if not kind.is_file or not is_glob(source.path):
            hint = f"for now, only sets of files are streams: {WITH_FILES}"
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
