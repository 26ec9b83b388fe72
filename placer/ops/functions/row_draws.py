"""Makes the random numbers of a row independent of the rows that a node has.

A traced function draws numbers for all rows of its batch with one key. A node has only
some rows of the global batch. So each draw whose shape has the batch axis is replaced:
row r gets the numbers of the key `fold_in(key, r)`, where r is its row in the global
batch. Other draws are the same on all nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.extend import core

from placer.errors import PlacerError
from placer.ops.functions.flatten import FlatEquation, FlatJaxpr
from placer.ops.functions.inserted_equations import equation_of
from placer.ops.functions.primitives import CALLS, open_jaxpr, scan_counts
from placer.ops.functions.row_states import NotProvenError, Rows, state_of_sizes
from placer.ops.functions.user_lines import source_line

ROW_DRAWS = frozenset(("random_bits", "random_split", "random_gamma"))
"""Primitives whose numbers can be drawn for each row."""

KEY_TYPE = "key<fry>"
"""The type of keys of JAX's default implementation, threefry2x32."""

Path = tuple[int | str, ...]
"""The indices of nested equations, each followed by the key of an inner jaxpr."""
Draws = Mapping[Path, Rows]
"""The draws with rows."""


def draw_by_row(
    flat: FlatJaxpr, other: FlatJaxpr, batches: tuple[int, int]
) -> FlatJaxpr:
    """Return a jaxpr with one more input, the row numbers, that draws by row.

    Args:
        flat: the jaxpr for `batches[0]` rows.
        other: the jaxpr of the same function for `batches[1]` rows. Comparing the
            shapes of the draws finds those that have rows.
        batches: two different numbers of rows.

    Raises:
        PlacerError: if a draw cannot be divided by rows.
    """
    draws = _draws_with_rows(flat, other, batches)
    rows: Any = core.Var(_row_numbers(batches[0]))
    consts = dict(flat.consts)
    equations = []
    for i, each in enumerate(flat.equations):
        inner = _below(draws, i)
        equations.append(_replaced(each, inner, rows, consts) if inner else each)
    return FlatJaxpr((*flat.invars, rows), flat.outvars, equations, consts)


def draws_random_numbers(flat: FlatJaxpr) -> bool:
    """Return True if a jaxpr has a draw that could have rows."""
    return next(_all_draws(flat), None) is not None


def _row_numbers(rows: int) -> Any:
    return jax.core.ShapedArray((rows,), jax.numpy.dtype("uint32"))


def _draws_with_rows(
    flat: FlatJaxpr, other: FlatJaxpr, batches: tuple[int, int]
) -> dict[Path, Rows]:
    ours, theirs = list(_all_draws(flat)), list(_all_draws(other))
    if [eqn.primitive for _, eqn in ours] != [eqn.primitive for _, eqn in theirs]:
        raise PlacerError(
            f"it draws other random numbers for {batches[0]} rows than for"
            f" {batches[1]}",
            hint="draw the same random numbers for any number of rows",
        )
    found = {}
    for (path, eqn), (_, twin) in zip(ours, theirs, strict=True):
        try:
            state = state_of_sizes(_drawn_shape(eqn), _drawn_shape(twin), batches)
        except NotProvenError as error:
            raise PlacerError(
                f"'{eqn.primitive.name}'{source_line(eqn)} draws random numbers for"
                f" several rows at once: {_drawn_shape(eqn)} for {batches[0]} rows",
                hint='pass batch="whole", or draw numbers with one batch axis',
            ) from error
        if state is not None:
            found[path] = state
    return found


def _drawn_shape(eqn: Any) -> tuple[int, ...]:
    """Return the shape of the numbers that each key of a draw gives."""
    keys, *others = eqn.invars
    if others:
        return tuple(others[0].aval.shape[keys.aval.ndim :])
    return tuple(eqn.params["shape"])


def _all_draws(flat: FlatJaxpr) -> Iterator[tuple[Path, Any]]:
    for i, each in enumerate(flat.equations):
        yield from _draws_of(each.eqn, (i,))


def _draws_of(eqn: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if eqn.primitive.name in ROW_DRAWS:
        yield path, eqn
    for key, jaxpr in _inner_jaxprs(eqn):
        for i, each in enumerate(jaxpr.eqns):
            yield from _draws_of(each, (*path, key, i))


def _inner_jaxprs(eqn: Any) -> Iterator[tuple[str, Any]]:
    """Yield the jaxprs in the parameters of an equation, each with a key."""
    for name in sorted(eqn.params):
        value = eqn.params[name]
        several = value if isinstance(value, tuple | list) else (value,)
        for i, each in enumerate(several):
            if isinstance(each, core.Jaxpr | core.ClosedJaxpr):
                yield f"{name}{i}", open_jaxpr(each)[0]


def _below(draws: Draws, *start: int | str) -> dict[Path, Rows]:
    """Return the draws with a path that begins with `start`, with the rest of it."""
    size = len(start)
    return {path[size:]: rows for path, rows in draws.items() if path[:size] == start}


def _replaced(
    equation: FlatEquation, draws: Draws, rows: Any, consts: dict[Any, Any]
) -> FlatEquation:
    """Return a call that computes the results of an equation, with draws by row."""
    eqn, operands = equation.eqn, dict.fromkeys(equation.operands)

    def by_row(numbers: Any, *values: Any) -> Any:
        known = dict(zip(operands, values, strict=True))
        inputs = [
            x.val if isinstance(x, core.Literal) else known[x] for x in eqn.invars
        ]
        return _results(eqn, draws, numbers, inputs)

    return equation_of(by_row, [rows, *operands], equation, consts, eqn.outvars)


def _results(eqn: Any, draws: Draws, numbers: Any, inputs: Sequence[Any]) -> list[Any]:
    """Compute the results of an equation, with draws by row."""
    if () in draws:
        return [_draw(eqn, draws[()], numbers, inputs)]
    params = eqn.params

    def inner(key: str, at: int = 0) -> Any:
        """Return an inner jaxpr as a function of its operands, with draws by row."""
        jaxpr = params[key] if key != "branches" else params[key][at]
        return _function(jaxpr, _below(draws, f"{key}{at}"), numbers)

    match eqn.primitive.name:
        case "scan":
            consts, count = scan_counts(params)
            body = inner("jaxpr")

            def step(carry: Any, slices: Any) -> Any:
                results = body(*inputs[:consts], *carry, *slices)
                return results[:count], results[count:]

            carry, slices = inputs[consts : consts + count], inputs[consts + count :]
            settings = {k: params[k] for k in ("length", "reverse", "unroll")}
            carry, stacked = jax.lax.scan(step, list(carry), list(slices), **settings)
            return [*carry, *stacked]
        case "while":
            conds, consts = params["cond_nconsts"], params["body_nconsts"]
            condition, body = inner("cond_jaxpr"), inner("body_jaxpr")
            fixed = inputs[conds : conds + consts]
            start = list(inputs[conds + consts :])
            return list(
                jax.lax.while_loop(
                    lambda carry: condition(*inputs[:conds], *carry)[0],
                    lambda carry: body(*fixed, *carry),
                    start,
                )
            )
        case "cond":
            index, *operands = inputs
            branches = [inner("branches", i) for i in range(len(params["branches"]))]
            return list(jax.lax.switch(index, branches, *operands))
        case "remat" | "remat2" | "checkpoint":
            settings = {k: params[k] for k in ("prevent_cse", "policy")}
            return list(jax.checkpoint(inner("jaxpr"), **settings)(*inputs))
        case name if name in CALLS:
            return list(inner("jaxpr")(*inputs))
    raise PlacerError(
        f"'{eqn.primitive.name}'{source_line(eqn)} draws random numbers for each row"
        " in a function with a derivative of its own",
        hint='pass batch="whole", or draw the numbers outside of the function and pass'
        " them to it",
    )


def _function(jaxpr: Any, draws: Draws, numbers: Any) -> Any:
    jaxpr, consts = open_jaxpr(jaxpr)
    debug = jaxpr.debug_info._replace(arg_names=None, result_paths=None)

    def run(*inputs: Any) -> list[Any]:
        values = dict(zip(jaxpr.constvars, consts, strict=True))
        values |= zip(jaxpr.invars, inputs, strict=True)

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else values[atom]

        for i, eqn in enumerate(jaxpr.eqns):
            operands = [read(atom) for atom in eqn.invars]
            if inner := _below(draws, i):
                results = _results(eqn, inner, numbers, operands)
            else:
                results = _unchanged(eqn, operands, debug)
            values |= zip(eqn.outvars, results, strict=True)
        return [read(atom) for atom in jaxpr.outvars]

    return run


def _unchanged(eqn: Any, inputs: Sequence[Any], debug: Any) -> list[Any]:
    invars: list[Any] = [core.Var(atom.aval) for atom in eqn.invars]
    outvars: list[Any] = [core.Var(var.aval) for var in eqn.outvars]
    alone = eqn.replace(invars=invars, outvars=outvars)
    jaxpr = core.Jaxpr([], invars, outvars, [alone], eqn.effects, debug)
    results: list[Any] = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, ()))(*inputs)
    return results


def _draw(eqn: Any, drawn: Rows, numbers: Any, inputs: Sequence[Any]) -> Any:
    """Return the result of a draw: row r is drawn with `fold_in(key, r)`."""
    keys, *others = inputs
    if str(keys.dtype) != KEY_TYPE:
        raise PlacerError(
            f"'{eqn.primitive.name}'{source_line(eqn)} draws random numbers for each row"
            f" with a key of the type {keys.dtype}",
            hint="use keys of JAX's default implementation, threefry2x32",
        )
    at, per_row = keys.ndim + drawn.axis, drawn.per_row
    fold = jax.random.fold_in
    for _ in range(keys.ndim):
        fold = jax.vmap(fold, in_axes=(0, None))
    # The batch axis of the shape becomes (batch, per_row); the draw of a row has the last.
    split = [
        x.reshape(*x.shape[:at], len(numbers), per_row, *x.shape[at + 1 :])
        for x in others
    ]
    params = dict(eqn.params)
    if not others:
        shape = list(params["shape"])
        shape[drawn.axis] = per_row
        params["shape"] = tuple(shape)

    def of_row(number: Any, *parts: Any) -> Any:
        return eqn.primitive.bind(fold(keys, number), *parts, **params)

    axes = (0, *(at for _ in split))
    out = jax.vmap(of_row, in_axes=axes, out_axes=at)(numbers, *split)
    size = len(numbers) * per_row
    return out.reshape(*out.shape[:at], size, *out.shape[at + 2 :])
