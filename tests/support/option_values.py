"""Values of the options of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from placer.runtime.control.options import Option


def another_value(option: Option, folder: Path) -> Any:
    """Return a valid value that is not the default."""
    if option.file == "folder":
        return folder
    if option.name == "trace_steps":
        return "10:30"
    if option.parse:
        return "10s"
    if option.file:
        (folder / "file name").write_text("")
        return folder / "file name"
    if option.choices:
        return option.choices[-1]
    if option.default is False:
        return True
    return 0.1 + 0.2 if option.seconds else 7
