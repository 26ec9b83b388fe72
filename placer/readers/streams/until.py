"""The end of a command: `--until NAME` names a file of the stream, or a folder."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from placer.errors import DataError
from placer.plan.settings.data.columns import is_glob, natural_key
from placer.plan.settings.data.source import Data
from placer.readers.streams.names import unit_of
from placer.system.files.globs import would_match


@dataclass(frozen=True)
class Until:
    """The unit that ends a command.

    Attributes:
        name: a path in the form of the glob's paths; or only a name, which ends a command in
            any folder.
        is_path: whether `name` is a path. A later one ends a command as well.
    """

    name: str
    is_path: bool

    def is_reached(self, unit: str) -> bool:
        """Return whether a pass with this unit is the last one."""
        if not self.is_path:
            return os.path.basename(unit) == self.name
        return natural_key(os.path.normpath(unit)) >= natural_key(self.name)

    def has_come(self, last: str) -> bool:
        """Return whether the last trained unit has ended the command. A name without a folder may
        come again."""
        return self.is_path and self.is_reached(last)


def find_until(text: str, data: Data, folder: Path) -> Until:
    """Return the end that `--until NAME` stands for.

    Args:
        text: a path relative to `folder` or to the fixed part of the glob, or a name.
        data: the settings of the stream.
        folder: the folder that paths are relative to.

    Raises:
        DataError: if the glob of the stream matches no such file or folder.
    """
    pattern = unit_of(data, data.parsed.path)
    parts = pattern.split("/")
    fixed = next((i for i, part in enumerate(parts) if is_glob(part)), len(parts))
    fits_name = parts[-1] == "**" or fnmatchcase(text, parts[-1])
    if "/" not in text and fixed < len(parts) - 1 and fits_name:
        return Until(text, False)
    for start in ("", "/".join([*parts[:fixed], ""])):
        path = os.path.abspath(folder / f"{start}{text}")
        if would_match(pattern, folder, Path(path)):
            relative = os.path.relpath(path, os.path.abspath(folder))
            return Until(path if os.path.isabs(pattern) else relative, True)
    kind = "file" if pattern == data.parsed.path else "folder"
    raise DataError(
        f"'until' (--until) names no {kind} of {data.source}: '{text}'",
        hint=f"write the path of a {kind} that the glob may match, or its last part",
    )


def check_not_before(
    until: Until, data: Data, last: str, trained: Collection[str]
) -> None:
    """Raise DataError if the end comes before the last trained unit, and is not trained."""
    if not until.is_path or not last:
        return
    end = unit_of(data, os.path.normpath(last))
    units = (unit_of(data, os.path.normpath(path)) for path in trained)
    if natural_key(until.name) < natural_key(end) and until.name not in units:
        raise DataError(
            f"'until' (--until) names '{until.name}', which comes before '{end}', the last"
            " name that was trained",
            hint="name a later one",
        )
