"""Equations of a traced function without calls, and the part of them that results need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from jax.extend import core

from placer.ops.functions.primitives import CALLS, open_jaxpr

_CALLS = dict.fromkeys(CALLS, "jaxpr") | {
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
"""The calls of an update, with the parameter that has their equations.

An update is not differentiated, so the rules of custom derivatives are not needed.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Equations:
    """Equations in order, without calls.

    Attributes:
        inputs: the variables of the inputs.
        results: the variables or literals of the results.
        eqns: the equations. Each variable has one equation.
        consts: the values of constant arrays.
        branches: the branches of each `cond`, by its position in `eqns`.
    """

    inputs: tuple[Any, ...]
    results: tuple[Any, ...]
    eqns: list[Any]
    consts: Mapping[Any, Any]
    branches: Mapping[int, tuple[Equations, ...]]
    _producers: dict[Any, int] = field(default_factory=dict)

    def producer(self, var: Any) -> int | None:
        """Return the position of the equation that computes a variable, if any."""
        if not self._producers and self.eqns:
            for position, eqn in enumerate(self.eqns):
                self._producers.update(dict.fromkeys(eqn.outvars, position))
        return self._producers.get(var)

    def part(
        self, results: Sequence[Any], inputs: Sequence[Any] | None = None
    ) -> Equations:
        """Return the equations that some results need, in order.

        Args:
            results: variables or literals.
            inputs: the inputs of the part, which may be variables of equations; by default
                those of all equations.
        """
        inputs = self.inputs if inputs is None else tuple(inputs)
        given = set(inputs)
        used: set[Any] = set()
        waiting: list[int] = []
        queued: set[int] = set()

        def use(atoms: Sequence[Any]) -> None:
            for atom in atoms:
                if isinstance(atom, core.Literal) or atom in given:
                    continue
                used.add(atom)
                position = self.producer(atom)
                if position is not None and position not in queued:
                    queued.add(position)
                    heappush(waiting, -position)

        use(results)
        eqns: list[Any] = []
        branches: list[tuple[Equations, ...] | None] = []
        # All users of an equation come after it, so all of its results that are used are
        # known when its turn comes.
        while waiting:
            position = -heappop(waiting)
            eqn, inner = self.eqns[position], self.branches.get(position)
            if inner is not None:
                eqn, inner = _part_of_cond(eqn, inner, [v in used for v in eqn.outvars])
            use(eqn.invars)
            eqns.append(eqn)
            branches.append(inner)
        return Equations(
            inputs,
            tuple(results),
            eqns[::-1],
            {var: value for var, value in self.consts.items() if var in used},
            {i: b for i, b in enumerate(branches[::-1]) if b is not None},
        )

    def closed(self) -> Any:
        """Return the equations as a closed jaxpr."""
        debug = core.DebugInfo("update", "", None, None)
        effects = {effect for eqn in self.eqns for effect in eqn.effects}
        jaxpr = core.Jaxpr(
            list(self.consts),
            list(self.inputs),
            list(self.results),
            self.eqns,
            effects,
            debug,
        )
        return core.ClosedJaxpr(jaxpr, list(self.consts.values()))

    def function(self) -> Callable[..., list[Any]]:
        """Return a function of the inputs that computes the results."""
        function: Callable[..., list[Any]] = core.jaxpr_as_fun(self.closed())
        return function


def inline_calls(closed: Any) -> Equations:
    """Return the equations of a closed jaxpr, with the equations of calls in their place."""
    jaxpr, values = open_jaxpr(closed)
    new: dict[Any, Any] = {var: core.Var(var.aval) for var in jaxpr.invars}
    consts: dict[Any, Any] = {}
    eqns = list(_inline(jaxpr, values, new, consts))
    branches = {
        i: tuple(map(inline_calls, eqn.params["branches"]))
        for i, eqn in enumerate(eqns)
        if eqn.primitive.name == "cond"
    }
    results = tuple(_rename(atom, new) for atom in jaxpr.outvars)
    return Equations(
        tuple(new[var] for var in jaxpr.invars), results, eqns, consts, branches
    )


def _inline(
    jaxpr: Any, values: Sequence[Any], new: dict[Any, Any], consts: dict[Any, Any]
) -> Iterator[Any]:
    for var, value in zip(jaxpr.constvars, values, strict=True):
        new[var] = core.Var(var.aval)
        consts[new[var]] = value
    for eqn in jaxpr.eqns:
        operands = [_rename(atom, new) for atom in eqn.invars]
        key = _CALLS.get(eqn.primitive.name)
        if key is not None:
            body, inner_values = open_jaxpr(eqn.params[key])
            # The same jaxpr may be called twice, so that its variables need new names.
            inner = dict(zip(body.invars, operands, strict=True))
            yield from _inline(body, inner_values, inner, consts)
            results = [_rename(atom, inner) for atom in body.outvars]
            new.update(zip(eqn.outvars, results, strict=True))
            continue
        if eqn.primitive.name == "optimization_barrier":
            new.update(zip(eqn.outvars, operands, strict=True))
            continue
        outvars = [core.Var(var.aval) for var in eqn.outvars]
        new.update(zip(eqn.outvars, outvars, strict=True))
        yield eqn.replace(invars=operands, outvars=outvars)


def _rename(atom: Any, new: Mapping[Any, Any]) -> Any:
    return atom if isinstance(atom, core.Literal) else new[atom]


def _part_of_cond(
    eqn: Any, branches: Sequence[Equations], used: Sequence[bool]
) -> tuple[Any, tuple[Equations, ...]]:
    """Return a `cond` that computes only the used results."""
    parts = [
        branch.part(
            [r for r, is_used in zip(branch.results, used, strict=True) if is_used]
        )
        for branch in branches
    ]
    read = [
        {atom for each in part.eqns for atom in _variables(each.invars)}
        | set(_variables(part.results))
        for part in parts
    ]
    kept = [
        any(part.inputs[i] in atoms for part, atoms in zip(parts, read, strict=True))
        for i in range(len(eqn.invars) - 1)
    ]
    smaller = tuple(
        Equations(
            tuple(v for v, is_kept in zip(part.inputs, kept, strict=True) if is_kept),
            part.results,
            part.eqns,
            part.consts,
            part.branches,
        )
        for part in parts
    )
    operands = [x for x, is_kept in zip(eqn.invars[1:], kept, strict=True) if is_kept]
    outvars = [v for v, is_used in zip(eqn.outvars, used, strict=True) if is_used]
    params = {**eqn.params, "branches": tuple(each.closed() for each in smaller)}
    return (
        eqn.replace(invars=[eqn.invars[0], *operands], outvars=outvars, params=params),
        smaller,
    )


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, core.Literal)]
