"""`placer.trace`: an ordinary JAX function in, its regions as ops out."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from collections.abc import Mapping as Entries
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from placer.build.modules import being_traced
from placer.callsite import caller, is_cell
from placer.errors import PlacerError, Span, SpecError
from placer.front.arguments import Arguments, arguments
from placer.front.program import Program, current_program
from placer.front.tree import scalar
from placer.front.variable import Variable
from placer.place import scope
from placer.place.guard import Called, device_guard, merged, open_places, place_guard
from placer.spec.op_kinds import TRACE

Init = str | Entries[str, Any]


def trace(
    fn: Callable[..., Any],
    *args: Any,
    name: str | None = None,
    batch: Literal["rows", "whole"] | None = None,
    init: Init | None = None,
) -> Any:
    """Call a JAX function on values of the program, and place it from inside.

    `place_guard` and `device_guard` inside of `fn` say where what JAX traces there
    runs, gradients that `jax.grad` takes inside with it; the guards around this call
    say it of the rest. Each part of one place is an op.

    fn: a function of a file beside the program's, or of that file; what it closes over
        is as its file makes it.
    args: pytrees. A Variable is an input. An array of floats is a parameter that begins
        so, called by its path: `NAME.layers_0_kernel`. A pytree of classes, such as a
        model of Flax or Equinox, is given by a global name of the file: the model, or a
        function without arguments that makes it. Numbers, texts and None are as they are.
    name: of the op, `trace_0` and so on unless said. One result has it, several are
        `NAME.out0` and so on.
    batch: rows when row i of every result depends on row i of the inputs only, else
        whole. Unless it is said, rows where the function's equations prove it.
    init: how arrays begin that are `jax.ShapeDtypeStruct`.

    Returns what `fn` does, with a Variable for each array. Raises SpecError at the
    caller's line, and what `fn` raises.
    """
    span, program = caller(), current_program()
    name = program.unused(TRACE) if name is None else name
    lines: dict[str, Span] = {}
    heard = scope.heard.set(lines)
    try:
        text = _found(fn, program)
        wide = program.precision == "float64"
        given = arguments(fn, args, wide)
        rows = None if batch is None else batch == "rows"
        found = _described(fn, given, name, rows, wide)
    except PlacerError as error:
        if error.span is not None:
            raise
        message = f"trace '{name}': {error.message}"
        raise SpecError(message, span=span, hint=error.hint) from error
    finally:
        scope.heard.reset(heard)
    inputs = {
        leaf.value.name: leaf.value
        for leaf in given.leaves
        if isinstance(leaf.value, Variable)
    }
    entry: dict[str, Any] = {"fn": text, "args": given.named()}
    entry |= {"in": _few([*inputs.values()])} if inputs else {}
    entry |= {"batch": "rows"} if found.rows else {}
    params, files = _parameters(given, name, init, span)
    entry |= {"params": params} if params else {}
    entry["regions"] = [
        _region(part, _place(part, number, name, text, lines, span))
        for number, part in enumerate(found.parts)
    ]
    program.record(TRACE, entry, name, said=(), files=files)
    values = [
        inputs[value] if value in inputs else program.variable(value, name)
        for value in found.results
    ]
    return found.filled(values)


def _described(
    fn: Callable[..., Any],
    given: Arguments,
    name: str,
    rows: bool | None,
    wide: bool,
) -> Any:
    text = json.dumps(given.typed(wide))
    values = [
        leaf.value.name if key is None else f"{name}.{key}"
        for leaf, key in zip(given.leaves, given.keys, strict=True)
    ]
    from placer.regions.description import described

    return described(fn, text, values, name, rows=rows, wide=wide)


def _parameters(
    given: Arguments, name: str, init: Init | None, span: Span
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The key `params`, and the file that it names."""
    params: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    file = f"{name}.safetensors"
    for leaf, key in zip(given.leaves, given.keys, strict=True):
        if key is None:
            continue
        kind = leaf.type(wide=False)
        params[key] = {"shape": kind.shape, "init": {"file": file}}
        if hasattr(leaf.value, "__array__"):
            arrays[f"{name}.{key}"] = leaf.value
        elif init is None:
            message = f"trace '{name}': {leaf.shown} has no values, only a shape"
            raise SpecError(message, span=span, hint='say init="xavier_uniform"')
        else:
            params[key]["init"] = init
        if kind.dtype != "float32":
            params[key]["dtype"] = kind.dtype
    if init is not None and len(arrays) == len(params):
        message = f"trace '{name}': init is of arrays that are shapes alone: none is"
        raise SpecError(message, span=span, hint="leave it out: each begins as it is")
    if not arrays:
        return params, {}
    from placer.regions.description import packed

    return params, {file: packed(arrays)}


def _region(part: Any, place: object | None) -> dict[str, Any]:
    entry: dict[str, Any] = {} if place is None else {"place": place}
    entry |= {"in": _few(part.takes)} if part.takes else {}
    return entry | {"out": [{each: str(kind)} for each, kind in part.gives.items()]}


def _few(values: list[Any]) -> Any:
    """One stands without a list."""
    return values if len(values) > 1 else values[0]


def _place(
    part: Any,
    number: int,
    name: str,
    fn: str,
    lines: Entries[str, Span],
    span: Span,
) -> object:
    """Where a region stands: as its guards say, inside of those that are open."""
    with ExitStack() as stack:
        for each in part.said:
            guard = device_guard(None) if each == scope.NO_DEVICE else None
            place = None if each == scope.CLEAR else each
            stack.enter_context(guard or place_guard(place))
        attrs = {"fn": fn, "region": number}
        found = open_places(Called("call", name, tuple(part.takes), attrs))
    place_now = merged(found)
    if place_now is None:
        return None
    last = next((lines[each] for each in reversed(part.said) if each in lines), span)
    return scalar(str(place_now), last)


def _found(fn: Callable[..., Any], program: Program) -> str:
    """MODULE:FUNCTION, as a node finds the function again."""
    inner: Any = inspect.unwrap(fn) if callable(fn) else None
    if not inspect.isfunction(inner):
        raise SpecError(
            f"what is traced must be a function, not {type(fn).__name__}",
            hint="write def apply(model, x): return model(x)",
        )
    file = Path(inner.__code__.co_filename)
    if is_cell(str(file)):
        raise SpecError(
            f"'{inner.__name__}' stands in no file, and a node imports it from one",
            hint=f"write it to a file in {program.folder.resolve()} and import it: in a"
            " notebook, %%writefile model.py at the top of its cell does",
        )
    if being_traced.get() == file.stem:
        raise SpecError(
            f"{file.name} builds its model while it is imported for '{inner.__name__}'",
            hint="build it in a function, or under if __name__ == '__main__'",
        )
    if file.parent.resolve() != program.folder.resolve() or file.suffix != ".py":
        raise SpecError(
            f"'{inner.__name__}' stands in {file.name}, which is not beside"
            f" {program.file}",
            hint="a node imports it from the build: put the file beside the program",
        )
    known = (
        vars(sys.modules[inner.__module__]) if inner.__module__ in sys.modules else {}
    )
    names = [key for key, each in {**inner.__globals__, **known}.items() if each is fn]
    if not names:
        raise SpecError(
            f"'{inner.__qualname__}' is no function of {file.name} that can be imported",
            hint="write it at the top level of its file",
        )
    best = inner.__name__ if inner.__name__ in names else names[0]
    return f"{file.stem}:{best}"
