"""The search against all cuts of small random graphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise, product

from hypothesis import given, settings
from hypothesis import strategies as st

from placer.compiler.placing.bounds import least_load
from placer.compiler.placing.candidates import candidates, evaluate
from placer.compiler.placing.cuts import Stage, Stages, best_cuts
from placer.compiler.placing.cycles import Sets
from placer.compiler.placing.loads import Loads
from placer.compiler.placing.orders import orders, program_order
from placer.compiler.placing.problem import Devices, Flow, Group, Link, Problem

TIMES = st.integers(0, 50)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    count = draw(st.integers(1, 5))
    groups = [
        Group(
            f"g{number}",
            {kind: draw(TIMES) for kind in ("fast", "slow") if draw(st.booleans())}
            or {"fast": draw(TIMES)},
            {"fast": draw(TIMES)},
            *(draw(TIMES) for _ in range(4)),
        )
        for number in range(count)
    ]
    pairs = [*combinations(range(count), 2)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    flows = [Flow(a, (b,), draw(TIMES)) for a, b in edges]
    flows += [Flow(b, (a,), draw(TIMES)) for a, b in edges if draw(st.booleans())]
    if count > 2:
        flows.append(Flow(1, (0, 2), draw(TIMES)))
    limit = draw(st.none() | st.integers(50, 400))
    devices = (
        Devices("fast", draw(st.integers(1, 3)), limit),
        Devices("slow", draw(st.integers(0, 1)), sends=False),
    )
    link = Link(draw(TIMES), draw(st.integers(0, 2_000_000)), draw(st.booleans()))
    return Problem(
        groups,
        flows,
        edges,
        devices,
        link,
        draw(st.sampled_from([(1,), (1, 2), (1, 2, 3)])),
        draw(st.integers(1, 4)),
        draw(TIMES),
        draw(TIMES),
        draw(st.booleans()),
        draw(st.booleans()),
    )


@given(problems())
@settings(max_examples=60, deadline=None)
def test_the_best_cuts_are_the_best_of_all(problem: Problem) -> None:
    loads = Loads(problem, program_order(problem))
    best: dict[object, int] = {}
    for stages in _all_cuts(problem):
        key = _numbers(problem, stages)
        best[key] = min(best.get(key, 1 << 60), _load(loads, stages))
    found = best_cuts(loads, problem.replicas)
    assert {_numbers(problem, each): _load(loads, each) for each in found} == best
    if best:
        most = sorted(best.values())[len(best) // 2]
        few = best_cuts(loads, problem.replicas, most)
        wanted = [each for each in found if _load(loads, each) <= most]
        for measure in partial(_load, loads), partial(_numbers, problem):
            assert [*map(measure, few)] == [*map(measure, wanted)]
    for stages in found:
        assert evaluate(loads, stages).load == _load(loads, stages)
        assert least_load(problem) <= _load(loads, stages)


@given(problems())
@settings(max_examples=60, deadline=None)
def test_loads_of_intervals_are_those_of_their_groups(problem: Problem) -> None:
    for order in orders(problem):
        loads = Loads(problem, order)
        for first, end in combinations(range(len(order) + 1), 2):
            for devices in problem.devices:
                inside = order[first:end]
                if all(devices.kind in problem.groups[g].forward for g in inside):
                    for replicas in problem.replicas:
                        assert loads.load(first, end, devices, replicas) == _by_hand(
                            problem, {*inside}, devices, replicas
                        )


@given(problems())
@settings(max_examples=40, deadline=None)
def test_candidates_are_complete_and_fit(problem: Problem) -> None:
    found = candidates(problem)
    assert [each.step for each in found] == sorted(each.step for each in found)
    for each in found:
        stage_of = {
            group: number
            for number, stage in enumerate(each.stages)
            for group in each.groups_of(stage)
        }
        assert sorted(stage_of) == [*range(len(problem.groups))]
        assert all(stage_of[a] <= stage_of[b] for a, b in problem.edges)
        assert each.step >= each.load >= least_load(problem)
        if {stage.kind for stage in each.stages} == {"fast"}:
            assert each.memory <= (problem.devices[0].memory or each.memory)


@given(problems())
@settings(max_examples=20, deadline=None)
def test_the_order_of_flows_and_edges_changes_nothing(problem: Problem) -> None:
    changed = replace(problem, flows=problem.flows[::-1], edges=problem.edges[::-1])
    assert candidates(changed) == candidates(problem)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7))))
def test_sets_on_a_cycle_are_joined_and_no_others(edges: list[tuple[int, int]]) -> None:
    sets = Sets(8)
    sets.join_cycles(edges)
    reached = [{a} for a in range(8)]
    for _ in range(8):
        for a, b in edges:
            for each in reached:
                if a in each:
                    each.add(b)
    for a, b in product(range(8), repeat=2):
        is_on_cycle = b in reached[a] and a in reached[b]
        assert (sets.first(a) == sets.first(b)) == is_on_cycle


def _all_cuts(problem: Problem) -> Iterator[Stages]:
    """Yield all cuts of the program order into stages that exist and fit."""
    order = program_order(problem)
    count = len(order)
    choices = [(d, r) for d in problem.devices for r in problem.replicas]
    for number in range(count):
        for cuts in combinations(range(1, count), number):
            bounds = [*pairwise((0, *cuts, count))]
            for chosen in product(choices, repeat=len(bounds)):
                stages = tuple(
                    Stage(first, end, devices.kind, replicas)
                    for (first, end), (devices, replicas) in zip(
                        bounds, chosen, strict=True
                    )
                )
                if _exists(problem, order, stages):
                    yield stages


def _exists(problem: Problem, order: tuple[int, ...], stages: Stages) -> bool:
    for devices in problem.devices:
        used = sum(s.replicas for s in stages if s.kind == devices.kind)
        if used > devices.count:
            return False
    limits = {devices.kind: devices.memory for devices in problem.devices}
    for after, stage in enumerate(reversed(stages)):
        groups = [problem.groups[each] for each in order[stage.first : stage.end]]
        if not all(stage.kind in group.forward for group in groups):
            return False
        count = problem.microbatches
        live = count if problem.holds_all else min(count, after + 1)
        held = sum(group.activations for group in groups) * live
        memory = sum(g.stored for g in groups) + -(-held // stage.replicas)
        limit = limits[stage.kind]
        if limit is not None and memory > limit:
            return False
    return True


def _by_hand(
    problem: Problem, inside: set[int], devices: Devices, replicas: int
) -> int:
    groups = [problem.groups[each] for each in inside]
    count, link = problem.microbatches, problem.link
    work = sum(group.time(devices.kind) for group in groups)
    computed = -(-count * work // replicas) + count * problem.call + problem.update
    computed += sum(group.once for group in groups)
    crossing = [
        flow
        for flow in problem.flows
        if {flow.source, *flow.targets} & inside
        and (
            (flow.source in inside and not inside.issuperset(flow.targets))
            or (flow.source not in inside and not inside.isdisjoint(flow.targets))
        )
    ]
    transfers = [link.time(flow.nbytes) - link.per_message for flow in crossing]
    sent = -(-count * sum(transfers) // replicas)
    sent += count * len(crossing) * link.per_message
    sent += problem.exchanges(sum(group.parameters for group in groups), replicas)
    if not devices.sends:
        return computed
    return max(computed, sent) if link.overlaps else computed + sent


def _load(loads: Loads, stages: Stages) -> int:
    devices = {each.kind: each for each in loads.problem.devices}
    return max(loads.load(s.first, s.end, devices[s.kind], s.replicas) for s in stages)


def _numbers(problem: Problem, stages: Stages) -> object:
    used = [
        sum(s.replicas for s in stages if s.kind == devices.kind)
        for devices in problem.devices
    ]
    return len(stages), *used
