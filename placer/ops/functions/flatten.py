"""Flattens a jaxpr to a list of equations, each with the guards around it.

Calls that contain guards (`jit`, `checkpoint`) are inlined. Other calls stay one
equation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend import core

from placer.errors import PlacerError
from placer.ops.functions.primitives import CALLS, open_jaxpr
from placer.ops.functions.user_lines import source_line
from placer.place.scope import FUNCTION, nest_guards, parse_name_stack, place_of

_ALLOWED_EFFECTS = {"DebugEffect"}
"""Effects that are allowed, because they are not ordered."""


Guards = tuple[str, ...]
"""The guards around an equation, outermost first."""


@dataclass(frozen=True, slots=True, eq=False)
class FlatEquation:
    """An equation, and the guards around it."""

    eqn: Any
    guards: Guards

    @property
    def operands(self) -> list[Any]:
        """The variables among its operands."""
        return [x for x in self.eqn.invars if not isinstance(x, core.Literal)]


@dataclass(frozen=True, slots=True, eq=False)
class FlatJaxpr:
    """The equations that the results need, in order; `consts` holds constants' values."""

    invars: Sequence[Any]
    outvars: Sequence[Any]
    equations: Sequence[FlatEquation]
    consts: Mapping[Any, Any]


def flatten_guards(
    closed: Any, is_split: Callable[[Any], bool] = lambda eqn: False
) -> FlatJaxpr:
    """Flatten a closed jaxpr, without unused equations.

    `is_split` returns whether a call must be inlined although it has no guards.

    Raises PlacerError for an equation that cannot be placed: it has an ordered effect,
    or an inner guard with another place than its outer guards.
    """
    jaxpr = closed.jaxpr
    consts = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    new: dict[Any, Any] = {}
    equations = list(_flatten_equations(jaxpr.eqns, (), new, consts, is_split))
    outvars = [_substitute(v, new) for v in jaxpr.outvars]
    live = {v for v in outvars if not isinstance(v, core.Literal)}
    needed = []
    for equation in reversed(equations):
        if _effects(equation.eqn) or any(v in live for v in equation.eqn.outvars):
            _check_placeable(equation)
            live.update(equation.operands)
            needed.append(equation)
    return FlatJaxpr(jaxpr.invars, outvars, needed[::-1], consts)


def _flatten_equations(
    eqns: Sequence[Any],
    outer: Guards,
    new: dict[Any, Any],
    consts: dict[Any, Any],
    is_split: Callable[[Any], bool],
) -> Iterator[FlatEquation]:
    """Yield the equations, inlining calls that contain guards; `new` renames variables."""
    for eqn in eqns:
        guards = nest_guards(outer, parse_name_stack(str(eqn.source_info.name_stack)))
        operands = [_substitute(x, new) for x in eqn.invars]
        has_guards = eqn.primitive.name in CALLS and any(_inner_guards(eqn))
        if has_guards or (eqn.primitive.name in CALLS and is_split(eqn)):
            body, values = open_jaxpr(eqn.params["jaxpr"])
            inner_new: dict[Any, Any] = dict(zip(body.invars, operands, strict=True))
            for var, value in zip(body.constvars, values, strict=True):
                inner_new[var] = core.Var(var.aval)
                consts[inner_new[var]] = value
            yield from _flatten_equations(
                body.eqns, guards, inner_new, consts, is_split
            )
            for var, atom in zip(eqn.outvars, body.outvars, strict=True):
                new[var] = _substitute(atom, inner_new)
            continue
        results = [core.Var(var.aval) for var in eqn.outvars]
        new.update(zip(eqn.outvars, results, strict=True))
        yield FlatEquation(eqn.replace(invars=operands, outvars=results), guards)


def _substitute(atom: Any, new: Mapping[Any, Any]) -> Any:
    return atom if isinstance(atom, core.Literal) else new.get(atom, atom)


def _inner_guards(eqn: Any) -> Iterator[Guards]:
    for jaxpr in core.jaxprs_in_params(eqn.params):
        for inner in jaxpr.eqns:
            guards = parse_name_stack(str(inner.source_info.name_stack))
            deeper = list(_inner_guards(inner))
            if guards or deeper:
                yield from (nest_guards(guards, each) for each in deeper or [()])


def _effects(eqn: Any) -> set[str]:
    """Return the effects of an equation, besides its use of a named axis."""
    return {type(effect).__name__ for effect in eqn.effects} - {"NamedAxisEffect"}


def _check_placeable(equation: FlatEquation) -> None:
    eqn = equation.eqn
    effects = _effects(eqn) - _ALLOWED_EFFECTS
    if effects:
        raise PlacerError(
            f"'{eqn.primitive.name}'{source_line(eqn)} has an effect"
            f" ({', '.join(sorted(effects))}), which cannot be placed",
            hint="only computations can be placed; use jax.debug.print with"
            " ordered=False",
        )
    for guards in (
        equation.guards,
        *(nest_guards(equation.guards, each) for each in _inner_guards(eqn)),
    ):
        if FUNCTION in guards:
            raise PlacerError(
                f"a guard around '{eqn.primitive.name}'{source_line(eqn)} is a"
                " function, which works for ops only, not for code that JAX"
                " traces",
                hint="write a place, such as place_guard('/node:worker:1')",
            )
        if place_of(guards) != place_of(equation.guards):
            raise PlacerError(
                f"a guard inside '{eqn.primitive.name}'{source_line(eqn)} is"
                f" {place_of(guards) or 'no place'}, but the guard around it is"
                f" {place_of(equation.guards) or 'no place'}; it must run at one"
                " place",
                hint="open the guard around the whole call",
            )
