"""A jaxpr as a flat list of equations, each with what the guards around it say.

Calls that hold guards (`jit`, `checkpoint`) are opened; without guards they stay whole.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from jax.extend import core

from placer.errors import PlacerError
from placer.place.scope import FUNCTION, joined, place_of, scopes

CALLS = {"jit", "pjit", "remat", "remat2", "checkpoint"}
"""Calls that do what the equations inside do, one after the other: those of the jaxpr in
their parameter `jaxpr`."""

HARMLESS = {"DebugEffect"}
"""Effects that equations may have: what they do is not ordered."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """An equation, and what the guards around it say, outermost first."""

    eqn: Any
    said: tuple[str, ...]

    @property
    def operands(self) -> list[Any]:
        """The variables that it takes."""
        return [x for x in self.eqn.invars if not isinstance(x, core.Literal)]


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """Equations in program order, none of which is for nothing. `consts` are the values
    of variables that no equation makes."""

    invars: Sequence[Any]
    outvars: Sequence[Any]
    steps: Sequence[Step]
    consts: Mapping[Any, Any]


def flatten(closed: Any) -> Flat:
    """The jaxpr, without what no output needs. PlacerError for an equation that cannot
    be told apart from others: one with an effect, one with other guards inside."""
    jaxpr = closed.jaxpr
    consts = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    new: dict[Any, Any] = {}
    steps = list(_steps(jaxpr.eqns, (), new, consts, inner=False))
    outvars = [_now(v, new) for v in jaxpr.outvars]
    live = {v for v in outvars if not isinstance(v, core.Literal)}
    kept = []
    for step in reversed(steps):
        if step.eqn.effects or any(v in live for v in step.eqn.outvars):
            _check(step)
            live.update(step.operands)
            kept.append(step)
    return Flat(jaxpr.invars, outvars, kept[::-1], consts)


def _steps(
    eqns: Sequence[Any],
    outer: tuple[str, ...],
    new: dict[Any, Any],
    consts: dict[Any, Any],
    *,
    inner: bool,
) -> Iterator[Step]:
    """The equations, and those of calls that hold guards in place of these. `new` says
    what a variable is now: those of a jaxpr that is called, perhaps several times, are
    made anew for each."""
    for eqn in eqns:
        said = joined(outer, scopes(str(eqn.source_info.name_stack)))
        taken = [_now(x, new) for x in eqn.invars]
        if eqn.primitive.name in CALLS and any(_inside(eqn)):
            called = eqn.params["jaxpr"]
            values = getattr(called, "consts", ())
            called = getattr(called, "jaxpr", called)
            within: dict[Any, Any] = dict(zip(called.invars, taken, strict=True))
            for var, value in zip(called.constvars, values, strict=True):
                within[var] = core.Var(var.aval)
                consts[within[var]] = value
            yield from _steps(called.eqns, said, within, consts, inner=True)
            for var, atom in zip(eqn.outvars, called.outvars, strict=True):
                new[var] = _now(atom, within)
            continue
        made = list(eqn.outvars)
        if inner:
            made = [core.Var(v.aval) for v in made]
            new.update(zip(eqn.outvars, made, strict=True))
        yield Step(eqn.replace(invars=taken, outvars=made), said)


def _now(atom: Any, new: Mapping[Any, Any]) -> Any:
    return atom if isinstance(atom, core.Literal) else new.get(atom, atom)


def _inside(eqn: Any) -> Iterator[tuple[str, ...]]:
    """What guards say inside of an equation, where they say something."""
    for jaxpr in core.jaxprs_in_params(eqn.params):
        for inner in jaxpr.eqns:
            said = scopes(str(inner.source_info.name_stack))
            deeper = list(_inside(inner))
            if said or deeper:
                yield from (joined(said, each) for each in deeper or [()])


def _check(step: Step) -> None:
    eqn = step.eqn
    effects = {type(effect).__name__ for effect in eqn.effects} - HARMLESS
    if effects:
        raise PlacerError(
            f"'{eqn.primitive.name}'{where(eqn)} has an effect"
            f" ({', '.join(sorted(effects))}), which has no place",
            hint="only what is computed can be placed; jax.debug.print may be unordered",
        )
    for said in (step.said, *(joined(step.said, each) for each in _inside(eqn))):
        if FUNCTION in said:
            raise PlacerError(
                f"a guard around '{eqn.primitive.name}'{where(eqn)} is a function: what"
                " JAX traces is no op that it could be asked of",
                hint="write a place, as place_guard('/node:worker:1')",
            )
        if place_of(said) != place_of(step.said):
            raise PlacerError(
                f"a guard inside of '{eqn.primitive.name}'{where(eqn)} says"
                f" {place_of(said) or 'no place'}, and around it is"
                f" {place_of(step.said) or 'no place'}: it runs in one place",
                hint="open the guard around the whole of it",
            )


def where(eqn: Any) -> str:
    """The line of the user's that an equation comes from, as ` (model.py:12)`."""
    trace = eqn.source_info.traceback
    for frame in trace.frames if trace is not None else ():
        if _is_users(frame.file_name):
            return _line(frame.file_name, frame.line_num)
    return ""


def caller_line() -> str:
    """The user's line that runs now, as ` (model.py:12)`."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if _is_users(frame.f_code.co_filename):
            return _line(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""


def _is_users(file: str) -> bool:
    file = file.replace("\\", "/")
    return not any(part in file for part in _LIBRARIES) and "<" not in file


def _line(file: str, number: int) -> str:
    return f" ({file.replace(chr(92), '/').rpartition('/')[2]}:{number})"


_LIBRARIES = ("/site-packages/", "/placer/regions/", "/placer/place/")


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """How many operands of a `scan` are constants of its body, and how many are carried;
    those that follow are scanned. `params` are the equation's."""
    if "num_consts" in params:  # as in JAX 0.10
        return params["num_consts"], params["num_carry"]
    consts, carried, _ = params["ft_in"].unpack()
    return len(consts), len(carried)
