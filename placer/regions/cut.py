"""A traced function cut into regions: equations of one place that run as one op.

An equation stands where its innermost guard says; one without a guard with the first of
its operands that has a place. It joins the first region of its guards that comes after
all that it takes, so that equations that others stand between may be one region.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend import core

from placer.errors import PlacerError
from placer.regions.flatten import Flat, Step, where

OUTSIDE = -1

Source = tuple[int, int]
"""Where a value comes from: result `k` of region `r`, or (OUTSIDE, input `k`)."""


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Equations of one place. `said` is what their guards say, outermost first; `takes`
    are its inputs in their order; `closed` is its jaxpr, of the values it gives."""

    said: tuple[str, ...]
    takes: tuple[Source, ...]
    closed: Any

    def __call__(self, *inputs: Any) -> list[Any]:
        """What the equations give."""
        found: list[Any] = core.jaxpr_as_fun(self.closed)(*inputs)
        return found

    def begins(self) -> str:
        """Its first equation, and that one's line."""
        eqn = self.closed.jaxpr.eqns[0]
        return f"'{eqn.primitive.name}'{where(eqn)}"

    def line(self, index: int) -> str:
        """The equation that makes a result, and its line."""
        var = self.closed.jaxpr.outvars[index]
        for eqn in self.closed.jaxpr.eqns:
            if var in eqn.outvars:
                return f"'{eqn.primitive.name}'{where(eqn)}"
        return "an input"


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """The regions of a function, each after those whose results it takes, and where its
    results come from."""

    regions: tuple[Region, ...]
    results: tuple[Source, ...]


def cut(flat: Flat, rows: Sequence[bool], debug: Any) -> Cut:
    """Cut a function; `rows` says which inputs have rows of a batch.

    What depends on no input is made in every region that needs it. What depends on
    parameters alone and is needed elsewhere is a region of its own, so that the others
    give rows of a batch only.
    """
    for var in flat.outvars:
        if isinstance(var, core.Literal) or var in flat.consts:
            value = getattr(var, "val", "an array of the file's")
            raise PlacerError(
                f"a result is {value}, whatever the function is given",
                hint="leave it out of what the function returns",
            )
    uses = _Uses(flat, rows)
    apart: set[int] = set()
    while True:
        homes, said = _assigned(uses, apart)
        found = _shared(uses, homes) - apart
        if not found:
            return _regions(uses, homes, said, debug)
        apart |= found


FREE, FIXED, ROWS = 0, 1, 2
"""What a value depends on: on nothing, on parameters alone, on the batch."""


class _Uses:
    """Who makes what for whom; a step is known by its number."""

    def __init__(self, flat: Flat, rows: Sequence[bool]) -> None:
        self.flat = flat
        self.maker = {v: i for i, s in enumerate(flat.steps) for v in s.eqn.outvars}
        self.results = [self.maker[v] for v in flat.outvars if v in self.maker]
        given = dict.fromkeys(flat.consts, FREE)
        for var, has_rows in zip(flat.invars, rows, strict=True):
            given[var] = ROWS if has_rows else FIXED
        self.depends: list[int] = []
        for step in flat.steps:
            found = (
                self.depends[self.maker[v]] if v in self.maker else given[v]
                for v in step.operands
            )  # fmt: skip
            self.depends.append(max(found, default=FREE))

    def before(self, step: int) -> list[int]:
        """The steps that make its operands, in their order."""
        operands = self.flat.steps[step].operands
        return [self.maker[v] for v in operands if v in self.maker]


Homes = dict[int, int]
"""The region of each step that is in one; the others go where they are needed."""


def _assigned(uses: _Uses, apart: set[int]) -> tuple[Homes, list[tuple[str, ...]]]:
    """The homes, and what the guards of each region say."""
    homes: Homes = {}
    keys: list[tuple[tuple[str, ...], bool]] = []
    for i, step in enumerate(uses.flat.steps):
        goes_along = uses.depends[i] == FREE and i not in uses.results
        if goes_along and step.eqn.outvars:
            continue
        after = [homes[j] for j in uses.before(i) if j in homes]
        key = step.said or (keys[after[0]][0] if after else ()), i in apart
        first = max(after, default=0)
        at = next((k for k in range(first, len(keys)) if keys[k] == key), len(keys))
        if at == len(keys):
            keys.append(key)
        homes[i] = at
    return homes, [said for said, _ in keys]


def _shared(uses: _Uses, homes: Homes) -> set[int]:
    """The steps that do not depend on the batch and leave a region that does, with all
    that they are made of."""
    busy = {home for i, home in homes.items() if uses.depends[i] == ROWS}
    leaving = set(uses.results)
    for i, home in homes.items():
        leaving.update(j for j in uses.before(i) if homes.get(j, home) != home)
    ahead = [
        i for i in leaving if uses.depends[i] < ROWS and homes.get(i) in busy
    ]  # fmt: skip
    found = set(ahead)
    while ahead:
        new = {j for j in uses.before(ahead.pop()) if j in homes} - found
        found |= new
        ahead.extend(new)
    return found


def _regions(uses: _Uses, homes: Homes, said: list[tuple[str, ...]], debug: Any) -> Cut:
    flat = uses.flat
    own: list[list[int]] = [[] for _ in said]
    for i, home in homes.items():
        own[home].append(i)
    leaving = {v for v in flat.outvars if v in uses.maker}
    for i, home in homes.items():
        leaving.update(
            v
            for v in flat.steps[i].operands
            if v in uses.maker and homes.get(uses.maker[v], home) != home
        )
    sources: dict[Any, Source] = {v: (OUTSIDE, i) for i, v in enumerate(flat.invars)}
    regions = []
    for at, steps in enumerate(own):
        eqns = [flat.steps[i].eqn for i in _with_free(uses, homes, steps)]
        inside = {v for eqn in eqns for v in eqn.outvars}
        operands = dict.fromkeys(
            v for eqn in eqns for v in Step(eqn, ()).operands if v not in inside
        )
        takes = [v for v in operands if v not in flat.consts]
        known = [v for v in operands if v in flat.consts]
        gives = [v for i in steps for v in flat.steps[i].eqn.outvars if v in leaving]
        sources.update({v: (at, k) for k, v in enumerate(gives)})
        effects: frozenset[Any] = frozenset().union(*(eqn.effects for eqn in eqns))
        jaxpr = core.Jaxpr(known, takes, gives, eqns, effects, debug)
        closed = core.ClosedJaxpr(jaxpr, [flat.consts[v] for v in known])
        regions.append(Region(said[at], tuple(sources[v] for v in takes), closed))
    return Cut(tuple(regions), tuple(sources[v] for v in flat.outvars))


def _with_free(uses: _Uses, homes: Homes, steps: list[int]) -> list[int]:
    """The steps of a region with those that depend on nothing and that they need."""
    found, ahead = set(steps), list(steps)
    while ahead:
        new = {j for j in uses.before(ahead.pop()) if j not in homes} - found
        found |= new
        ahead.extend(new)
    return sorted(found)
