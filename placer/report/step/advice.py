"""Suggests settings that would make a step faster, where the figures of a trace say so.

Each suggestion has a threshold, so a step without a dominant cost gets none. A suggestion
names the key of the spec to change and the figures behind it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from placer.compiler.graph.graph import Graph
from placer.compiler.schedule.schedule import Schedule, make_schedule
from placer.place.node_kinds import SERVER, NodeId
from placer.plan.plan import Plan
from placer.report.numbers import format_ms, format_size, plural
from placer.report.step.critical_path import MESSAGE
from placer.report.step.facts import Piece, StepTime

GAIN = 0.1
"""The smallest estimated gain, as a fraction of the step, that is worth a suggestion."""
BUSY_GAP = 0.1
"""The smallest difference between promised and measured busy time to mention."""
MUCH = 0.4
"""The fraction of the longest chain that makes reading or updating the main cost."""
SLOWER = 1.5
"""A straggler works at least this many times as long as its median peer."""
SMALL_MESSAGE = 1 << 18
"""Messages below this size in bytes take time for their number, not for their bytes."""
MANY_MESSAGES = 8
"""The smallest number of gradient messages per worker and step to suggest fewer."""
SLOW = 1e6
"""Bytes per second. Messages with a lower rate wait rather than move."""
SLOW_ON_MACHINE = 3e8
"""The same rate between nodes of one machine, which share memory."""

_MOVING = frozenset({MESSAGE, "send", "receive"})
_READING = frozenset({"read"})
_UPDATING = frozenset({"update", "rows"})

_WORDS = {
    "compute": "computing",
    "update": "updates",
    "rows": "work on rows of sparse tables",
    "copy": "copies between devices",
    "record": "bookkeeping between steps",
    "step": "time outside the program's calls",
}
"""The categories of work in words."""


def advice_of(
    found: StepTime,
    works: Mapping[str, Mapping[str, float]],
    plan: Plan,
    graph: Graph | None,
    *,
    nbytes: int,
    is_local: bool = False,
) -> Iterator[str]:
    """Yield suggestions, each as one to three sentences.

    Args:
        found: the facts about the median step, with the mean chain of typical steps.
        works: the result of `works_of`.
        plan: the plan of the run.
        graph: the graph of a training step, for the schedule of a pipeline.
        nbytes: the bytes of the messages of a step.
        is_local: whether all nodes ran on one machine.
    """
    schedule = _schedule(plan, graph)
    yield from _stragglers(found, works, plan)
    if schedule is not None:
        yield from _microbatches(found, plan, schedule)
    yield from _reading(found)
    yield from _servers(found, plan)
    yield from _buckets(found, plan)
    if schedule is None:
        yield from _messages(found, plan, nbytes, is_local=is_local)


def _seconds(chain: Sequence[Piece], *, node: str = "", kinds: frozenset[str]) -> float:
    return sum(
        piece.end - piece.start
        for piece in chain
        if piece.category in kinds and node in ("", piece.node)
    )


def _schedule(plan: Plan, graph: Graph | None) -> Schedule | None:
    if graph is None or graph.microbatches == 1:
        return None
    schedule = make_schedule(graph, plan.settings.train.schedule)
    return schedule if schedule.tasks else None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The figures of a pipeline in one step.

    Attributes:
        microbatches: the number of microbatches.
        stages: the number of stages, from the duration of the declared step: 1 if no
            node ever waits for another.
        promised: the fraction of the declared step in which nodes compute, on average.
        measured: the same fraction of the measured step.
        compute: the seconds of jitted functions and of reading in the longest chain.
            They depend on the number of rows.
        rest: the other seconds of the chain. They grow with the number of microbatches.
    """

    microbatches: int
    stages: float
    promised: float
    measured: float
    compute: float
    rest: float

    def estimate(self, microbatches: int) -> float:
        """Return the estimated seconds of a step with another number of microbatches."""
        before = (self.microbatches + self.stages - 1) / self.microbatches
        after = (microbatches + self.stages - 1) / microbatches
        rest = self.rest * microbatches / self.microbatches
        return self.compute * after / before + rest


def pipeline_of(found: StepTime, plan: Plan, schedule: Schedule) -> Pipeline:
    """Return the figures of a pipeline."""
    nodes = [node for node, turns in schedule.tasks.items() if turns]
    busy = {
        node: sum(turn.end - turn.start for turn in schedule.tasks[node])
        for node in nodes
    }
    declared = max(schedule.tasks[node][-1].end for node in nodes)
    functions = {node: plan.node(node).functions for node in nodes}
    computed = {
        node: sum(
            seconds
            for name, seconds in found.measured.get(node, {}).items()
            if name in functions[node]
        )
        for node in nodes
    }
    count = schedule.microbatches
    compute = sum(
        piece.end - piece.start
        for piece in found.chain
        if piece.category == "read"
        or (piece.category == "compute" and piece.name in functions.get(piece.node, ()))
    )
    return Pipeline(
        count,
        1 + count * (declared / max(busy.values()) - 1),
        sum(busy.values()) / len(nodes) / declared,
        sum(computed.values()) / len(nodes) / found.seconds,
        compute,
        found.seconds - compute,
    )


def _microbatches(found: StepTime, plan: Plan, schedule: Schedule) -> Iterator[str]:
    """Yield a sentence about a number of microbatches with a shorter estimated step."""
    pipeline = pipeline_of(found, plan, schedule)
    count, batch = pipeline.microbatches, plan.train.batch
    # The model is too simple to compare counts that are far apart.
    near = [count * 4, count * 2, *(count // n for n in (2, 4) if count % n == 0)]
    allowed = [
        each for each in near if each >= 1 and batch % (each * plan.workers or 1) == 0
    ]
    best = min(allowed, key=pipeline.estimate, default=count)
    gain = found.seconds - pipeline.estimate(best)
    if pipeline.promised - pipeline.measured >= BUSY_GAP:
        promised = (
            f"In the declared schedule, nodes compute for {pipeline.promised:.0%} of a step;"
            f" in the trace, they compute for {pipeline.measured:.0%}. "
        )
    else:
        promised = ""
    if gain < GAIN * found.seconds:
        return
    if best < count:
        why = (
            "Work besides computing grows with the number of microbatches, and takes"
            f" {format_ms(pipeline.rest)} of the longest chain"
        )
    else:
        why = (
            f"Nodes wait for the first and the last microbatch, and work besides computing"
            f" takes only {format_ms(pipeline.rest)} of the longest chain"
        )
    yield (
        f"{promised}{why}. Set train.microbatches to {best} instead of {count}:"
        f" a step should take about {format_ms(pipeline.estimate(best))}."
    )


def _stragglers(
    found: StepTime, works: Mapping[str, Mapping[str, float]], plan: Plan
) -> Iterator[str]:
    """Yield a sentence about a node that works longer than its peers."""
    peers: dict[tuple[str, int], list[str]] = defaultdict(list)
    for node in plan.nodes:
        kind = NodeId(node.name).kind
        if node.name in works and kind != SERVER:
            peers[kind, node.flops].append(node.name)
    for nodes in peers.values():
        totals = {node: sum(works[node].values()) for node in nodes}
        slowest = max(nodes, key=totals.__getitem__)
        others = [node for node in nodes if node != slowest]
        usual = median(totals[node] for node in others) if others else totals[slowest]
        longer = totals[slowest] - usual
        if totals[slowest] < SLOWER * usual or longer < GAIN * found.seconds:
            continue
        extra = {
            category: seconds - median(works[node][category] for node in others)
            for category, seconds in works[slowest].items()
        }
        reason = max(extra, key=extra.__getitem__)
        if reason == "read":  # `_reading` reports slow sources
            continue
        advice = "Run fewer other processes on its machine, or use a faster machine."
        if plan.is_synchronous and not plan.has_backup and len(nodes) > 2:
            advice += (
                " If each run has a different slow worker, set the optimizer's"
                " update: {sync: {backup: 1}}."
            )
        yield (
            f"{slowest} works {format_ms(totals[slowest])} in a step, and its peers"
            f" {format_ms(usual)}. The difference is mostly {_WORDS[reason]}. {advice}"
        )


def _reading(found: StepTime) -> Iterator[str]:
    """Yield a sentence about a slow source of rows."""
    seconds = _seconds(found.chain, kinds=_READING)
    if seconds < MUCH * found.seconds:
        return
    nodes = {piece.node for piece in found.chain if piece.category == "read"}
    slowest = max(
        sorted(nodes),
        key=lambda node: _seconds(found.chain, node=node, kinds=_READING),
    )
    yield (
        f"Reading rows takes {format_ms(seconds)} of a step of {format_ms(found.seconds)},"
        f" mostly on {slowest}. Make the source in data.train faster: compute its columns"
        " in advance, or store them as Parquet or NPZ."
    )


def _servers(found: StepTime, plan: Plan) -> Iterator[str]:
    """Yield a sentence about servers that update for most of a step."""
    works = {
        node.name: _seconds(found.chain, node=node.name, kinds=_UPDATING)
        for node in plan.nodes
        if NodeId(node.name).kind == SERVER
    }
    if sum(works.values()) < MUCH * found.seconds:
        return
    slowest = max(works, key=works.__getitem__)
    shares = {
        node: sum(found.shares.get(node, {}).get(name, 0.0) for name in _UPDATING)
        for node in works
    }
    if shares[slowest] < MUCH:  # the median step is an exception
        return
    others = [share for node, share in shares.items() if node != slowest]
    figures = (
        f"Updates and lookups on {slowest} take {format_ms(works[slowest])} of a step of"
        f" {format_ms(found.seconds)}"
    )
    if others and shares[slowest] > SLOWER * max(others):
        yield (
            f"{figures}. {slowest} spends {shares[slowest]:.0%} of its time on them, and"
            f" other servers spend at most {max(others):.0%}. Divide large parameters over"
            " all servers (train.slicing), or place them on other servers."
        )
    else:
        yield f"{figures}. Use more than {plural(len(works), 'server')} (nodes.ps.count)."


def _buckets(found: StepTime, plan: Plan) -> Iterator[str]:
    """Yield a sentence about gradients in many small buckets."""
    buckets = [edge for edge in plan.step_edges if edge.bucket is not None]
    if len(buckets) < MANY_MESSAGES:
        return
    moving = _seconds(found.chain, kinds=_MOVING)
    mean = sum(e.nbytes / (len(e.sources) * len(e.targets)) for e in buckets) / len(
        buckets
    )
    if mean < SMALL_MESSAGE and moving >= MUCH / 2 * found.seconds:
        yield (
            f"A worker sends its gradients in {plural(len(buckets), 'bucket')} of"
            f" {format_size(mean)}, and messages take {format_ms(moving)} of the longest"
            " chain. Raise train.bucket_cap_mb."
        )


def _messages(
    found: StepTime, plan: Plan, nbytes: int, *, is_local: bool
) -> Iterator[str]:
    """Yield a sentence about a step that spends its time on messages."""
    moving = _seconds(found.chain, kinds=_MOVING)
    computing = _seconds(found.chain, kinds=frozenset({"compute"}))
    if len(plan.nodes) < 2 or moving < MUCH * found.seconds or moving < 2 * computing:
        return
    is_slow = nbytes < (SLOW_ON_MACHINE if is_local else SLOW) * moving
    reason = ""
    if is_slow and is_local:
        reason = " The nodes wait for the cores of their machine, or for each other."
    elif is_slow:
        reason = (
            " The nodes share too few cores, a node receives late, or the network has a"
            " high latency."
        )
    ways = ["a larger batch (data.train.batch; it changes the training)"]
    if plan.workers > 1:
        ways.append("fewer workers (nodes.worker.count)")
    if is_slow:
        ways.append("more cores")
    elif not is_local:
        ways.append("a faster network")
    yield (
        f"Messages of {format_size(nbytes)} take {format_ms(moving)} of the longest"
        f" chain, and computing takes {format_ms(computing)}.{reason} Use {_or(ways)}."
    )


def _or(ways: Sequence[str]) -> str:
    *first, last = ways
    return f"{', '.join(first)}, or {last}" if first else last
