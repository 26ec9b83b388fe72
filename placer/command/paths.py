"""click types for paths that must exist."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import Any

import click

from placer.plan.plan import OF_RUN, is_build
from placer.system.files.nearest_path import path_hint


class ExistingPath(click.Path):
    """A path that must exist. The error for a missing path names the closest existing
    path.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(exists=True, path_type=Path, **settings)

    def is_wanted(self, path: Path) -> bool:
        """Return True if an existing path is a plausible suggestion."""
        return self.file_okay if path.is_file() else self.dir_okay and path.is_dir()

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            if hint := path_hint(value, self.is_wanted):
                self.fail(f"{error.message.removesuffix('.')}; {hint}", param, ctx)
            raise


class SpecPath(ExistingPath):
    """A spec file, or `FILE.py:FUNCTION`; the file must exist."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        file, colon, function = str(value).rpartition(":")
        if not (colon and file.endswith(".py")):
            return super().convert(value, param, ctx)
        path: Any = super().convert(file, param, ctx)
        return Path(f"{path}:{function}")


class BuildPath(ExistingPath):
    """A build folder. The error for a spec says how to train and to compile it."""

    def is_wanted(self, path: Path) -> bool:
        """Return True for a build, and for the folder of a run, which contains a build."""
        return is_build(path) or is_build(path / OF_RUN)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        if (
            self.allow_dash and str(value) == "-"
        ):  # click itself allows "-" only for files
            return Path("-")
        file, colon, _ = str(value).rpartition(":")
        if os.path.isfile(value) or (colon and file.endswith(".py")):
            spec = quote(str(value))
            self.fail(
                f"'{value}' is a spec; train it with: placer train {spec}, or compile"
                f" it first: placer compile {spec} --out build/",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)
