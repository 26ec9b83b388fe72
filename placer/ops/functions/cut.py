"""Cuts a traced function into regions: equations at one place, which run as one op.

The innermost guard around an equation decides its place. An equation without a guard
takes the guards of its first operand that has guards. It joins the first region with
these guards that runs after all of its operands. Therefore a region may contain
equations that were traced before and after equations of other places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax.extend import core

from placer.errors import PlacerError
from placer.ops.functions.complex_values import with_real_boundary
from placer.ops.functions.flatten import FlatEquation, FlatJaxpr, Guards
from placer.ops.functions.replica import Parted
from placer.ops.functions.replica_split import Split, split_of
from placer.ops.functions.user_lines import source_line

OUTSIDE, RANDOM = -1, -2

ValueSource = tuple[int, int]
"""The source of a value: result `k` of region `r`, (OUTSIDE, input `k`), or one of
`STEP_KEY`, `ROW_NUMBERS` and `PART_NUMBER`."""

STEP_KEY, ROW_NUMBERS, PART_NUMBER = (RANDOM, 0), (RANDOM, 1), (RANDOM, 2)
"""The key of the step, the numbers of the rows in the global batch, and the number of the
part of the batch.

They are the last inputs of a jaxpr. The graph has no values for them.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Equations at one place.

    Attributes:
        guards: the guards around the equations, outermost first.
        operands: the sources of the region's inputs, in order.
        random: the sources that it needs among `STEP_KEY`, `ROW_NUMBERS` and
            `PART_NUMBER`.
        closed: its closed jaxpr, with real arrays in place of complex inputs and results.
            Its inputs are the operands, then `random`.
        written: its jaxpr as the function was traced, for messages.
        split: if the region computes each part of the batch, how its operands and results
            relate to the parts. `closed` then computes one part.
    """

    guards: Guards
    operands: tuple[ValueSource, ...]
    random: tuple[ValueSource, ...]
    closed: Any
    written: Any
    split: Split | None = None

    def __call__(self, *inputs: Any) -> list[Any]:
        """Compute the results of the region."""
        results: list[Any] = core.jaxpr_as_fun(self.closed)(*inputs)
        return results

    def describe_start(self) -> str:
        """Return the name and the line of the first equation."""
        eqn = self.written.eqns[0]
        return f"'{eqn.primitive.name}'{source_line(eqn)}"

    def describe_result(self, index: int) -> str:
        """Return the name and the line of the equation that computes a result."""
        var = self.written.outvars[index]
        for eqn in self.written.eqns:
            if var in eqn.outvars:
                return f"'{eqn.primitive.name}'{source_line(eqn)}"
        return "an input"


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """The regions of a function in execution order, and the sources of its results."""

    regions: tuple[Region, ...]
    results: tuple[ValueSource, ...]


def cut(
    flat: FlatJaxpr, rows: Sequence[bool], debug: Any, parted: Parted | None = None
) -> Cut:
    """Cut a function into regions.

    Equations that depend on no input, or only on the key of the step and the row numbers,
    are copied into every region that needs them.
    Equations that depend only on parameters become separate regions if other regions
    need their results. So the results of all other regions have rows of the batch.

    Args:
        rows: whether each value has rows of the batch. Further inputs of the jaxpr are
            `STEP_KEY`, `ROW_NUMBERS` and `PART_NUMBER`.
        debug: the debug info for the jaxprs of the regions.
        parted: given if `flat` computes one part of a batch. A sum over the parts ends a
            region, and values that are equal in all parts leave regions of their own.

    Raises:
        PlacerError: if a result is a constant.
    """
    for var in flat.outvars:
        if isinstance(var, core.Literal) or var in flat.consts:
            value = getattr(var, "val", "an array of its file")
            raise PlacerError(
                f"a result is {value}, whatever the arguments of the function are",
                hint="do not return it from the function",
            )
    flow = _Dataflow(flat, rows, parted)
    separate: set[int] = set()
    # A separate region changes other regions, so more results may leave them. Repeat
    # until nothing else has to be separated.
    while True:
        homes, guards = _assign_regions(flow, separate)
        more = _find_separate(flow, homes) - separate
        if not more:
            return _build_regions(flow, homes, guards, debug)
        separate |= more


CONSTANT, PARAMETERS, BATCH = 0, 1, 2
"""The dependence of a value: on no input, on parameters only, or on the batch.

In a function of one part, `PARAMETERS` are all values that are equal in all parts, and
`BATCH` the others. The key and the number of the part are constants.
"""


class _Dataflow:
    def __init__(
        self, flat: FlatJaxpr, rows: Sequence[bool], parted: Parted | None
    ) -> None:
        self.flat = flat
        self.parted = parted
        self.producer = {
            v: i for i, s in enumerate(flat.equations) for v in s.eqn.outvars
        }
        self.results = [self.producer[v] for v in flat.outvars if v in self.producer]
        of_values = dict.fromkeys(flat.consts, CONSTANT)
        self.random = flat.invars[len(rows) :]
        of_values |= dict.fromkeys(self.random, CONSTANT)
        for var, has_rows in zip(flat.invars, rows, strict=False):
            of_values[var] = BATCH if has_rows else PARAMETERS
        self.dependence: list[int] = []
        for i, equation in enumerate(flat.equations):
            operands = (of_values[v] for v in equation.operands)
            level = max(operands, default=CONSTANT)
            if parted is not None and self._is_of_part(i, level, parted):
                level = BATCH
            self.dependence.append(level)
            of_results = PARAMETERS if self.is_sum(i) else level
            of_values |= dict.fromkeys(equation.eqn.outvars, of_results)

    def _is_of_part(self, equation: int, level: int, parted: Parted) -> bool:
        """Whether an equation must be computed for each part."""
        outvars = self.flat.equations[equation].eqn.outvars
        is_varying = any(v not in parted.values.equal for v in outvars)
        is_used = level != CONSTANT or equation in self.results
        return equation in parted.sums or (is_varying and is_used)

    def is_sum(self, equation: int) -> bool:
        """Return True if an equation is a sum over the parts, which ends its region."""
        return self.parted is not None and equation in self.parted.sums

    def with_producers(
        self, equations: Iterable[int], is_needed: Callable[[int], bool]
    ) -> set[int]:
        """Return equations with all needed equations that their operands depend on."""
        found = set(equations)
        pending = list(found)
        while pending:
            new = set(filter(is_needed, self.producers(pending.pop()))) - found
            found |= new
            pending.extend(new)
        return found

    def producers(self, equation: int) -> list[int]:
        """Return the equations that compute the operands of an equation, in order."""
        operands = self.flat.equations[equation].operands
        return [self.producer[v] for v in operands if v in self.producer]


RegionNumbers = dict[int, int]
"""The region of each equation that is in exactly one region.

Other equations are copied into the regions that need them.
"""


def _assign_regions(
    flow: _Dataflow, separate: set[int]
) -> tuple[RegionNumbers, list[Guards]]:
    homes: RegionNumbers = {}
    keys: list[tuple[Guards, bool]] = []
    for i, equation in enumerate(flow.flat.equations):
        is_copied = flow.dependence[i] == CONSTANT and i not in flow.results
        if is_copied and equation.eqn.outvars:
            continue
        before = [j for j in flow.producers(i) if j in homes]
        after = [homes[j] for j in before]
        key = equation.guards or (keys[after[0]][0] if after else ()), i in separate
        first = max((homes[j] + flow.is_sum(j) for j in before), default=0)
        at = next((k for k in range(first, len(keys)) if keys[k] == key), len(keys))
        if at == len(keys):
            keys.append(key)
        homes[i] = at
    return homes, [guards for guards, _ in keys]


def _find_separate(flow: _Dataflow, homes: RegionNumbers) -> set[int]:
    """Return batch-independent equations whose results leave a batch region."""
    batch_regions = {home for i, home in homes.items() if flow.dependence[i] == BATCH}
    leaving = set(flow.results)
    for i, home in homes.items():
        leaving.update(j for j in flow.producers(i) if homes.get(j, home) != home)
    mixed = [
        i for i in leaving
        if flow.dependence[i] < BATCH and homes.get(i) in batch_regions
    ]  # fmt: skip
    return flow.with_producers(
        mixed, lambda j: j in homes and flow.dependence[j] < BATCH
    )


def _build_regions(
    flow: _Dataflow, homes: RegionNumbers, guards: list[Guards], debug: Any
) -> Cut:
    flat = flow.flat
    members: list[list[int]] = [[] for _ in guards]
    for i, home in homes.items():
        members[home].append(i)
    leaving = {v for v in flat.outvars if v in flow.producer}
    for i, home in homes.items():
        leaving.update(
            v
            for v in flat.equations[i].operands
            if v in flow.producer and homes.get(flow.producer[v], home) != home
        )
    sources: dict[Any, ValueSource] = {
        v: (OUTSIDE, i) for i, v in enumerate(flat.invars)
    }
    sources |= {v: (RANDOM, i) for i, v in enumerate(flow.random)}
    regions = []
    for at, indices in enumerate(members):
        with_constants = flow.with_producers(indices, lambda j: j not in homes)
        written = [flat.equations[i].eqn for i in sorted(with_constants)]
        inside = {v for eqn in written for v in eqn.outvars}
        operands = dict.fromkeys(
            v
            for eqn in written
            for v in FlatEquation(eqn, ()).operands
            if v not in inside
        )
        random = [v for v in flow.random if v in operands]
        values = [v for v in operands if v not in flat.consts and v not in random]
        constvars = [v for v in operands if v in flat.consts]
        outvars = [
            v for i in indices for v in flat.equations[i].eqn.outvars if v in leaving
        ]
        sources.update({v: (at, k) for k, v in enumerate(outvars)})
        # A region returns the operands of its sums.
        summed = {
            flat.equations[i].eqn.outvars[0]: flat.equations[i].eqn.invars[0]
            for i in indices
            if flow.is_sum(i)
        }
        eqns = [eqn for eqn in written if summed.keys().isdisjoint(eqn.outvars)]
        effects: frozenset[Any] = frozenset().union(*(eqn.effects for eqn in eqns))
        inputs, returned = [*values, *random], [summed.get(v, v) for v in outvars]
        jaxpr = core.Jaxpr(constvars, inputs, returned, eqns, effects, debug)
        closed = core.ClosedJaxpr(jaxpr, [flat.consts[v] for v in constvars])
        shown = core.Jaxpr(constvars, inputs, outvars, written, effects, debug)
        operands_of, random_of = (
            tuple(sources[v] for v in each) for each in (values, random)
        )
        closed = with_real_boundary(closed)
        region = Region(guards[at], operands_of, random_of, closed, shown)
        if flow.parted and any(flow.dependence[i] == BATCH for i in indices):
            split = split_of(values, outvars, summed, flow.parted, region)
            region = replace(region, split=split)
        regions.append(region)
    return Cut(tuple(regions), tuple(sources[v] for v in flat.outvars))
