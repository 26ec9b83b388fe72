"""The programs of nodes: their jitted functions, and the steps that run them."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from placer.analysis.schedule import Schedule
from placer.analysis.units import Phase
from placer.build.plan import Table
from placer.emit.names import Names
from placer.emit.segments import Function, names_rows
from placer.emit.step import hook
from placer.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs of a build: `files` are their texts by path in its folder, `of_node`
    says which of them each node runs."""

    files: Mapping[str, str]
    of_node: Mapping[str, str]


def programs(
    graph: Graph,
    phases: Sequence[Phase],
    tables: Mapping[str, Sequence[Table]],
    schedule: Schedule,
) -> Programs:
    """The program of every node of the graph's cluster. Nodes of a kind that run the
    same share the text, which then names none of them: `worker/program.py`, and
    `worker-0/program.py` is what a person starts."""
    known: dict[object, str] = {}
    alike: dict[tuple[str, str], list[str]] = {}  # by kind and text
    for node in graph.cluster.all_nodes():
        key = _likeness(node, phases)
        if key not in known:
            known[key] = _body(node, phases, tables[node], schedule.of(node))
        alike.setdefault((node.split(":")[0], known[key]), []).append(node)
    hooks = ", ".join(["step", "evaluate"][: len(phases)])
    files: dict[str, str] = {}
    of_node: dict[str, str] = {}
    for (kind, body), nodes in alike.items():
        if len(nodes) == 1:
            path = own_path(nodes[0])
            files[path] = f'"""{_title(nodes[0], graph)}"""\n{body}{_main(hooks)}'
        else:
            path = _shared_path(kind, files)
            files[path] = f'"""{_title(_plural(kind, 2), graph)}"""\n{body}'
            for node in nodes:
                files[own_path(node)] = _starter(node, path, graph)
        of_node.update((node, path) for node in nodes)
    return Programs(files, of_node)


def _shared_path(kind: str, taken: Container[str]) -> str:
    path, i = f"{kind}/program.py", 2
    while path in taken:
        path, i = f"{kind}/program_{i}.py", i + 1
    return path


def _starter(node: str, path: str, graph: Graph) -> str:
    """A program of which others have the same."""
    return (
        f'"""{_title(node, graph)}\n\n'
        f'It runs {path}, as others do.\n"""\n\n'
        f"from placer import runtime\n{_main('')}"
    )


def _main(hooks: str) -> str:
    arguments = f"__file__, {hooks}" if hooks else "__file__"
    return f'\n\nif __name__ == "__main__":\n    runtime.main({arguments})\n'


def _likeness(node: str, phases: Sequence[Phase]) -> object:
    """What nodes have in common that have the same program: they are alike in every
    phase, and none of them has rows of its own to cut or to fill up."""
    own = any(names_rows(phase.graph, phase.units(node)) for phase in phases)
    return node if own else tuple(phase.alike.first(node) for phase in phases)


def _body(
    node: str, phases: Sequence[Phase], tables: Sequence[Table], turns: Sequence[str]
) -> str:
    names = Names(_modules(node, phases))
    functions: list[Function] = []
    bodies: list[list[str]] = []
    for phase in phases:
        made, body = hook(node, phase, names, tables, turns)
        functions += made
        bodies.append(body)
    lines = [""]
    if any(made.lines[0].startswith("@functools") for made in functions):
        lines += ["import functools", ""]
    lines += ["from placer import runtime  # first: before jax loads", ""]
    if functions:
        lines += ["import jax", "", "from placer import ops", ""]
    if names.modules:
        lines += [*(_import(*each) for each in names.modules.items()), ""]
    for each in functions:
        lines += ["", *each.lines, ""]
    for body in bodies:
        lines += ["", *body, ""]
    return "\n".join(lines)


def _modules(node: str, phases: Sequence[Phase]) -> list[str]:
    """The modules of the spec whose functions the node calls."""
    called = {
        op.attrs["fn"].partition(":")[0]
        for phase in phases
        for op in phase.graph.on(node)
        if op.kind == "call"
    }
    return sorted(called)


def _import(module: str, name: str) -> str:
    return f"import {module}" if name == module else f"import {module} as {name}"


def own_path(node: str) -> str:
    """Where what starts a node lies in the build folder."""
    return f"{node.replace(':', '-')}/program.py"


def _title(whose: str, graph: Graph) -> str:
    """The first line of a program."""
    kinds = ", ".join(
        f"{k.count} {_plural(k.name, k.count)}" for k in graph.cluster.kinds
    )
    return (
        f"{whose} of {graph.name}: {kinds}. "
        "Compiled by placer; change the spec, not this file."
    )


def _plural(name: str, count: int) -> str:
    word = {"ps": "server"}.get(name, name)
    return word if count == 1 else f"{word}s"


def sources(graph: Graph) -> Iterator[tuple[str, str, int, int]]:
    """Where each op of the graph was written: name, file, line, column."""
    for op in graph.ops:
        if op.source is not None:
            yield op.name, op.source.file, op.source.line, op.source.column
