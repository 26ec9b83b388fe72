"""Finds files of placer that are not Python modules, in `grammar/` and `specs/`."""

from __future__ import annotations

from pathlib import Path

from placer.errors import PlacerError, did_you_mean

_PACKAGE = Path(__file__).resolve().parents[1]


def find_file(relative: str) -> Path:
    """Return the path of a file such as `grammar/place.lark`, or of a folder such as
    `specs`.

    An installed package has these folders in `placer/_data`. In a checkout and in an
    editable install, they are next to the package.

    Raises:
        PlacerError: if the file does not exist, with the most similar name as hint.
    """
    installed = _PACKAGE / "_data"
    root = installed if installed.is_dir() else _PACKAGE.parent
    path = root / relative
    if path.exists():
        return path
    entries = path.parent.iterdir() if path.parent.is_dir() else ()
    names = [entry.relative_to(root).as_posix() for entry in entries]
    raise PlacerError(
        f"placer has no file '{relative}'", hint=did_you_mean(relative, names)
    )
