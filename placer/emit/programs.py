"""The node programs of a build: jitted functions, and the steps that call them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from placer.analysis.schedule import Schedule
from placer.analysis.units import LoweredGraph
from placer.build.plan import Table
from placer.emit.bundles import Bundles
from placer.emit.code import Line
from placer.emit.function import Function, has_row_indices
from placer.emit.names import Names
from placer.emit.roles import parameter_of
from placer.emit.step import emit_hook
from placer.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class Programs:
    """The node programs of a build.

    `files` are their texts, by path in the build folder; `of_node` is the path of the
    program that each node runs. `about` says for lines of programs what an error there
    is about, by path and number: a function, then ops of the spec.
    """

    files: Mapping[str, str]
    of_node: Mapping[str, str]
    about: Mapping[str, Mapping[int, tuple[str, ...]]]


def emit_programs(
    graph: Graph,
    graphs: Sequence[LoweredGraph],
    tables: Mapping[str, Sequence[Table]],
    schedule: Schedule,
) -> Programs:
    """Emit the program of every node of the graph's cluster.

    Nodes of a kind with equal programs share one file without a node's name, such as
    `worker/program.py`. Each of them also gets `worker-0/program.py`, which a user can
    start.
    """
    known: dict[object, tuple[Line, ...]] = {}
    sharing: dict[tuple[str, tuple[Line, ...]], list[str]] = {}  # nodes, by their kind
    for node in graph.cluster.all_nodes():
        key = _program_key(node, graphs)
        if key not in known:
            known[key] = _emit_body(node, graphs, tables, schedule.task_names(node))
        sharing.setdefault((node.split(":")[0], known[key]), []).append(node)
    hooks = ", ".join(["step", "evaluate"][: len(graphs)])
    files: dict[str, str] = {}
    of_node: dict[str, str] = {}
    about: dict[str, dict[int, tuple[str, ...]]] = {}
    for (kind, lines), nodes in sharing.items():
        body = "\n".join(line.text for line in lines)
        if len(nodes) == 1:
            path = program_path(nodes[0])
            head = _docstring(nodes[0], graph, body)
            files[path] = f"{head}\n{body}{_emit_main(hooks)}"
        else:
            path = _shared_path(kind, files)
            head = _docstring(_plural(kind, 2), graph, body)
            files[path] = f"{head}\n{body}"
            for node in nodes:
                files[program_path(node)] = _emit_starter(node, path, graph)
        of_node.update((node, path) for node in nodes)
        first = len(head.splitlines()) + 1
        numbered = enumerate(lines, first)
        about[path] = {i: line.about for i, line in numbered if line.about}
    return Programs(files, of_node, about)


def _shared_path(kind: str, used: Container[str]) -> str:
    path, i = f"{kind}/program.py", 2
    while path in used:
        path, i = f"{kind}/program_{i}.py", i + 1
    return path


def _emit_starter(node: str, path: str, graph: Graph) -> str:
    """The program that starts a node whose code is in a shared file."""
    return (
        f'"""{_title(node, graph)}\n\n'
        f'Runs {path}, which other nodes share.\n"""\n\n'
        f"from placer import runtime\n{_emit_main('')}"
    )


def _emit_main(hooks: str) -> str:
    arguments = f"__file__, {hooks}" if hooks else "__file__"
    return f'\n\nif __name__ == "__main__":\n    runtime.main({arguments})\n'


def _program_key(node: str, graphs: Sequence[LoweredGraph]) -> object:
    """A key that nodes with equal programs have in common.

    They are of one class in every graph, and their programs do not contain the indices
    of the rows that each of them has.
    """
    own = any(
        has_row_indices(lowered.graph, lowered.units_on(node)) for lowered in graphs
    )
    return (
        node
        if own
        else tuple(lowered.node_classes.representative(node) for lowered in graphs)
    )


def _emit_body(
    node: str,
    graphs: Sequence[LoweredGraph],
    tables: Mapping[str, Sequence[Table]],
    task_names: Sequence[str],
) -> tuple[Line, ...]:
    names = Names(_modules(node, graphs))
    bundles = _bundles(node, graphs, tables, names)
    functions: list[Function] = []
    bodies: list[list[Line]] = []
    for lowered in graphs:
        emitted, body = emit_hook(
            node, lowered, names, tables[node], bundles, task_names
        )
        functions += emitted
        bodies.append(body)
    imports = [*bundles.imports]
    if any(each.lines[0].text.startswith("@functools") for each in functions):
        imports.insert(0, "import functools")
    head = ["", *imports, *[""] * bool(imports)]
    head += ["from placer import runtime  # first: before jax loads", ""]
    if functions:
        head += ["import jax", "", "from placer import ops", ""]
    if names.modules:
        head += [*(_import(*each) for each in names.modules.items()), ""]
    if bundles.lines:
        head += [*bundles.lines, ""]
    lines = [*map(Line, head)]
    for body in [*([*each.lines] for each in functions), *bodies]:
        lines += [Line(""), *body, Line("")]
    return tuple(lines)


def _bundles(
    node: str,
    graphs: Sequence[LoweredGraph],
    tables: Mapping[str, Sequence[Table]],
    names: Names,
) -> Bundles:
    """The tables of a node, and what its functions take of the parameters of others."""
    graph = graphs[0].graph
    bundles = Bundles(graph, names)
    for table in tables[node]:
        types = {
            block.name: str(graph.tensor_type(block.name)) for block in table.blocks
        }
        bundles.add(table.name, types)
    table_of: dict[str, str] = {}
    for each in tables.values():
        for table in each:
            table_of |= {block.name: table.name for block in table.blocks}
            table_of |= {block.parameter: table.name for block in table.blocks}
    others: dict[str, dict[str, str]] = {}
    for lowered in graphs:
        for unit in lowered.units_on(node):
            for name in unit.inputs if unit.computed else ():
                parameter = parameter_of(lowered.graph, name)
                if parameter in table_of and parameter not in bundles.of_member:
                    types = others.setdefault(table_of[parameter], {})
                    types[parameter] = str(lowered.graph.tensor_type(name))
    written = (op.name.rsplit(".block", 1)[0] for op in graph.of_kind("parameter"))
    order = {parameter: i for i, parameter in enumerate(dict.fromkeys(written))}
    for name, types in others.items():
        key = name if name not in bundles.of_table else f"{name} parameters"
        bundles.add(key, dict(sorted(types.items(), key=lambda each: order[each[0]])))
    return bundles


def _modules(node: str, graphs: Sequence[LoweredGraph]) -> list[str]:
    """The modules of the spec whose functions the node's `call` ops call."""
    called = {
        op.attrs["fn"].partition(":")[0]
        for lowered in graphs
        for op in lowered.graph.ops_on(node)
        if op.kind == "call"
    }
    return sorted(called)


def _import(module: str, name: str) -> str:
    return f"import {module}" if name == module else f"import {module} as {name}"


def program_path(node: str) -> str:
    """Return the path, in the build folder, of the program that starts a node."""
    return f"{node.replace(':', '-')}/program.py"


def _docstring(owner: str, graph: Graph, body: str) -> str:
    """The docstring of a program, with the letters that it uses."""
    letters = [
        ("p", "parameters", "node.parameters(" in body or "p: " in body),
        ("g", "their gradients", "\n    g = " in body or "g: " in body),
        ("s", "what a function saves for a later one", "ops.Saved()" in body),
        ("d_x", "the gradient of x", " d_" in body),
    ]
    legend = ", ".join(f"{name}: {text}" for name, text, is_used in letters if is_used)
    more = f"\n\n{legend}.\n" if legend else ""
    return f'"""{_title(owner, graph)}{more}"""'


def _title(owner: str, graph: Graph) -> str:
    """The first line of a program's docstring."""
    kinds = ", ".join(
        f"{k.count} {_plural(k.name, k.count)}" for k in graph.cluster.kinds
    )
    return (
        f"{owner} of {graph.name}: {kinds}. "
        "Compiled by placer; change the spec, not this file."
    )


def _plural(name: str, count: int) -> str:
    word = {"ps": "server"}.get(name, name)
    return word if count == 1 else f"{word}s"
