"""A build to look at: a build folder, or a spec that is compiled in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from placer.build.folder import read_file
from placer.build.plan import SOURCES, Plan, decode_sources, read_plan
from placer.graph.graph import Graph
from placer.graph.text import parse_graphs


@dataclass(frozen=True, slots=True)
class Opened:
    """A build's plan, and its files by path; `name` is where it lies, or its spec."""

    name: Path
    plan: Plan
    read: Callable[[str], bytes]

    def text(self, path: str) -> str:
        return self.read(path).decode("utf-8", errors="replace")

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The graph of a step, then that of an evaluation."""
        return parse_graphs(self.text("graph.txt"), str(self.name / "graph.txt"))

    @property
    def written(self) -> dict[str, str]:
        """Where in the spec each op stands, as `digits.yaml:28:16`."""
        sources = decode_sources(self.read(SOURCES), self.name / SOURCES)
        file = Path(sources.spec).name
        return {
            name: f"{file}:{line}:{column}"
            for name, (line, column) in sources.ops.items()
        }


def opened(
    path: Path,
    *,
    nodes: Mapping[str, int] | None = None,
    single_process: bool = False,
    code: bool = True,
) -> Opened:
    """The build of a folder, or of a spec file, which is compiled; nothing is written.

    Without `code`, no Python of a spec is run; a build's is not in any case. Raises
    what reading the folder or compiling the spec raises.
    """
    if path.is_dir():
        plan = read_plan(path)
        return Opened(path, plan, partial(read_file, path))
    from placer.compiler import compiled

    made = compiled(path, Path(), nodes=nodes, single_process=single_process, code=code)
    return Opened(path, made.plan, made.files.__getitem__)
