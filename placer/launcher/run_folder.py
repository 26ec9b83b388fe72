"""Creates the folder of a run, `runs/NAME-1` or the folder that the user names, with its
build."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from placer.build.plan import OF_RUN
from placer.build.write import write_build
from placer.compiler import CompiledBuild
from placer.errors import PlacerError
from placer.launcher.checks import check_launch
from placer.launcher.data_check import check_data
from placer.launcher.supervise import Watch
from placer.runtime.run.events import Event, Step
from placer.runtime.run.options import Options

RUNS = Path("runs")


def create_run(
    compiled: CompiledBuild, options: Options, out: Path | None = None
) -> Path:
    """Create the folder of a new run with its build, and return the folder of the build.

    Args:
        compiled: the build.
        options: the options of the run.
        out: the folder of the run, see `create_run_folder`.

    Raises:
        DataError, SpecErrors: a source does not fit.
        PlacerError: the run cannot start: its folder, or files that the options name,
            cannot be used. Then there is no folder.
    """
    check_data(compiled.plan, compiled.folder, compiled.data_spans, code=False)
    is_first = out is None and not RUNS.exists()
    folder = create_run_folder(compiled.plan.name, out)
    build = folder / OF_RUN
    try:
        write_build(build, compiled.files_in(build))
        check_launch(build, options)
    except BaseException:
        shutil.rmtree(build, ignore_errors=True)
        with suppress(OSError):  # it has other files
            folder.rmdir()
            if is_first:
                RUNS.rmdir()
        raise
    return build


@contextmanager
def kept_if_trained(build: Path) -> Iterator[Watch]:
    """Remove the folder of a run that fails before a step is done, unless it has more than
    the build. Yields what must be called with the events of the run."""
    has_trained = False

    def note(event: Event) -> None:
        nonlocal has_trained
        has_trained |= isinstance(event, Step)

    try:
        yield note
    except BaseException:
        if not has_trained and [*build.parent.iterdir()] == [build]:
            shutil.rmtree(build.parent, ignore_errors=True)
        raise


def create_run_folder(name: str, out: Path | None = None) -> Path:
    """Create the folder of a new run, and return its path.

    Args:
        name: the name of the model.
        out: the folder, which must be empty if it exists. By default `runs/NAME-N` in
            the working folder, where N is 1 more than the largest number of a run of
            this model there.

    Raises:
        PlacerError: `out` contains files, or the folder cannot be created.
    """
    try:
        return _create_numbered(name) if out is None else _create(out)
    except OSError as error:
        raise PlacerError(
            f"cannot create the folder of the run '{out or RUNS}': {error.strerror}",
            hint="name another one: --out DIR (out=DIR)",
        ) from error


def _create(folder: Path) -> Path:
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise PlacerError(
            f"the folder '{folder}' contains files, which a new run would mix with",
            hint="name a new or empty folder, or leave --out (out=…) away to get a"
            " numbered one",
        )
    return folder


def _create_numbered(name: str) -> Path:
    RUNS.mkdir(mode=0o755, exist_ok=True)
    of_this_model = re.compile(rf"{re.escape(name)}-([0-9]{{1,9}})")
    matches = (of_this_model.fullmatch(each.name) for each in RUNS.iterdir())
    number = max((int(match[1]) for match in matches if match), default=0)
    while True:
        number += 1
        folder = RUNS / f"{name}-{number}"
        try:
            folder.mkdir(mode=0o755)
        except FileExistsError:  # another run has just taken the number
            continue
        return folder
