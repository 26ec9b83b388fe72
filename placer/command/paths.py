"""click types for paths that must exist."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import Any

import click

from placer.errors import PlacerError
from placer.plan.plan import RUNS, build_hint, build_of, is_build, is_build_or_run
from placer.system.files.nearest_path import SPECS, path_hint

SUFFIXES = (".yaml", ".yml", ".py")
"""The suffixes of specs that a hint may name."""


class ExistingPath(click.Path):
    """A path that must exist. The error for a missing path names the closest existing
    path.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(exists=True, path_type=Path, **settings)

    def hint(self, path: str) -> str | None:
        """Return a hint for a missing path."""
        return path_hint(path, self._is_wanted)

    def _is_wanted(self, path: Path) -> bool:
        return self.file_okay if path.is_file() else self.dir_okay and path.is_dir()

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            if hint := self.hint(str(value)):
                self.fail(f"{error.message.removesuffix('.')}; {hint}", param, ctx)
            raise


class SpecPath(ExistingPath):
    """A spec file, or `FILE.py:FUNCTION`; the file must exist. May allow builds."""

    def hint(self, path: str) -> str | None:
        """Return a hint with the nearest specs, and builds if they are allowed."""
        has_suffix = not self.dir_okay or path.endswith(SUFFIXES)
        folders = (SPECS,) if has_suffix else (RUNS, SPECS)
        return path_hint(path, self._is_wanted, folders, self._shown, lists=True)

    def _shown(self, path: str) -> str:
        return build_of(path)

    def _is_wanted(self, path: Path) -> bool:
        if path.is_dir():
            return self.dir_okay and is_build_or_run(path)
        return path.suffix in SUFFIXES and path.is_file()

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        file, colon, function = str(value).rpartition(":")
        if not (colon and file.endswith(".py")):
            return super().convert(value, param, ctx)
        path: Any = super().convert(file, param, ctx)
        return Path(f"{path}:{function}")


class SpecOrRunPath(SpecPath):
    """A build, a spec, or the folder of a run."""

    def _is_wanted(self, path: Path) -> bool:
        from placer.report.run_files import is_run

        return super()._is_wanted(path) or (path.is_dir() and is_run(path))

    def _shown(self, path: str) -> str:
        return path


def build_in(path: Path) -> Path:
    """Return the build in the folder of a run. Return builds and specs as they are.

    Raises:
        PlacerError: the build of the run is missing.
    """
    from placer.report.run_files import is_run, read_run

    if not path.is_dir() or is_build(path):
        return path
    if is_run(path):
        if (build := read_run(path).build) is None:
            raise PlacerError(
                f"the build of the run '{path}' is missing",
                hint="name the build or the spec of the run",
            )
        return build
    return Path(build_of(str(path)))


class SavedPath(ExistingPath):
    """A checkpoint, a folder of checkpoints, or a file of parameters."""

    def hint(self, path: str) -> str | None:
        """Return a hint with the nearest path, or the nearest checkpoints of a run."""
        from placer.checkpoint.choice import checkpoints_hint

        return super().hint(path) or checkpoints_hint(path)


class BuildPath(ExistingPath):
    """A build folder. The error for a spec says how to train and to compile it."""

    def hint(self, path: str) -> str | None:
        """Return a hint with the nearest build, or all builds."""
        return build_hint(path)

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
