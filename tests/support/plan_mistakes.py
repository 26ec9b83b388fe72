"""Finds what is wrong in a compiled plan: rows that no node returns, or two nodes do, and
messages that nothing answers. Also plans with such mistakes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec import structs

from placer.place.layouts.partition import RowShard
from placer.plan.plan import Edge, NodePhase, Plan
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
    """Find rows of outputs that are not returned once, and rows of inputs that are not
    read once where the nodes share a batch."""
    outputs: dict[str, list[RowShard]] = {output.name: [] for output in plan.outputs}
    for node in plan.nodes:
        assert node.prediction is not None
        for name, shard in node.prediction.outputs.items():
            outputs[name].append(shard)
    for name, shards in outputs.items():
        if not _have_each_row(shards):
            yield f"the nodes do not return every row of '{name}' once"
    inputs = {POSITION, *(column.name for column in plan.columns)}
    for phase in ("step", "evaluation", "prediction"):
        reads: dict[tuple[str, str], list[RowShard]] = {}
        for found in filter(None, (getattr(node, phase) for node in plan.nodes)):
            for read in found.reads:
                reads.setdefault((read.value, read.input), []).append(read.shard)
        for (_, name), shards in reads.items():
            is_shared = any(shard.num_parts > 1 for shard in shards)
            if name not in inputs or (is_shared and not _have_each_row(shards)):
                yield f"the nodes do not read every row of '{name}' once"


def _have_each_row(shards: list[RowShard]) -> bool:
    """Whether each row of a batch is in one of the shards, once."""
    parts = sorted(index for shard in shards for index in shard.part_indices)
    counts = {shard.num_parts for shard in shards}
    return counts == {len(parts)} and parts == [*range(len(parts))]


def _unanswered(edges: tuple[Edge, ...]) -> Iterator[str]:
    """Find messages without one answer, and answers without a message."""
    asked, answers = [], []
    for edge in edges:
        tables = sorted(name for value in edge.values for name in value.tables)
        rest = edge.group, tuple(tables)
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
        name
        for edge in plan.step_edges
        if edge.exchange == "push_rows"
        for value in edge.values
        for name in value.tables
    )
    for each in plan.sparse_tables:
        if pushed[each.name] != each.trainable:
            yield f"'{each.name}' gets {pushed[each.name]} gradients"


def _wrong_holders(plan: Plan, edge: Edge) -> Iterator[str]:
    """Find rows of sparse tables that go to nodes which do not have them."""
    held = {table.name: table for table in plan.sparse_tables}
    for value in edge.values:
        if edge.is_by_key != bool(value.tables):
            yield f"edge {edge.id}: '{value.operand}' is not of a sparse table"
        if len(value.tables) > 1 and edge.exchange != "ask_rows":
            yield f"edge {edge.id}: '{value.operand}' are rows of several tables"
        for name in value.tables:
            table = held[name]
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
        assert node.prediction is not None
        for name, shard in node.prediction.outputs.items():
            for wrong in _wrong_shards(shard):
                outputs = {**node.prediction.outputs, name: wrong}
                phase = structs.replace(node.prediction, outputs=outputs)
                changed = _with_node(plan, i, prediction=phase)
                yield f"{node.name} returns {wrong} of '{name}'", changed
        for j, read in enumerate(node.step.reads):
            for wrong in _wrong_shards(read.shard) if read.shard.num_parts > 1 else ():
                reads = [*node.step.reads]
                reads[j] = structs.replace(read, shard=wrong)
                phase = structs.replace(node.step, reads=tuple(reads))
                changed = _with_node(plan, i, step=phase)
                yield f"{node.name} reads {wrong} of '{read.input}'", changed
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
                changed = structs.replace(
                    plan, **{field: (*edges[:i], *others, *edges[i + 1 :])}
                )
                yield f"edge {edge.id} ({edge.exchange}) {what}", changed


def _wrong_shards(shard: RowShard) -> Iterator[RowShard]:
    """Yield shards with no row, with each row twice, and with a row of no batch."""
    parts = shard.part_indices
    for wrong in ((), parts * 2, (*parts[1:], shard.num_parts)):
        yield RowShard(wrong, shard.num_parts)


def _with_node(plan: Plan, index: int, **fields: NodePhase) -> Plan:
    nodes = [*plan.nodes]
    nodes[index] = structs.replace(nodes[index], **fields)
    return structs.replace(plan, nodes=tuple(nodes))
