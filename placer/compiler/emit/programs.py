"""Emits the node programs of a build: jitted functions, and the hooks that call them."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from msgspec import structs

from placer.compiler.emit.bundles import Bundles, Contents, Role
from placer.compiler.emit.code import INDENT, WIDTH, About, Line
from placer.compiler.emit.computed import has_row_indices
from placer.compiler.emit.constants import Constants
from placer.compiler.emit.edge_names import EdgeNames
from placer.compiler.emit.function import Function
from placer.compiler.emit.layer_kinds import find_layer_kinds
from placer.compiler.emit.names import Names
from placer.compiler.emit.roles import parameter_of
from placer.compiler.emit.shared_model import share_model
from placer.compiler.emit.step import Written, emit_hook, emit_serve
from placer.compiler.graph.declared import calls_user_code
from placer.compiler.graph.graph import Graph
from placer.compiler.schedule.schedule import Schedule
from placer.compiler.schedule.units import LoweredGraph
from placer.place.ids import format_nodes
from placer.place.node_kinds import NodeId
from placer.plan.hooks import SERVE
from placer.plan.plan import Table


@dataclass(frozen=True, slots=True)
class Programs:
    """The node programs of a build.

    Attributes:
        files: the text of each program, by its path in the build folder.
        of_node: the path of the program that each node runs.
        about: for the lines of each program, by number: the function of the line, then
            the ops of the spec that the line computes.
        segments: for each program, the segment of a training step that each jitted
            function computes.
    """

    files: dict[str, str]
    of_node: dict[str, str]
    about: dict[str, Mapping[int, About]]
    segments: dict[str, dict[str, int]]


def emit_programs(
    graph: Graph,
    graphs: Sequence[LoweredGraph],
    tables: Mapping[str, Sequence[Table]],
    schedule: Schedule,
) -> Programs:
    """Emit the program of every node of the graph's cluster.

    Nodes of one kind with equal programs share a file, such as `worker/program.py`. For
    each process of these nodes, a short program such as `worker-0/program.py` starts it.
    """
    bodies: dict[str, _Body] = {}
    kinds = find_layer_kinds(graphs[0].graph)
    edge_names = EdgeNames(graphs)
    sharing: dict[tuple[str, str], tuple[_Body, list[str]]] = {}  # by kind and text
    for node, same in _group_by_program(graphs).items():
        if same not in bodies:
            task_names = schedule.task_names(same)
            bodies[same] = _emit_body(
                same, graphs, tables, kinds, task_names, edge_names
            )
        body = bodies[same]
        sharing.setdefault((node.kind, body.text), (body, []))[1].append(node)
    programs = Programs({}, {}, {}, {})
    files = programs.files
    for (kind, text), (body, nodes) in sharing.items():
        if len(nodes) == 1:
            path, owner = program_path(nodes[0]), str(nodes[0])
        else:
            is_of_all = len(nodes) == graph.cluster.kind(kind).size
            owner = _plural(kind, 2) if is_of_all else format_nodes(nodes)
            path = _shared_path(kind, files)
        head = _docstring(owner, graph, body.legend)
        files[path] = f"{head}\n{text}{_emit_main(', '.join(body.hooks))}"
        programs.of_node.update(dict.fromkeys(nodes, path))
        programs.segments[path] = body.segments
        first = head.count("\n") + 2
        programs.about[path] = {first + i: about for i, about in body.about.items()}
    processes: dict[str, list[NodeId]] = {}
    for node in graph.cluster.all_nodes():
        processes.setdefault(node.process, []).append(node)
    for process, threads in processes.items():
        if (path := program_path(process)) not in files:
            paths = [programs.of_node[node] for node in threads]
            files[path] = _emit_starter(process, paths, graph)
    return programs


@dataclass(frozen=True, slots=True)
class _Body:
    """A program without its docstring. `legend` explains its names there."""

    text: str
    hooks: Sequence[str]
    about: Mapping[int, About]
    legend: str
    segments: dict[str, int]


def _shared_path(kind: str, used: Container[str]) -> str:
    path, i = f"{kind}/program.py", 2
    while path in used:
        path, i = f"{kind}/program_{i}.py", i + 1
    return path


def _emit_starter(process: str, paths: Sequence[str], graph: Graph) -> str:
    """Return the program that starts a process and runs the programs of other files."""
    of_others = "which other nodes share"
    if len(paths) > 1:
        of_others = f"in {len(paths)} threads"
    return (
        f'"""{_title(process, graph)}\n'
        f'Runs {" and ".join(dict.fromkeys(paths))}, {of_others}.\n"""\n\n'
        f"from placer import runtime\n{_emit_main('')}"
    )


def _emit_main(hooks: str) -> str:
    arguments = f"__file__, {hooks}" if hooks else "__file__"
    return f'\n\nif __name__ == "__main__":\n    runtime.main({arguments})\n'


def _group_by_program(graphs: Sequence[LoweredGraph]) -> dict[NodeId, NodeId]:
    """Return for each node the first node with an equal program."""
    # Such nodes run the same ops, and their programs contain no indices of rows.
    representatives: dict[tuple[str, ...], NodeId] = {}
    has_indices: dict[str, bool] = {}
    equal = {}
    for node in graphs[0].graph.cluster.all_nodes():
        key = tuple([each.node_classes.representative(node) for each in graphs])
        equal[node] = same = representatives.setdefault(key, node)
        if same not in has_indices:
            units = ((each.graph, each.units_on(same)) for each in graphs)
            has_indices[same] = any(has_row_indices(*each) for each in units)
        if has_indices[same]:
            equal[node] = node
    return equal


def _emit_body(
    node: str,
    graphs: Sequence[LoweredGraph],
    tables: Mapping[str, Sequence[Table]],
    kinds: Mapping[str, str],
    task_names: Sequence[str],
    edge_names: EdgeNames,
) -> _Body:
    names = Names(_modules(node, graphs))
    constants = Constants(node, graphs, names, edge_names)
    bundles = _bundles(node, graphs, tables, names, kinds)
    functions: dict[str, list[Function]] = {}
    hooks: dict[str, list[Written]] = {}
    for lowered in graphs:
        functions[lowered.hook], hooks[lowered.hook] = emit_hook(
            node, lowered, names, tables[node], bundles, constants, task_names
        )
        if lowered.hook == "step" and lowered.units_of_messages(node):
            functions[SERVE], hooks[SERVE] = emit_serve(
                node, lowered, names, tables[node], bundles, constants
            )
    shared = share_model(
        functions.pop("evaluate", ()), functions.pop("predict", ()), names
    )
    in_order = [*shared.models, *chain(*functions.values()), *shared.others]
    imports = [*bundles.imports]
    if any(function.jit_options for function in in_order):
        imports.insert(0, "import functools")
    head = ["", *imports, *[""] * bool(imports)]
    head += ["from placer import runtime  # first: before jax loads", ""]
    if in_order:
        head += ["import jax", "", "from placer import ops", ""]
    if names.modules:
        head += [*(_import(*each) for each in names.modules.items()), ""]
    if defined := constants.lines():
        head += [*defined, ""]
    if classes := bundles.lines():
        head += [*classes, ""]
    lines = [*map(Line, head)]
    definitions = [function.lines() for function in in_order]
    definitions += [[*_hook_lines(hook, shared.renamed)] for hook in hooks.values()]
    for definition in definitions:
        lines += [Line(""), *definition, Line("")]
    about = {
        i: _renamed(line.about, shared.renamed)
        for i, line in enumerate(lines)
        if line.about
    }
    text = "\n".join(line.text for line in lines)
    segments = {
        function.name: function.segment
        for hook in ("step", SERVE)
        for function in functions.get(hook, ())
        if function.segment is not None
    }
    legend = _legend(names.conventions, bundles)
    return _Body(text, tuple(hooks), about, legend, segments)


def _hook_lines(hook: Iterable[Written], renamed: Mapping[str, str]) -> Iterator[Line]:
    """Yield the lines of a hook, with the new names of the functions that it calls."""
    for item in hook:
        if isinstance(item, Line):
            yield item
            continue
        name = renamed.get(item.call.function, item.call.function)
        yield from structs.replace(item.call, function=name).lines(item.depth)


def _renamed(about: About, renamed: Mapping[str, str]) -> About:
    function, *ops = about
    return (renamed[function], *ops) if function in renamed else about


def _bundles(
    node: str,
    graphs: Sequence[LoweredGraph],
    tables: Mapping[str, Sequence[Table]],
    names: Names,
    kinds: Mapping[str, str],
) -> Bundles:
    """Return the bundles of the node's tables and of received parameters, by table name."""
    graph = graphs[0].graph
    contents: dict[str, Contents] = {}
    for table in tables[node]:
        blocks = [block.name for block in table.blocks]
        types = {name: str(graph.tensor_type(name)) for name in blocks}
        written = {block.name: block.parameter for block in table.blocks}
        contents[table.name] = Contents(
            table.name,
            table.name,
            _role(graph, table),
            types,
            written if table.local else {},
        )
    own = {name for each in contents.values() for name in each.types}
    table_of = {
        name: table
        for stored in tables.values()
        for table in stored
        if not table.local
        for block in table.blocks
        for name in (block.name, block.parameter)
    }
    used = {
        parameter: str(lowered.graph.tensor_type(value))
        for lowered in graphs
        for unit in lowered.units_on(node)
        if unit.computed
        for value in unit.inputs
        if (parameter := parameter_of(lowered.graph, value)) is not None
    }
    others: dict[str, tuple[Table, dict[str, str]]] = {}
    for op in graph.parameters:
        for name in (op.name, op.attrs.get("whole", op.name)):
            if name in used and name not in own:
                table = table_of[name]
                is_stored = any(table.name == each.name for each in tables[node])
                key = f"{table.name} parameters" if is_stored else table.name
                others.setdefault(key, (table, {}))[1][name] = used[name]
    for key, (table, types) in others.items():
        contents[key] = Contents(key, table.name, _role(graph, table), types, {})
    in_order = sorted(contents.values(), key=lambda each: _natural(each.key))
    return Bundles(in_order, names, kinds, _numbered(node, graphs, in_order))


def _numbered(
    node: str, graphs: Sequence[LoweredGraph], contents: Iterable[Contents]
) -> set[str]:
    """Return the roles for which a hook of the node uses several tables."""
    contents_of = {member: each for each in contents for member in each.types}
    numbered: set[str] = set()
    for lowered in graphs:
        values: set[str] = set()
        for unit in lowered.units_on(node):
            if unit.computed:
                values.update(unit.inputs)
            elif unit.ops[0].kind in ("parameter", "local_parameter"):
                values.update(op.name for op in unit.ops)
        found = {parameter_of(lowered.graph, value) or "" for value in values}
        seen = {(c.role, c.table) for name in found if (c := contents_of.get(name))}
        roles = Counter(role for role, _ in seen)
        numbered |= {role for role, count in roles.items() if count > 1}
    return numbered


def _role(graph: Graph, table: Table) -> Role:

    if table.rule is not None:
        return "p"
    is_state = graph.producers[table.blocks[0].name].attrs.get("state")
    return "state" if is_state else "frozen"


def _natural(name: str) -> list[tuple[int, str]]:
    """Return the key that sorts `dense2` before `dense10`."""
    parts = re.findall(r"(\d+)|(\D+)", name)
    return [(int(number or 0), text) for number, text in parts]


def _modules(node: str, graphs: Sequence[LoweredGraph]) -> list[str]:
    """Return the user modules that define functions called by the node's ops."""
    called = {
        op.attrs["fn"].partition(":")[0]
        for lowered in graphs
        for op in lowered.graph.ops_on(node)
        if calls_user_code(op)
    }
    return sorted(called)


def _import(module: str, name: str) -> str:
    return f"import {module}" if name == module else f"import {module} as {name}"


def program_path(node: str) -> str:
    """Return the path of the program that starts a node, relative to the build folder."""
    return f"{NodeId(node).stem}/program.py"


_CONVENTIONS = {
    r"p\d*": "parameters",
    r"p\d*_range": "this node's range of the flattened parameters",
    r"g\d*": "their gradients",
    r"g\d*_sum": "gradients summed over nodes",
    r"g\d*_range": "this node's range of their sum over nodes, flattened",
    r"g\d*_total": "gradients summed over microbatches",
    r"delta\d*": "the change that one worker has sent, as old - new values",
    r"delta\d*_mean": "the mean over all workers of old - new values",
    r"s": "values saved for a later function",
    r"d_NAME": "the gradient of NAME",
    r"d_NAME_from_OP": "the term of d_NAME from OP, which uses NAME",
    r"d_NAME_range": "this node's range of its sum, flattened",
    r"NAME_res": "the values that NAME's backward needs",
    r"NAME_DIGEST_NAME": "a long name, shortened: see `short_name` in plan.json",
    r"count": "the rows of the batch on all nodes together, by which a mean loss divides",
}
"""The meaning of conventional names, by a pattern of the names."""


def _legend(conventions: Iterable[str], bundles: Bundles) -> str:
    """Return the explanation of the conventional names in use."""
    tables = {each.variable: each.table for each in bundles.of_table.values()}
    used = []
    for pattern, text in _CONVENTIONS.items():
        names = sorted(n for n in conventions if re.fullmatch(pattern, n))
        if len(names) > 1 and tables.keys() >= {*names}:
            text += f" of the tables {', '.join(tables[name] for name in names)}"
        used += [f"{', '.join(names)}: {text}"] if names else []
    if not used:
        return ""
    legend = textwrap.wrap(f"{'; '.join(used)}.", WIDTH, break_on_hyphens=False)
    return "".join(f"{line}\n" for line in legend)


def _docstring(owner: str, graph: Graph, legend: str) -> str:
    """Return the docstring of a program; the legend explains its conventional names."""
    return f'"""{_title(owner, graph)}\n{legend}"""'


def _title(owner: str, graph: Graph) -> str:
    """Return the first lines of a program's docstring."""
    kinds = ", ".join(
        f"{k.count} {_plural(k.name, k.count)}"
        + (
            ""
            if k.threads is None
            else f" ({k.threads} {_plural('thread', k.threads)})"
        )
        for k in graph.cluster.kinds
    )
    title = f"{owner} of {graph.name}: {kinds}."
    wrapped = textwrap.fill(title, WIDTH - len(INDENT), break_on_hyphens=False)
    return f"{wrapped}\n\nCompiled by placer; change the spec, not this file."


def _plural(name: str, count: int) -> str:
    word = {"ps": "server"}.get(name, name)
    return word if count == 1 else f"{word}s"
