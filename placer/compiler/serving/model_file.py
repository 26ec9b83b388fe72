"""Writes model.py: the graph of a prediction as one function of pure JAX."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from placer.compiler.emit.code import Call, Expression, bracketed, literal
from placer.compiler.emit.keywords import as_arguments, keywords_of, takes_count
from placer.compiler.emit.names import PYTHON_WORDS, Names
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_ops import OUTPUT
from placer.compiler.serving.calls import CallWriter
from placer.compiler.serving.lookups import Lookup, find_lookups, keys_only
from placer.compiler.serving.tables_file import TABLES_WORDS
from placer.ops.special.call import CALL
from placer.place.types import TensorType
from placer.plan.settings.data.sources import POSITION

WIDE = 'jax.config.update("jax_enable_x64", True)'
"""The line of model.py that enables 64-bit numbers in JAX."""

_WIDE = ("float64", "int64", "uint64")
_GLOBALS = ("jax", "jnp", "load_params", "model", "ops", "params")


@dataclass(frozen=True)
class ModelFile:
    """The text of model.py, and the files that it needs.

    Attributes:
        text: the text.
        types: the types of the arguments of `model` besides the parameters, in order.
        inputs: for each needed input of the spec, its name as an argument of `model`,
            or as keys for `tables.py`.
        lookups: the lookups of sparse tables that provide arguments.
        functions: the names that it uses of the user's modules, as MODULE:NAME.
        ops: the names that it uses of the package `ops`.
    """

    text: str
    types: dict[str, TensorType]
    inputs: dict[str, str]
    lookups: tuple[Lookup, ...]
    functions: tuple[str, ...]
    ops: frozenset[str]


def write_model(
    graph: Graph,
    title: str,
    inputs_in_order: Sequence[str],
    load: Callable[[str], object],
    exported: Mapping[str, str],
) -> ModelFile:
    """Return model.py for a graph after the pass `predict`.

    Args:
        graph: the graph of a prediction in one process.
        title: the first line of its docstring.
        inputs_in_order: the inputs of the spec, in the order of the arguments.
        load: returns a function of the user's modules, given as MODULE:FUNCTION.
        exported: the name next to model.py of each module of the spec.
    """
    called = modules_called(graph)
    modules = [exported[module] for module in called]
    computed = [op for op in graph.ops if op.is_computed]
    used = {op.kind for op in computed if op.kind != CALL.kind}
    if graph.sparse_tables:
        used.add("as_table")
    calls = CallWriter(graph, load)
    reserved = PYTHON_WORDS.union(_GLOBALS)
    reserved |= TABLES_WORDS if graph.sparse_tables else set()
    names = Names(modules, reserved)
    reads = [op for op in graph.of_kind("read") if op.attrs["input"] != POSITION]
    reads.sort(key=lambda op: inputs_in_order.index(op.attrs["input"]))
    inputs = {names.name_of(op.name): op for op in reads}
    lookups = find_lookups(graph, names)
    distinct = tuple({id(each): each for each in lookups.values()}.values())
    keys = keys_only(graph)
    types = {
        name: graph.tensor_type(op.name)
        for name, op in inputs.items()
        if op.name not in keys
    }
    for lookup in distinct:
        types |= lookup.arguments
    parameters = {op.name for op in graph.parameters}

    def expression(value: str) -> Expression:
        if value in parameters:
            return Expression(f"params[{literal(value)}]")
        return Expression(names.name_of(value))

    def targets(values: Sequence[str]) -> list[str]:
        return [names.name_of(v) if graph.uses.get(v) else "_" for v in values]

    module_names = {each: names.modules[exported[each]] for each in called}
    rows = names.new_name("rows")
    body: list[str] = []
    for name, kind in types.items():
        body += _lines(Call("jnp.asarray", [name, literal(kind.dtype)], [name]))
    statements: list[str] = []
    for op in computed:
        if op.name in lookups:
            calls_of = _look_up(op, lookups[op.name], names, expression)
            statements += [line for call in calls_of for line in _lines(call)]
            continue
        if op.kind == CALL.kind:
            for call in calls.statements(op, expression, targets, rows, module_names):
                statements += _lines(call)
            continue
        arguments: list[str | Expression] = [*map(expression, op.operands)]
        arguments += as_arguments(keywords_of(op, {}))
        if takes_count(graph, op):
            arguments.append(f"count={rows}")
        statements += _lines(
            Call(f"ops.{op.kind}", arguments, targets([v.name for v in op.results]))
        )
    if any(f"{rows}" in line for line in statements):
        body.append(f"    {rows} = {next(iter(types))}.shape[0]")
    outputs = [
        f"{literal(op.attrs['output'])}: {expression(op.operands[0])}"
        for op in graph.of_kind(OUTPUT)
    ]
    returned = bracketed("return {", outputs, "}", 1)
    head = bracketed(
        "def model(",
        ["params: dict[str, jax.Array]", *(f"{name}: jax.Array" for name in types)],
        ") -> dict[str, jax.Array]:",
        0,
    )
    docstring = _docstring(graph, types)
    wide = has_wide_numbers(graph, keys)
    text = _join(
        title,
        types,
        modules,
        names.modules,
        wide,
        [*head, *docstring, *body, *statements, *returned],
    )
    names_of = {op.attrs["input"]: name for name, op in inputs.items()}
    functions = tuple(calls.functions)
    return ModelFile(
        text,
        types,
        names_of,
        distinct,
        functions,
        frozenset(used | calls.used),
    )


def _look_up(
    op: Op,
    lookup: Lookup,
    names: Names,
    expression: Callable[[str], Expression],
) -> list[Call]:
    """Return the statements of a table op, with the looked-up rows as arguments."""
    own = names.name_of(op.name)
    indices, table = names.new_name(f"{own}_indices"), names.new_name(f"{own}_table")
    attrs = dict(op.attrs) | ({} if lookup.present is None else {"padding": -1})
    present = [] if lookup.present is None else [lookup.present]
    between = [str(expression(weights)) for weights in op.operands[1:-1]]
    keywords = as_arguments(keywords_of(replace(op, attrs=attrs), {}))
    arguments = [indices, *between, table, *keywords]
    return [
        Call("ops.as_table", [lookup.rows, *present], [indices, table]),
        Call(f"ops.{op.kind}", arguments, [own]),
    ]


def has_wide_numbers(graph: Graph, without: Collection[str] = ()) -> bool:
    """Return True if the graph has 64-bit values, except `without`."""
    return any(
        isinstance(value.type, TensorType) and value.type.dtype in _WIDE
        for value in graph.values.values()
        if value.name not in without
    )


def modules_called(graph: Graph) -> list[str]:
    """Return the modules of the user whose functions a graph calls."""
    return sorted({op.attrs["fn"].partition(":")[0] for op in graph.of_kind("call")})


def _lines(call: Call) -> list[str]:
    return [line.text for line in call.lines(1)]


def _docstring(graph: Graph, types: dict[str, TensorType]) -> list[str]:
    lines = ['    """Return the outputs by name.', "", "    Args:"]
    lines += ["        params: the parameters by name, from `load_params`."]
    lines += [f"        {name}: {kind}." for name, kind in types.items()]
    lines += ["", "    Returns:"]
    for op in graph.of_kind(OUTPUT):
        kind = graph.tensor_type(op.operands[0])
        lines.append(f"        {op.attrs['output']}: {kind}.")
    return [*lines, '    """']


def _join(
    title: str,
    types: dict[str, TensorType],
    modules: Sequence[str],
    names: dict[str, str],
    wide: bool,
    model: Sequence[str],
) -> str:
    own = [
        f"import {m}" if names[m] == m else f"import {m} as {names[m]}" for m in modules
    ]
    lines = [
        f'"""{title}',
        "",
        '    params = load_params("params.safetensors")',
        f"    outputs = jax.jit(model)(params, {', '.join(types)})",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "import jax",
        "import jax.numpy as jnp",
        "",
        *sorted([*own, "import ops"]),
        "from params import load_params",
        "",
        '__all__ = ["load_params", "model"]',
        "",
    ]
    if wide:
        lines += [
            "# The model computes with 64 bits, which JAX must be told to enable."
        ]
        lines += [WIDE, ""]
    return "\n".join([*lines, "", *model]) + "\n"
