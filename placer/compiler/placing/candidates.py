"""The placements that are worth a closer look, with what they take by a simple formula."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from placer.compiler.placing.cuts import Stage, Stages, best_cuts, live_microbatches
from placer.compiler.placing.loads import Loads
from placer.compiler.placing.orders import Order, orders
from placer.compiler.placing.problem import Problem


@dataclass(frozen=True, slots=True)
class Candidate:
    """A cut of an order into stages.

    Attributes:
        order: the groups by index, in the order that is cut.
        stages: the intervals of `order`, first to last. One stage on all devices is data
            parallel.
        load: the nanoseconds of a step that the slowest stage takes.
        step: the nanoseconds of a step, with the time to fill and to drain the pipeline.
        memory: the bytes of the device that holds most.
        nbytes: the bytes sent in a step.
    """

    order: Order
    stages: Stages
    load: int
    step: int
    memory: int
    nbytes: int

    @property
    def devices(self) -> int:
        """The number of devices that run anything."""
        return sum(stage.replicas for stage in self.stages)

    def groups_of(self, stage: Stage) -> tuple[int, ...]:
        """Return the groups of a stage by index, in order."""
        return self.order[stage.first : stage.end]


def candidates(problem: Problem) -> tuple[Candidate, ...]:
    """Return the candidates, from the shortest step to the longest.

    For each order, and each number of stages and devices, these are the best cuts, and those
    with one boundary moved; of two stages all cuts. A placement that two orders share is
    listed once.

    Args:
        problem: the groups, flows and devices.

    Raises:
        ValueError: groups use each other's values in a cycle.

    Example:
        >>> groups = [Group(name, {"cpu": 1_000}) for name in "abc"]
        >>> flows = [Flow(0, (1,), 8), Flow(1, (2,), 8)]
        >>> problem = Problem(groups, flows, [(0, 1), (1, 2)], [Devices("cpu", 2)])
        >>> candidates(problem)[0].stages
        (Stage(first=0, end=3, kind='cpu', replicas=1),)
    """
    if not problem.groups:
        return ()
    found: dict[object, Candidate] = {}
    for order in orders(problem):
        loads = Loads(problem, order)
        cuts = _cuts(loads)
        for stages in dict.fromkeys([*cuts, *_moved(cuts, loads)]):
            candidate = evaluate(loads, stages)
            found.setdefault(_content(candidate), candidate)
    return tuple(sorted(found.values(), key=lambda each: _key(problem, each)))


def choose(
    found: Sequence[Candidate], count: int = 8, alike: int = 3
) -> list[Candidate]:
    """Return candidates to look at closely, the best first.

    The best on one device is always among them, and the best that is data parallel on the
    most devices. Of those with the same numbers of replicas, the best `alike` come before
    others of a longer step: the formula cannot tell close ones apart.

    Args:
        found: candidates from the shortest step to the longest.
        count: how many are returned at most.
        alike: how many with the same numbers of replicas come before others.
    """
    single = [each for each in found if len(each.stages) == 1]
    most = max((each.devices for each in single), default=0)
    wanted: dict[Candidate, None] = {}
    for number in 1, most:
        wanted.update(dict.fromkeys([e for e in single if e.devices == number][:1]))
    number_of: dict[object, int] = {}
    others: list[Candidate] = []
    for candidate in found:
        shape = tuple((stage.kind, stage.replicas) for stage in candidate.stages)
        number_of[shape] = number_of.get(shape, 0) + 1
        if candidate in wanted:
            continue
        if number_of[shape] <= alike and len(wanted) < count:
            wanted[candidate] = None
        else:
            others.append(candidate)
    for candidate in others[: max(0, count - len(wanted))]:
        wanted[candidate] = None
    return [candidate for candidate in found if candidate in wanted]


def _cuts(loads: Loads) -> list[Stages]:
    """Return the best cuts: one stage, stages of one device, and stages of several devices
    unless these are much slower."""
    problem = loads.problem
    cuts = _data_parallel(loads) + best_cuts(loads)
    if cuts and max(problem.replicas) > 1:
        least = min(evaluate(loads, stages).load for stages in cuts)
        cuts += best_cuts(loads, problem.replicas, least * 13 // 10)
    return cuts


def _data_parallel(loads: Loads) -> list[Stages]:
    """Return single stages on each number of devices of one kind."""
    problem, end = loads.problem, len(loads.order)
    stages = [
        (Stage(0, end, devices.kind, number),)
        for devices in problem.devices
        for number in problem.replicas
        if number <= devices.count
    ]
    return [each for each in stages if _fits(each, loads)]


def evaluate(loads: Loads, stages: Stages) -> Candidate:
    """Return the candidate of these stages.

    The step is that of a pipeline: the slowest stage does all microbatches, and all others one
    before it or after it.
    """
    problem = loads.problem
    devices = {each.kind: each for each in problem.devices}
    count = problem.microbatches
    load = fill = longest = memory = 0
    for after, stage in enumerate(reversed(stages)):
        first, end, replicas = stage.first, stage.end, stage.replicas
        of_stage = loads.load(first, end, devices[stage.kind], replicas)
        fixed = loads.fixed(first, end, replicas)
        one = max(0, of_stage - fixed) // count
        load = max(load, of_stage)
        fill += one
        longest = max(longest, of_stage - one)
        live = live_microbatches(problem, after)
        memory = max(memory, loads.memory(first, end, replicas, live))
    sent = _sent(problem, loads.order, stages)
    return Candidate(loads.order, stages, load, fill + longest, memory, sent)


def _sent(problem: Problem, order: Order, stages: Stages) -> int:
    """Return the bytes sent in a step: values between stages, gradients between replicas."""
    stage_of = {
        group: number
        for number, stage in enumerate(stages)
        for group in order[stage.first : stage.end]
    }
    values = sum(
        flow.nbytes * len({stage_of[t] for t in flow.targets} - {stage_of[flow.source]})
        for flow in problem.flows
    )
    gradients = sum(
        2 * (stage.replicas - 1) * problem.groups[group].parameters
        for stage in stages
        for group in order[stage.first : stage.end]
    )
    return problem.microbatches * values + gradients


def _moved(cuts: Iterable[Stages], loads: Loads) -> Iterator[Stages]:
    """Yield cuts with one boundary moved: between two stages anywhere, otherwise by one."""
    for stages in cuts:
        for number in range(len(stages) - 1):
            one, two = stages[number : number + 2]
            if len(stages) == 2:
                ends: Sequence[int] = range(one.first + 1, two.end)
            else:
                ends = one.end - 1, one.end + 1
            for end in ends:
                if one.first < end < two.end:
                    pair = replace(one, end=end), replace(two, first=end)
                    moved = (*stages[:number], *pair, *stages[number + 2 :])
                    if _fits(moved, loads):
                        yield moved


def _fits(stages: Stages, loads: Loads) -> bool:
    """Whether each stage fits its device."""
    devices = {each.kind: each for each in loads.problem.devices}
    return all(
        stage.end
        <= loads.last(
            stage.first,
            devices[stage.kind],
            stage.replicas,
            live_microbatches(loads.problem, after),
        )
        for after, stage in enumerate(reversed(stages))
    )


def _content(candidate: Candidate) -> object:
    """Return what makes two candidates the same placement."""
    return tuple(
        (frozenset(candidate.groups_of(stage)), stage.kind, stage.replicas)
        for stage in candidate.stages
    )


def _key(problem: Problem, candidate: Candidate) -> tuple[object, ...]:
    """Return the key of the order of candidates."""
    names = [
        problem.groups[candidate.order[stage.first]].name for stage in candidate.stages
    ]
    sizes = candidate.devices, len(candidate.stages), candidate.memory, candidate.nbytes
    return candidate.step, *sizes, names
