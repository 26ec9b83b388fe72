"""Prediction in one process with a build of several nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from placer.plan.write import write_build


@contextmanager
def one_process_build(build: Path) -> Iterator[Path]:
    """Yield a temporary build that makes the predictions of `build` in one process.
    Raises BuildError if `build` is not a build, or was edited."""
    from placer.compiler.driver import compile_prediction

    compiled = compile_prediction(build)
    with TemporaryDirectory(prefix="placer-") as name:
        folder = Path(name) / "build"
        write_build(folder, compiled.files_in(folder))
        yield folder
