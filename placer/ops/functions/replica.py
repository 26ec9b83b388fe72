"""Rewrites the collectives of a function that is traced for one part of a batch.

Afterwards the only collective is `psum` of one float value, which cuts the function into
regions. Other collectives are computed from it: a part fills its own slot of an array with
a slot for each part, and the sum over the parts has all slots. The sum is exact, because
all other addends are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from placer.errors import PlacerError
from placer.ops.functions.exact_floats import from_floats, to_floats
from placer.ops.functions.flatten import FlatEquation, FlatJaxpr
from placer.ops.functions.inserted_equations import equation_of
from placer.ops.functions.replica_axis import check_outermost, names_axis
from placer.ops.functions.replica_values import Axes, PartValues, values_of
from placer.ops.functions.user_lines import source_line

_REDUCE: Mapping[str, Any] = {"psum": jnp.sum, "pmax": jnp.max, "pmin": jnp.min}


@dataclass(frozen=True, slots=True, eq=False)
class Parted:
    """A function of one part of a batch.

    Attributes:
        flat: its equations; the last three inputs are `STEP_KEY`, `ROW_NUMBERS` (unused)
            and `PART_NUMBER`. Each `psum` with an index in `sums` sums over the parts.
        sums: the indices of these equations.
        values: its values.
    """

    flat: FlatJaxpr
    sums: frozenset[int]
    values: PartValues


def make_parted(
    flat: FlatJaxpr,
    twin: FlatJaxpr,
    has_rows: Sequence[bool],
    parts: int,
    axis: str,
    state: int,
) -> Parted:
    """Rewrite the collectives of a function.

    Args:
        flat: the equations. Its inputs are values and the key of the step.
        twin: the same function, traced for another number of rows.
        has_rows: whether each value has rows of the batch.
        state: the number of results that are new values of state; they come last.

    Raises:
        PlacerError: if a collective cannot be split, or a result has no rows and differs
            between parts.
    """
    values = values_of(flat, twin, has_rows, parts)
    return _Rewriter(flat, values, axis).rewrite(state)


class _Rewriter:
    def __init__(self, flat: FlatJaxpr, values: PartValues, axis: str) -> None:
        self._flat, self._values, self._axis = flat, values, axis
        self._part: Any = core.Var(jax.core.ShapedArray((), jnp.dtype("int32")))
        self._consts = dict(flat.consts)
        self._new: dict[Any, Any] = {}
        self._equations: list[FlatEquation] = []
        self._sums: set[int] = set()

    def rewrite(self, state: int) -> Parted:
        for equation in self._flat.equations:
            eqn = equation.eqn
            operands = [self._atom(x) for x in eqn.invars]
            equation = FlatEquation(eqn.replace(invars=operands), equation.guards)
            if names_axis(eqn, self._axis):
                self._collective(equation)
                continue
            check_outermost(eqn, self._axis)
            self._equations.append(equation)
            self._values.mark_equal(operands, eqn.outvars)
        outvars = [self._atom(x) for x in self._flat.outvars]
        count = len(outvars) - state
        for var in outvars[:count]:
            self._check_result(var)
        outvars[count:] = map(self._of_first_part, outvars[count:])
        unused = core.Var(self._part.aval)
        invars = [*self._flat.invars, unused, self._part]
        flat = FlatJaxpr(invars, outvars, self._equations, self._consts)
        return Parted(flat, frozenset(self._sums), self._values)

    def _atom(self, atom: Any) -> Any:
        return atom if isinstance(atom, core.Literal) else self._new.get(atom, atom)

    def _compute(
        self,
        function: Callable[..., Any],
        operands: Sequence[Any],
        like: FlatEquation,
        result: Any = None,
    ) -> Any:
        """Add an equation, and return the variable of its result."""
        variables = [x for x in operands if not isinstance(x, core.Literal)]

        def of_variables(*values: Any) -> Any:
            known = iter(values)
            return function(*(_value_of(x, known) for x in operands))

        results = None if result is None else [result]
        new = equation_of(of_variables, variables, like, self._consts, results)
        self._equations.append(new)
        (var,) = new.eqn.outvars
        self._values.mark_equal(variables, [var])
        return var

    def _collective(self, equation: FlatEquation) -> None:
        eqn = equation.eqn
        name, params = eqn.primitive.name, eqn.params
        names = params.get("axes", params.get("axis_name"))
        names = names if isinstance(names, tuple) else (names,)
        # Numbers are axes of arrays, from a vmap over an inner axis.
        inner = tuple(axis for axis in names if isinstance(axis, int))
        has_groups = params.get("axis_index_groups") is not None
        if has_groups or {*names} - {*inner} != {self._axis}:
            raise self._refusal(equation, "over groups of parts or other axes")
        match name:
            case "axis_index":
                (result,) = eqn.outvars
                self._new[result] = self._part
            case "psum" | "pmax" | "pmin":
                for x, result in zip(eqn.invars, eqn.outvars, strict=True):
                    of_part = self._reduce_inside(equation, name, x, inner)
                    self._reduce(equation, name, of_part, result)
            case "all_gather":
                self._all_gather(equation)
            case "reduce_scatter":
                self._reduce_scatter(equation)
            case _:
                raise self._refusal(equation, "")

    def _refusal(self, equation: FlatEquation, why: str) -> PlacerError:
        eqn = equation.eqn
        return PlacerError(
            f"'{eqn.primitive.name}'{source_line(eqn)} {why}".rstrip()
            + " cannot be computed over the parts of a batch",
            hint="use psum, pmean, pmax, pmin or all_gather over all parts, of values"
            " with the rows as first axis or without rows",
        )

    def _reduce_inside(
        self, equation: FlatEquation, name: str, x: Any, inner: Axes
    ) -> Any:
        """Return a value that is reduced over axes of its own array."""
        if not inner:
            return x
        reduced = self._compute(
            lambda v: _REDUCE[name](v, inner).astype(v.dtype), [x], equation
        )
        self._values.axes[reduced] = tuple(
            axis - sum(each < axis for each in inner)
            for axis in self._values.axes_of(x)
            if axis not in inner
        )
        return reduced

    def _reduce(self, equation: FlatEquation, name: str, x: Any, result: Any) -> None:
        parts = self._values.parts
        if self._values.is_equal(x):
            if name == "psum":
                self._compute(
                    lambda v: v * jnp.asarray(parts, v.dtype), [x], equation, result
                )
            else:
                self._new[result] = x
        elif name == "psum" and _is_float(x) and not self._values.axes_of(x):
            self._sum(equation, x, result)
        else:

            def reduce(slots: Any) -> Any:
                return _REDUCE[name](slots, 0).astype(slots.dtype)

            self._compute(reduce, [self._gather(equation, x)], equation, result)

    def _sum(self, like: FlatEquation, x: Any, result: Any = None) -> Any:
        """Add the sum of a float value over the parts."""
        result = core.Var(x.aval) if result is None else result
        eqn = like.eqn
        self._sums.add(len(self._equations))
        # The equation is not computed: the region returns its operand.
        summed = eqn.replace(invars=[x], outvars=[result], effects=frozenset())
        self._equations.append(FlatEquation(summed, like.guards))
        self._values.equal.add(result)
        return result

    def _gather(self, equation: FlatEquation, x: Any) -> Any:
        """Return a value of all parts, with a first axis over the parts."""
        parts, axes, shape = self._values.parts, self._values.axes_of(x), x.aval.shape
        if (axes and not self._values.has_rows(x)) or not _is_number(x):
            rows = f" with rows on axes {axes}" if axes else ""
            raise self._refusal(equation, f"of {x.aval.str_short()}{rows}")

        def fill(value: Any, part: Any) -> Any:
            own = jnp.arange(parts).reshape(parts, *(1,) * value.ndim) == part
            pieces = to_floats(jnp.where(own, value[None], jnp.zeros_like(value)))
            # Rows of all parts must not be the first axis, which would be the batch.
            return pieces.reshape(1, -1, *pieces.shape[2:]) if axes else pieces

        filled = self._compute(fill, [x, self._part], equation)
        total, dtype = self._sum(equation, filled), x.aval.dtype
        if _is_float(x) and not axes:
            return total

        def read(slots: Any) -> Any:
            values = from_floats(slots, dtype)
            return values.reshape(parts, *shape) if axes else values

        return self._compute(read, [total], equation)

    def _all_gather(self, equation: FlatEquation) -> None:
        eqn, parts = equation.eqn, self._values.parts
        (x,), (result,) = eqn.invars, eqn.outvars
        at, tiled = eqn.params["all_gather_dimension"], eqn.params["tiled"]

        def arrange(slots: Any) -> Any:
            moved = jnp.moveaxis(slots, 0, at)
            if not tiled:
                return moved
            shape = slots.shape[1:]
            return moved.reshape(*shape[:at], parts * shape[at], *shape[at + 1 :])

        if self._values.is_equal(x):
            copies = self._compute(
                lambda v: jnp.broadcast_to(v, (parts, *v.shape)), [x], equation
            )
        else:
            copies = self._gather(equation, x)
        if at == 0 and not tiled:
            self._new[result] = copies
            self._values.axes[copies] = self._values.axes[result]
            self._values.equal.discard(copies)
            self._values.mark_equal([], [copies])
        else:
            self._compute(arrange, [copies], equation, result)

    def _reduce_scatter(self, equation: FlatEquation) -> None:
        """Sum over the parts, then take the slot of the part: the transpose of a gather."""
        eqn, parts = equation.eqn, self._values.parts
        (x,), (result,) = eqn.invars, eqn.outvars
        at, tiled = eqn.params["scatter_dimension"], eqn.params["tiled"]
        size = x.aval.shape[at] // parts
        axes = self._values.axes_of(x)
        is_first = axes == (0,) if tiled else axes == (1,)
        is_whole = is_first and x.aval.shape[axes[0]] == self._values.rows * (
            parts if tiled else 1
        )
        if not _is_float(x) or (axes and (at or not is_whole)):
            raise self._refusal(equation, f"of {x.aval.str_short()}")
        if self._values.is_equal(x):
            total = self._compute(lambda v: v * parts, [x], equation)
        elif axes:
            shape = x.aval.shape
            moved = (1, *shape) if tiled else (1, prod(shape[:2]), *shape[2:])
            merged = self._compute(lambda v: v.reshape(moved), [x], equation)
            summed = self._sum(equation, merged)
            total = self._compute(lambda v: v.reshape(shape), [summed], equation)
        else:
            total = self._sum(equation, x)

        def own(slots: Any, part: Any) -> Any:
            if tiled:
                return jax.lax.dynamic_slice_in_dim(slots, part * size, size, at)
            return jax.lax.dynamic_index_in_dim(slots, part, at, keepdims=False)

        self._compute(own, [total, self._part], equation, result)

    def _producer(self, var: Any) -> FlatEquation | None:
        found = (each for each in self._equations if var in each.eqn.outvars)
        return next(found, None)

    def _check_result(self, var: Any) -> None:
        if self._values.is_equal(var) or self._values.has_rows(var):
            return
        producer = self._producer(var)
        what = "a result"
        if producer is not None:
            eqn = producer.eqn
            what = f"the result of '{eqn.primitive.name}'{source_line(eqn)}"
        if self._values.axes_of(var):
            raise PlacerError(
                f"{what} is {var.aval.str_short()}, whose first axis is not the batch",
                hint="return arrays with the rows as first axis",
            )
        raise PlacerError(
            f"{what} has no rows, and another value in each part of the batch",
            hint=f'reduce it over the axis, such as lax.pmean(loss, "{self._axis}"), or'
            " return a value for each row",
        )

    def _of_first_part(self, var: Any) -> Any:
        """Return the value of a state that all parts begin the next step with."""
        if self._values.is_equal(var):
            return var
        like = self._producer(var)
        assert like is not None, "a state is an input without rows, or is computed"
        if self._values.axes_of(var) or not _is_number(var):
            raise PlacerError(
                f"a state is assigned {var.aval.str_short()}{source_line(like.eqn)},"
                " which has rows",
                hint="keep the type and the shape of a state",
            )

        def fill(value: Any, part: Any) -> Any:
            return to_floats(jnp.where(part == 0, value, jnp.zeros_like(value)))

        filled = self._compute(fill, [var, self._part], like)
        total, dtype = self._sum(like, filled), var.aval.dtype
        if _is_float(var):
            return total
        return self._compute(lambda v: from_floats(v, dtype), [total], like)


def _value_of(atom: Any, known: Iterator[Any]) -> Any:
    """Return the value of a literal, or the next of the variables' values."""
    if isinstance(atom, core.Literal):
        aval: Any = atom.aval
        return jnp.asarray(atom.val, aval.dtype)
    return next(known)


def _is_float(atom: Any) -> bool:
    return bool(jnp.issubdtype(atom.aval.dtype, jnp.inexact))


def _is_number(atom: Any) -> bool:
    dtype = atom.aval.dtype
    return bool(jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_))
