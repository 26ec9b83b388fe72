"""A build to look at: a build folder, or a spec that is compiled for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from placer.graph.graph import Graph
from placer.graph.text import parse_graphs
from placer.plan import Plan, read_plan, read_sources


@dataclass(frozen=True, slots=True)
class Opened:
    """A build's folder, its plan and its graphs: of a step, then of an evaluation."""

    folder: Path
    plan: Plan

    @property
    def graphs(self) -> tuple[Graph, ...]:
        file = self.folder / "graph.txt"
        return parse_graphs(
            file.read_text(encoding="utf-8", errors="replace"), str(file)
        )

    @property
    def written(self) -> dict[str, str]:
        """Where in the spec each op stands, as `digits.yaml:28:16`."""
        return read_positions(self.folder)


@contextmanager
def opened(
    path: Path,
    *,
    nodes: Mapping[str, int] | None = None,
    single_process: bool = False,
    code: bool = True,
) -> Iterator[Opened]:
    """The build of a folder, or of a spec file, which is compiled into a temporary one.

    Without `code`, no Python of a spec is run; a build's is not in any case. Raises
    what reading the folder or compiling the spec raises.
    """
    if path.is_dir():
        yield Opened(path, read_plan(path))
        return
    from placer.compiler import compile

    with TemporaryDirectory(prefix="placer-") as folder:
        plan = compile(
            path, folder, nodes=nodes, single_process=single_process, code=code
        )
        yield Opened(Path(folder), plan)


def read_positions(folder: Path) -> dict[str, str]:
    """Where in the spec each op stands, from a build's sources."""
    sources = read_sources(folder)
    file = Path(sources.spec).name
    return {
        name: f"{file}:{line}:{column}" for name, (line, column) in sources.ops.items()
    }
