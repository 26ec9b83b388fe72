"""Describes the tables of a node in words, for server logs and reports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import to_builtins

from placer.plan.plan import NodePlan, Plan, SparseTable, Table
from placer.plan.settings.training import optimizers
from placer.plan.settings.training.schedules import Rate
from placer.plan.settings.training.transformations import Transformation
from placer.plan.settings.training.update_modes import Geo, describe_mode

_MOST_LEAVES: Final = 8
_Row = tuple[str, str, str, str, str, str]
_HEAD: _Row = ("table", "kind", "name", "width", "stored here", "optimizer")


def table_ids(plan: Plan) -> dict[str, int]:
    """Return the number of each table by name: dense tables first, then sparse tables."""
    dense = (table.name for node in plan.nodes for table in node.tables)
    sparse = (table.name for table in plan.sparse_tables)
    return {name: i for i, name in enumerate(dict.fromkeys((*dense, *sparse)))}


def name_tables(names: str | Sequence[str]) -> str:
    """Return the text for the table, or the tables, of a call: `wide.table +1`."""
    if isinstance(names, str):
        return names
    first, *others = names
    return f"{first} +{len(others)}" if others else first


def table_lines(plan: Plan, node: NodePlan) -> Iterator[str]:
    """Yield lines of text that list a node's tables with their numbers.

    The last line is the barrier of the run, which PaddlePaddle counts as a table. The
    width of a dense table is its number of elements on all nodes. The width of a sparse
    table is its number of columns.
    """
    ids = table_ids(plan)
    rows = [_HEAD]
    for dense in node.tables:
        here = sum(block.numel for block in dense.blocks)
        stored = f"{here:,} elements in {_count(len(dense.blocks), 'block')}"
        width = f"{_width(plan, dense.name):,}"
        text = describe_optimizer(plan, dense)
        rows.append((str(ids[dense.name]), "dense", dense.name, width, stored, text))
    for sparse in plan.sparse_tables:
        if node.name in sparse.holders:
            stored = describe_partitions(sparse, node.name)
            width, number = f"{sparse.settings.dim:,}", str(ids[sparse.name])
            begin = describe_first_values(sparse)
            text = f"{describe_optimizer_of_rows(sparse)}; {begin}"
            rows.append((number, "sparse", sparse.name, width, stored, text))
    processes = _count(len(plan.processes), "process", "processes")
    rows.append((str(len(ids)), "barrier", "", "", processes, ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    yield f"{node.name} has {len(rows) - 2} of {_count(len(ids), 'table')}:"
    for row in rows:
        cells = (
            f"{cell:>{width}}" if name == "width" else f"{cell:{width}}"
            for name, cell, width in zip(_HEAD, row, widths, strict=True)
        )
        yield f"  {'  '.join(cells)}".rstrip()


def _width(plan: Plan, name: str) -> int:
    """Return the number of elements of a dense table on all nodes, without replicas."""
    parts = {
        (block.parameter, block.start): block.numel
        for node in plan.nodes
        for table in node.tables
        if table.name == name
        for block in table.blocks
    }
    return sum(parts.values())


def describe_optimizer(plan: Plan, table: Table) -> str:
    """Describe the optimizer of a dense table in one line."""
    if table.rule is None:
        return "not trained"
    if table.rule == optimizers.OPTAX:
        transformation = plan.transformations[table.transformation]
        text = _describe_optax(transformation, table.learning_rate)
    else:
        text = _describe_rule(table.rule, table.hyper, table.learning_rate or 0.0)
    if table.local:
        return f"trains the worker's own copy by {text}"
    if isinstance(table.mode, Geo):
        text = f"adds the changes of workers by {text}"
    if table.mode is not None:
        return f"{text}; update {describe_mode(table.mode)}"
    return text


def describe_optimizer_of_rows(table: SparseTable) -> str:
    """Describe the optimizer of a sparse table in one line."""
    settings = table.settings
    if not table.trainable:
        return "not trained"
    text = _describe_rule(settings.rule, settings.hyper, table.learning_rate)
    return text if table.mode is None else f"{text}; update {describe_mode(table.mode)}"


def describe_first_values(table: SparseTable) -> str:
    """Describe the initial values of a sparse table's rows."""
    form, arguments = table.settings.init
    listed = ", ".join(f"{each:g}" for each in arguments)
    return f"values begin as {form}({listed})"


def describe_partitions(table: SparseTable, node: str) -> str:
    """Describe the partitions of a sparse table that a node stores."""
    held, count = table.partitions_of(node), table.settings.partitions
    if len(held) == count:
        return f"all {count:,} partitions"
    if not held:
        return f"none of {count:,} partitions"
    return f"partitions {held.start:,}-{held.stop - 1:,} of {count:,}"


def _describe_rule(name: str, hyper: Mapping[str, Any], learning_rate: Rate) -> str:
    """Describe a rule with its settings and the initial values of its slots."""
    rule = optimizers.read_rule(name, hyper)
    rate = f"learning rate {_format_setting(to_builtins(learning_rate))}"
    settings = [f"{name} {_format_setting(value)}" for name, value in hyper.items()]
    slots = [
        f"{slot} = {value:g}" + (" for each row" if slot == rule.row_slot else "")
        for slot, value in rule.first_slots.items()
    ]
    slot_text = f"slots {' and '.join(slots)}" if slots else "no slots"
    return f"{name}: {', '.join([rate, *settings])}; {slot_text}"


def _describe_optax(transformation: Transformation, learning_rate: Rate | None) -> str:
    """Describe an optax optimizer with its learning rate and state."""
    parts = [f"optax {transformation.fn}"]
    if transformation.config:
        given = json.loads(transformation.config).items()
        pairs = ", ".join(f"{key}: {_format_setting(value)}" for key, value in given)
        parts[0] += f" with {{{pairs}}}"
    if learning_rate is not None:
        rate = _format_setting(to_builtins(learning_rate))
        parts[0] += f": learning rate {rate}"
    names = [*dict.fromkeys(leaf.name for leaf in transformation.leaves)]
    more = [f"{len(names) - _MOST_LEAVES} more"] if len(names) > _MOST_LEAVES else []
    listed = ", ".join([*names[:_MOST_LEAVES], *more])
    parts.append(f"state {listed}" if names else "no state")
    if transformation.eval_params:
        parts.append(f"evaluations use {transformation.eval_params}")
    return "; ".join(parts)


def _format_setting(value: Any) -> str:
    """Format a setting, such as a learning rate schedule, as in a spec."""
    if not isinstance(value, Mapping):
        if isinstance(value, bool):
            return str(value).lower()
        return f"{value:g}" if isinstance(value, float) else str(value)
    pairs = ", ".join(f"{key}: {_format_setting(part)}" for key, part in value.items())
    return f"{{{pairs}}}" if len(value) > 1 else pairs


def _count(number: int, noun: str, several: str = "") -> str:
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"
