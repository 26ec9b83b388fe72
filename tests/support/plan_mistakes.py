"""Finds what is wrong in a compiled plan: rows that no node returns, or two nodes do, and
messages that nothing answers. Also plans with such mistakes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain

from msgspec import structs

from placer.place.layouts.partition import RowShard
from placer.plan.plan import BY_KEY, Edge, Plan
from placer.plan.settings.data.sources import POSITION

ANSWERS = {
    "push": "pull",
    "push_delta": "pull",
    "push_sum": "pull_sum",
    "sum_of_first": "offer",
    "ask_rows": "give_rows",
}
"""The kind of exchange that answers messages of another kind."""


def find_mistakes(plan: Plan) -> Iterator[str]:
    """Yield what is wrong in a plan."""
    yield from _wrong_rows(plan)
    for edges in (plan.step_edges, plan.evaluation_edges, plan.prediction_edges):
        yield from _unanswered(edges)
        for edge in edges:
            yield from _wrong_ranges(edge)
            yield from _wrong_holders(plan, edge)
    yield from _wrong_updates(plan)


def _wrong_rows(plan: Plan) -> Iterator[str]:
    """Find rows of outputs that are not returned exactly once, and wrong reads."""
    inputs = {POSITION, *(column.name for column in plan.columns)}
    returned: dict[str, list[RowShard]] = {output.name: [] for output in plan.outputs}
    for node in plan.nodes:
        phases = [node.step, node.evaluation, node.prediction]
        for read in chain(*(phase.reads for phase in phases if phase is not None)):
            if read.input not in inputs:
                yield f"{node.name} reads '{read.input}', which is no input"
            if max(read.shard.part_indices) >= read.shard.num_parts:
                yield f"{node.name} reads rows of '{read.input}' that no batch has"
        outputs = node.prediction.outputs if node.prediction is not None else {}
        for name, shard in outputs.items():
            returned[name].append(shard)
    for name, shards in returned.items():
        parts = sorted(index for shard in shards for index in shard.part_indices)
        counts = {shard.num_parts for shard in shards}
        if counts != {len(parts)} or parts != [*range(len(parts))]:
            yield f"the nodes do not return every row of '{name}' once"


def _unanswered(edges: tuple[Edge, ...]) -> Iterator[str]:
    """Find messages without one answer, and answers without a message."""
    asked, answers = [], []
    for edge in edges:
        rest = edge.group, tuple(sorted(str(value.table) for value in edge.values))
        if edge.exchange in ANSWERS:
            asked.append((edge.targets, edge.sources, ANSWERS[edge.exchange], *rest))
        if edge.exchange in ANSWERS.values():
            answers.append((edge.sources, edge.targets, edge.exchange, *rest))
    if Counter(asked) != Counter(answers) or len({*asked}) < len(asked):
        yield f"messages wait for {asked}, which are not {answers}"


def _wrong_updates(plan: Plan) -> Iterator[str]:
    """Find tables that are not updated exactly once for each push, or step."""
    updated = Counter(
        (node, frozenset(value.result for value in edge.values))
        for edge in plan.step_edges
        if edge.exchange in ("push", "push_delta", "push_all", "pull_sum")
        for node in edge.targets
    )
    expected = Counter(
        (node.name, frozenset(block.gradient for block in table.blocks))
        for node in plan.nodes
        for table in node.tables
        if table.mode is not None
    )
    for node, values in (updated - expected) + (expected - updated):
        yield f"{node}: {sorted(map(str, values))} do not update one table"
    pushed = Counter(
        value.table
        for edge in plan.step_edges
        if edge.exchange == "push_rows"
        for value in edge.values
    )
    for each in plan.sparse_tables:
        if pushed[each.name] != each.trainable:
            yield f"'{each.name}' gets {pushed[each.name]} gradients"


def _wrong_holders(plan: Plan, edge: Edge) -> Iterator[str]:
    """Find rows of sparse tables that go to nodes which do not have them."""
    held = {table.name: table for table in plan.sparse_tables}
    for value in edge.values:
        if (edge.exchange in BY_KEY) != (value.table is not None):
            yield f"edge {edge.id}: '{value.operand}' is not of a sparse table"
        if value.table is None:
            continue
        table = held[value.table]
        row = () if edge.exchange == "ask_rows" else (table.settings.dim,)
        side = edge.sources if edge.exchange == "give_rows" else edge.targets
        if side != table.holders or value.shape != ("keys", *row):
            yield f"edge {edge.id}: '{value.operand}' are not rows of its nodes"


def _wrong_ranges(edge: Edge) -> Iterator[str]:
    """Find values that do not fit where they are sent to."""
    if edge.ring and (not edge.is_flat or edge.sources != edge.targets):
        yield f"edge {edge.id}: it is a ring of nodes that have no ranges"
    for value in edge.values:
        flat = value.flat
        if ("F" in value.layouts) != edge.is_flat or (flat is None) == edge.is_flat:
            yield f"edge {edge.id}: '{value.operand}' is not in ranges, as others are"
        if flat is not None and flat.at + value.size > flat.total:
            yield f"edge {edge.id}: '{value.operand}' ends after its group"
        if value.whole is not None and value.at + value.size > value.numel:
            yield f"edge {edge.id}: '{value.result}' ends after its whole"


def plant_mistakes(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Yield plans with one mistake each, and which it is."""
    for i, node in enumerate(plan.nodes):
        phase = node.prediction
        for name, shard in phase.outputs.items() if phase is not None else ():
            for what, parts in (
                ("no", ()),
                ("twice the", shard.part_indices * 2),
                ("other", (*shard.part_indices[1:], shard.num_parts)),
            ):
                outputs = {**phase.outputs, name: RowShard(parts, shard.num_parts)}
                changed = structs.replace(
                    node, prediction=structs.replace(phase, outputs=outputs)
                )
                nodes = (*plan.nodes[:i], changed, *plan.nodes[i + 1 :])
                wrong = structs.replace(plan, nodes=nodes)
                yield f"{node.name} returns {what} rows of '{name}'", wrong
    for field in ("step_edges", "evaluation_edges", "prediction_edges"):
        edges = getattr(plan, field)
        for i, edge in enumerate(edges):
            if edge.exchange is None:
                continue
            for what, others in (
                ("is missing", ()),
                ("is there twice", (edge, edge)),
                ("has other nodes", (structs.replace(edge, targets=("ps:9",)),)),
            ):
                wrong = structs.replace(
                    plan, **{field: (*edges[:i], *others, *edges[i + 1 :])}
                )
                yield f"edge {edge.id} ({edge.exchange}) {what}", wrong
