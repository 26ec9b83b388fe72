"""Loads a build from a folder, or compiles a spec."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from placer.compiler.graph.graph import Graph
from placer.compiler.graph.text import parse_graphs
from placer.errors import BuildError, PlacerError
from placer.plan.folder import read_file
from placer.plan.plan import SOURCES, Plan, Positions, decode_positions, read_plan


@dataclass(frozen=True, slots=True)
class LoadedBuild:
    """The plan of a build, with access to its files.

    Attributes:
        path: the build folder, or the spec file.
        plan: the plan.
        read: returns the content of a file by its path relative to the build folder.
    """

    path: Path
    plan: Plan
    read: Callable[[str], bytes]

    def read_text(self, path: str) -> str:
        return self.read(path).decode("utf-8", errors="replace")

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The graphs of the build: training step, evaluation, prediction."""
        return parse_graphs(self.read_text("graph.txt"), str(self.path / "graph.txt"))

    @property
    def op_positions(self) -> dict[str, str]:
        """The position of each op in the spec, such as `digits.yaml:28:16`."""
        positions = self.positions
        file = Path(positions.spec).name
        return {
            name: f"{file}:{line}:{column}"
            for name, (line, column) in positions.ops.items()
        }

    @property
    def positions(self) -> Positions:
        """The line and column of each op in the spec."""
        return decode_positions(self.read(SOURCES), self.path / SOURCES)


def load_build(
    path: Path,
    *,
    nodes: Mapping[str, int] | None = None,
    overrides: Sequence[str] = (),
    single_process: bool = False,
    outputs: Sequence[str] | None = None,
    code: bool = True,
) -> LoadedBuild:
    """Read a build folder, or compile a spec file in memory, without writing files.

    The other arguments are those of `placer.compile`. Code of a build folder is never run.

    Raises:
        BuildError: the folder cannot be read, or `overrides` are given for it.
        SpecError: the spec is wrong.
    """
    if path.is_dir():
        if overrides:
            raise _set_error(path)
        return LoadedBuild(path, read_plan(path), partial(read_file, path))
    from placer.compiler.driver import compile_in_memory

    build = compile_in_memory(
        path,
        nodes=nodes,
        overrides=overrides,
        single_process=single_process,
        outputs=outputs,
        code=code,
    )
    return LoadedBuild(path, build.plan, build.files_in(Path()).__getitem__)


@contextmanager
def build_folder(
    path: Path,
    *,
    overrides: Sequence[str] = (),
    single_process: bool = False,
    outputs: Sequence[str] | None = None,
    code: bool = True,
) -> Iterator[Path]:
    """Yield a build folder to run: `path`, or a temporary folder with a compiled spec.

    The other arguments are those of `placer.compile`. For a build folder, `single_process`
    and `outputs` are left to the caller.

    Raises:
        BuildError: `overrides` or `code=False` are given for a build folder.
        SpecError: the spec is wrong.
    """
    if path.is_dir():
        if overrides:
            raise _set_error(path)
        if not code:
            raise BuildError(
                f"'{path}' is a build, which cannot be used without running its code",
                hint="leave --no-code out, or name a spec",
            )
        yield path
        return
    from placer.compiler.driver import compile

    with TemporaryDirectory() as folder:
        build = Path(folder) / "build"
        compile(
            path,
            build,
            overrides=overrides,
            single_process=single_process,
            outputs=outputs,
            code=code,
        )
        yield build


def is_spec(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a spec: a file, or a name with the suffix of a spec.

    Raises PlacerError for an object that is not a path, such as a Program.
    """
    from placer.compiler.frontend.python.read import is_python

    if not isinstance(path, str | os.PathLike):
        raise PlacerError(
            f"the build is a {type(path).__name__}, not a path",
            hint='pass a build folder, such as "build", or name the function that returns'
            ' the program: "FILE.py:FUNCTION"',
        )
    text = os.fspath(path)
    is_named = is_python(text) or text.endswith((".yaml", ".yml"))
    return os.path.isfile(path) or (is_named and not os.path.isdir(path))


def _set_error(build: Path) -> BuildError:
    """Return the error for overrides of a build's keys."""
    return BuildError(
        f"'{build}' is a build, whose keys cannot be changed",
        hint="leave --set out, or compile the spec again with it",
    )
