"""Where the files stand that are not Python: `grammar/` and `specs/`."""

from __future__ import annotations

from pathlib import Path

from placer.errors import PlacerError, did_you_mean

_PACKAGE = Path(__file__).resolve().parent


def find(relative: str) -> Path:
    """The path of a file such as `grammar/place.lark`, or of a folder such as `specs`.

    An installed package carries these folders in `placer/_data`; in a checkout, and in
    an editable install, they stand beside the package. Raises PlacerError for a file
    that is in neither, with the nearest name there is.
    """
    installed = _PACKAGE / "_data"
    root = installed if installed.is_dir() else _PACKAGE.parent
    path = root / relative
    if path.exists():
        return path
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    names = [entry.relative_to(root).as_posix() for entry in beside]
    raise PlacerError(
        f"placer has no file '{relative}'", hint=did_you_mean(relative, names)
    )
