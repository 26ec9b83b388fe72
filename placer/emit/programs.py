"""The programs of hosts: their jitted functions, and the steps that run them."""

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
    """The programs of a build: `files` are their texts by path in its folder, `of_host`
    says which of them each host runs."""

    files: Mapping[str, str]
    of_host: Mapping[str, str]


def programs(
    graph: Graph,
    phases: Sequence[Phase],
    tables: Mapping[str, Sequence[Table]],
    schedule: Schedule,
) -> Programs:
    """The program of every host of the graph's cluster. Hosts of a kind that run the
    same share the text, which then names none of them: `worker/program.py`, and
    `worker-0/program.py` is what a person starts."""
    known: dict[object, str] = {}
    alike: dict[tuple[str, str], list[str]] = {}  # by kind and text
    for host in graph.cluster.all_hosts():
        key = _likeness(host, phases)
        if key not in known:
            known[key] = _body(host, phases, tables[host], schedule.of(host))
        alike.setdefault((host.split(":")[0], known[key]), []).append(host)
    hooks = ", ".join(["step", "evaluate"][: len(phases)])
    files: dict[str, str] = {}
    of_host: dict[str, str] = {}
    for (kind, body), hosts in alike.items():
        if len(hosts) == 1:
            path = own_path(hosts[0])
            files[path] = f'"""{_title(hosts[0], graph)}"""\n{body}{_main(hooks)}'
        else:
            path = _shared_path(kind, files)
            files[path] = f'"""{_title(_plural(kind, 2), graph)}"""\n{body}'
            for host in hosts:
                files[own_path(host)] = _starter(host, path, graph)
        of_host.update((host, path) for host in hosts)
    return Programs(files, of_host)


def _shared_path(kind: str, taken: Container[str]) -> str:
    path, i = f"{kind}/program.py", 2
    while path in taken:
        path, i = f"{kind}/program_{i}.py", i + 1
    return path


def _starter(host: str, path: str, graph: Graph) -> str:
    """A program of which others have the same."""
    return (
        f'"""{_title(host, graph)}\n\n'
        f'It runs {path}, as others do.\n"""\n\n'
        f"from placer import runtime\n{_main('')}"
    )


def _main(hooks: str) -> str:
    arguments = f"__file__, {hooks}" if hooks else "__file__"
    return f'\n\nif __name__ == "__main__":\n    runtime.main({arguments})\n'


def _likeness(host: str, phases: Sequence[Phase]) -> object:
    """What hosts have in common that have the same program: they are alike in every
    phase, and none of them has rows of its own to cut or to fill up."""
    own = any(names_rows(phase.graph, phase.units(host)) for phase in phases)
    return host if own else tuple(phase.alike.first(host) for phase in phases)


def _body(
    host: str, phases: Sequence[Phase], tables: Sequence[Table], turns: Sequence[str]
) -> str:
    names = Names(_modules(host, phases))
    functions: list[Function] = []
    bodies: list[list[str]] = []
    for phase in phases:
        made, body = hook(host, phase, names, tables, turns)
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


def _modules(host: str, phases: Sequence[Phase]) -> list[str]:
    """The modules of the spec whose functions the host calls."""
    called = {
        op.attrs["fn"].partition(":")[0]
        for phase in phases
        for op in phase.graph.on(host)
        if op.kind == "call"
    }
    return sorted(called)


def _import(module: str, name: str) -> str:
    return f"import {module}" if name == module else f"import {module} as {name}"


def own_path(host: str) -> str:
    """Where what starts a host lies in the build folder."""
    return f"{host.replace(':', '-')}/program.py"


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
