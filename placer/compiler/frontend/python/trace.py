"""`placer.trace`: calls a JAX function whose regions become ops of the program."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from placer.compiler.frontend.entries.op_kinds import TRACE
from placer.compiler.frontend.python.arguments import Arguments, collect_arguments
from placer.compiler.frontend.python.program import Program, current_program
from placer.compiler.frontend.python.results import one_or_list
from placer.compiler.frontend.python.tree import scalar_node
from placer.compiler.frontend.python.variable import Variable
from placer.errors import PlacerError, Span, SpecError
from placer.place import scope
from placer.place.guard import (
    OpCall,
    device_guard,
    merge_entries,
    place_guard,
    places_around,
)
from placer.plan.modules import being_traced
from placer.system.callsite import caller_span, is_cell

Init = str | Mapping[str, Any]


def trace(
    fn: Callable[..., Any],
    *args: Any,
    name: str | None = None,
    batch: Literal["rows", "whole", "replica"] | None = None,
    parts: int | None = None,
    axis: str = "batch",
    init: Init | Any = None,
    state: str | None = None,
) -> Any:
    """Call a JAX function on values of the program, with guards inside the function.

    `place_guard` and `device_guard` inside `fn` place the equations that JAX traces
    inside them, and their gradients if `fn` calls `jax.grad`. The guards around this
    call place all other equations. The equations of each place become one or more ops.

    Args:
        fn: A function at the top level of the program's file, or of a file next to it.
            If it closes over values, these are the ones that its file creates.
        *args: Pytrees. A `Variable` is an input. An array of floats is a parameter with
            this initial value; its name is its path: `NAME.layers_0_kernel`. Numbers,
            strings and None are passed unchanged. An object of a class, such as a model
            of Flax or Equinox, must be a global name in the function's file: the
            object, or a function without arguments that returns it.
        name: The name of the op and of its result; by default `trace_0`, `trace_1`, ….
            Several results are called `NAME.out0`, `NAME.out1`, ….
        batch: `"rows"` if row i of every result depends only on row i of the inputs,
            else `"whole"`. By default `"rows"` if the function's equations prove it.
            `"replica"` cuts the batch into equal parts and maps the function over them,
            as `jax.vmap(fn, axis_name=axis)` does.
        parts: With `"replica"`, the number of parts. By default each node of the place
            of this call computes one part.
        axis: With `"replica"`, the name of the axis over the parts. The function reduces
            over it, such as by `jax.lax.pmean(x, axis)`.
        init: The initializer of arrays that are `jax.ShapeDtypeStruct`. Or the initial
            values of all parameters, such as pretrained ones: a pytree like the argument
            that has parameters, or a dict from the names of several arguments to their
            pytrees if several have parameters or state. State that `init` lacks keeps
            the value of the argument.
        state: The name of the argument that is state, such as running statistics. It
            must be a global name of the function's file, or a function and the dict of
            its arguments. `fn` then returns a pair: its results, and the new value of
            this argument or a part of it.

    Returns:
        The pytree that `fn` returns, with a `Variable` for each array.

    Raises:
        SpecError: At the caller's line, if the function cannot be cut into regions or
            an argument cannot be passed. Errors that `fn` raises are not caught.

    Example:
        def apply(model, x):
            with place_guard("/node:worker:0"):
                h = model.encoder(x)
            with place_guard("/node:worker:1"):
                return model.decoder(h)

        y = placer.trace(apply, create_model, x, name="net")
    """
    from placer.compiler.frontend.python.model_parameters import initial_values
    from placer.ops.functions.description import assigned_state, describe

    span, program = caller_span(), current_program()
    name = program.unused_name(TRACE) if name is None else name
    lines: dict[str, Span] = {}
    token = scope.guard_lines.set(lines)
    try:
        text = function_path(fn, program, "placer.trace")
        wide = program.precision == "float64"
        cut = _parts(batch, parts, axis, name, program)
        arguments = collect_arguments(fn, args, wide, (), state)
        if could_be := arguments.assignable:
            # Values that are no state are traced as constants.
            all_state = collect_arguments(fn, args, wide, could_be, state)
            changed = assigned_state(fn, all_state.text(wide), wide, **cut)
            if state_paths := could_be.intersection(changed):
                arguments = collect_arguments(fn, args, wide, state_paths, state)
        names = [
            leaf.value.name if leaf.key is None else f"{name}.{leaf.key}"
            for leaf in arguments.leaves
        ]
        states = [f"{name}.{key}" for key in arguments.state_keys()]
        _keep_state(arguments, name, program, span)
        initial = initial_values(init, arguments, name)
        rows = None if batch is None else batch == "rows"
        text_of = arguments.text(wide)
        function = describe(
            fn, text_of, names, name, state=states, rows=rows, wide=wide, **cut
        )
    except PlacerError as error:
        if error.span is not None:
            raise
        message = f"trace '{name}': {error.message}"
        raise SpecError(message, span=span, hint=error.hint) from error
    finally:
        scope.guard_lines.reset(token)
    inputs = {
        leaf.value.name: leaf.value
        for leaf in arguments.leaves
        if isinstance(leaf.value, Variable)
    }
    entry: dict[str, Any] = {"fn": text, "args": arguments.named_terms()}
    entry |= {"in": one_or_list([*inputs.values()])} if inputs else {}
    entry |= {"batch": "rows"} if function.is_by_rows else {}
    if cut:
        entry |= {"batch": "replica", **cut}
        if axis == "batch":
            del entry["axis"]
    params, files = _parameter_entries(arguments, name, init, initial, wide, span)
    kept = {key: params.pop(key) for key in arguments.state_keys()}
    entry |= {"params": params} if params else {}
    entry |= {"state": kept} if kept else {}

    def entries(regions: Sequence[Any]) -> list[dict[str, Any]]:
        return [
            _region_entry(each, _region_place(each, number, name, text, lines, span))
            for number, each in enumerate(regions)
        ]

    entry["regions"] = entries(function.regions)
    if function.evaluation is not None:
        entry["evaluation"] = entries(function.evaluation)
        entry["results"] = {key: [*pair] for key, pair in function.switched.items()}
    program.record(TRACE, entry, name, guards=(), files=files)
    values = [
        inputs[value] if value in inputs else program.variable(value, name)
        for value in function.results
    ]
    return function.unflatten(values)


def _parts(
    batch: str | None, parts: int | None, axis: str, name: str, program: Program
) -> dict[str, Any]:
    """Return the parts of a batch and the name of their axis; empty without parts."""
    if batch != "replica":
        if parts is not None:
            raise PlacerError(
                "parts needs batch='replica'", hint='pass batch="replica" as well'
            )
        return {}
    if parts is None:
        entries = places_around(OpCall("call", name, (), {}))
        place = merge_entries(entries)
        parts = program.count_nodes(None if place is None else str(place))
    if isinstance(parts, bool) or not isinstance(parts, int) or parts < 1:
        raise PlacerError(
            f"parts must be a whole number of parts, not {parts!r:.40}",
            hint="pass the number of workers, such as parts=2",
        )
    return {"parts": parts, "axis": axis}


def _keep_state(arguments: Arguments, name: str, program: Program, span: Span) -> None:
    """Keep collections of Flax linen; raise SpecError for other state that is trained."""

    def is_trained(keys: Sequence[str]) -> bool:
        return any(program.trains(f"{name}.{key}") for key in keys)

    for state in arguments.state:
        keys = arguments.keys_in(state.path)
        if state.is_kept and is_trained(keys):
            for pattern in arguments.patterns_of(state.path):
                program.keep(f"{name}.{pattern}", span)
        if not is_trained(keys):
            continue
        kept = ", ".join(
            f'{{"match": "{name}.{pattern}", "trainable": False}}'
            for pattern in arguments.patterns_of(state.path)
        )
        raise SpecError(
            f"{'.'.join(state.path)} {state.said}, but would be trained",
            hint=f"to keep its values, write Program(parameters=[{kept}, …]) before other"
            " entries that match it; if the function returns its new value, name this"
            " argument with state=",
        )


def _parameter_entries(
    arguments: Arguments,
    name: str,
    init: Init | None,
    values: Mapping[str, Any] | None,
    wide: bool,
    span: Span,
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the value of the key `params`, and the file with initial values.

    `values` replaces the values of all parameters, and of state that it has.
    """
    params: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    integers: dict[str, str] = {}
    file = f"{name}.safetensors"
    for leaf in arguments.leaves:
        if (key := leaf.key) is None:
            continue
        kind = leaf.type(wide=False)
        kind = kind if kind.is_float else leaf.type(wide)
        params[key] = {"shape": kind.shape, "init": {"file": file}}
        if not kind.is_float:
            integers[f"{name}.{key}"] = kind.dtype
        if values is not None and (key in values or not leaf.is_state):
            arrays[f"{name}.{key}"] = values[key]
        elif hasattr(leaf.value, "__array__"):
            arrays[f"{name}.{key}"] = leaf.value
        elif init is None:
            message = f"trace '{name}': {leaf.path_text} has a shape but no values"
            raise SpecError(message, span=span, hint='pass init="xavier_uniform"')
        else:
            params[key]["init"] = init
        if kind.dtype != "float32":
            params[key]["dtype"] = kind.dtype
    if init is not None and values is None and len(arrays) == len(params):
        message = (
            f"trace '{name}': init is for arrays without values, but all arrays have"
            " values"
        )
        raise SpecError(message, span=span, hint="leave it out")
    if not arrays:
        return params, {}
    from placer.ops.functions.description import pack_arrays

    try:
        return params, {file: pack_arrays(arrays, integers)}
    except PlacerError as error:
        message = f"trace '{name}': {error.message}"
        raise SpecError(message, span=span, hint=error.hint) from error


def _region_entry(region: Any, place: object | None) -> dict[str, Any]:
    entry: dict[str, Any] = {} if place is None else {"place": place}
    entry |= {"in": one_or_list(region.operands)} if region.operands else {}
    entry |= {"batch": region.batch} if region.batch else {}
    results = [{name: str(type_)} for name, type_ in region.results.items()]
    return entry | {"out": results}


def _region_place(
    region: Any,
    number: int,
    name: str,
    fn: str,
    lines: Mapping[str, Span],
    span: Span,
) -> object:
    """Return the place of a region, from its guards and the open guards around it."""
    with ExitStack() as stack:
        for each in region.guards:
            guard = device_guard(None) if each == scope.NO_DEVICE else None
            place = None if each == scope.CLEAR else each
            stack.enter_context(guard or place_guard(place))
        attrs = {"fn": fn, "region": number}
        entries = places_around(OpCall("call", name, tuple(region.operands), attrs))
    merged = merge_entries(entries)
    if merged is None:
        return None
    last = next(
        (lines[each] for each in reversed(region.guards) if each in lines), span
    )
    return scalar_node(str(merged), last)


def function_path(fn: Callable[..., Any], program: Program, caller: str) -> str:
    """Return the function as MODULE:FUNCTION, the form in which nodes import it.
    `caller` is the function of placer that needs it. Raises SpecError if no file next
    to the program defines it."""
    inner: Any = inspect.unwrap(fn) if callable(fn) else None
    if not inspect.isfunction(inner):
        raise SpecError(
            f"{caller} needs a function, not {type(fn).__name__}",
            hint="pass a function that a file next to the program defines with def",
        )
    file = Path(inner.__code__.co_filename)
    if is_cell(str(file)):
        raise SpecError(
            f"'{inner.__name__}' is not defined in a file, so nodes cannot import it",
            hint=f"write it to a file in {program.folder.resolve()} and import it; in a"
            " notebook, put %%writefile model.py at the top of its cell",
        )
    if being_traced.get() == file.stem:
        raise SpecError(
            f"importing {file.name} to find '{inner.__name__}' runs code that builds"
            " the model",
            hint="build the model in a function, or under if __name__ == '__main__'",
        )
    if file.parent.resolve() != program.folder.resolve() or file.suffix != ".py":
        raise SpecError(
            f"'{inner.__name__}' is in {file.name}, which is not in the same folder as"
            f" {program.file}",
            hint="move the file next to the program: nodes import it from the build",
        )
    module = sys.modules.get(inner.__module__)
    values = inner.__globals__ | (vars(module) if module is not None else {})
    names = [key for key, each in values.items() if each is fn]
    own = inner.__name__
    is_plain = fn is inner and inner.__qualname__ == own
    if not names and not (is_plain and own in values):
        what = f"'{inner.__qualname__}'" if fn is inner else f"a wrapper of '{own}'"
        raise SpecError(
            f"{what} cannot be imported from {file.name}",
            hint="define it at the top level of its file",
        )
    best = own if own in names or not names else names[0]
    if not names or (not is_plain and _is_only_def(file, best)):
        raise SpecError(
            f"'{best}' of {file.name} was replaced after its import, but nodes import"
            " the file",
            hint=f"define the new function in {file.name}, and pass it by its name",
        )
    return f"{file.stem}:{best}"


def _is_only_def(file: Path, name: str) -> bool:
    """Return True if a file binds a name only once, by a `def` without decorators."""
    tree = ast.parse(file.read_bytes())
    bound = [
        node
        for node in ast.walk(tree)
        if name in (getattr(node, key, None) for key in ("name", "asname", "id"))
        and not isinstance(getattr(node, "ctx", None), ast.Load)
    ]
    match bound:
        case [ast.FunctionDef(decorator_list=[]) as only]:
            return only in tree.body
    return False
