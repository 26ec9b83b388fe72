"""The code for serving in a build whose run publishes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from placer.plan.folder import read_file

if TYPE_CHECKING:
    from placer.plan.plan import Plan

FOLDER: Final = "serving/"
"""The folder of the code in a build."""


class Serving(Struct, frozen=True):
    """The model that a run publishes.

    Attributes:
        parameters: the parameters that its outputs depend on.
        tables: its sparse tables, by name, with the dtype of their keys.
    """

    parameters: tuple[str, ...]
    tables: dict[str, str] = {}


def serving_files(plan: Plan, build: Path) -> dict[str, bytes]:
    """Return the code of a build for serving, by path in the folder of publications.

    Raises BuildError if a file is missing or was edited.
    """
    return {
        path.removeprefix(FOLDER): read_file(build, path, digest)
        for path, digest in plan.files.items()
        if path.startswith(FOLDER)
    }
