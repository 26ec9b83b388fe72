"""Checks of a plan beyond its types: that names, paths and numbers are consistent.

A plan is checked once, when it is read, and the runtime relies on that. The checks find
mistakes, and names that lead out of the build folder. They do not make somebody else's
build safe to run: `docs/security.md`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from placer.config import csv, initializers, optimizers, schedules
from placer.config.data import RowSource
from placer.config.feature_columns import check_features
from placer.config.features import check_feature
from placer.config.slicing import Block
from placer.config.sources import POSITION, check_split
from placer.config.sparse_settings import find_problems
from placer.config.window import Window
from placer.errors import BuildError, DataError
from placer.layouts.partition import RowShard
from placer.layouts.ranges import Flat
from placer.node_kinds import CPU
from placer.types import BATCH, ITEM_BYTES

if TYPE_CHECKING:
    from placer.build.plan import (
        Edge,
        EdgeValue,
        NodePlan,
        Output,
        Parameter,
        Plan,
        SparseTable,
        Table,
    )
    from placer.config.classes import Classes

MEMORY = "cpu:0"
"""The devices of a table in host memory."""

BY_KEY = ("ask_rows", "give_rows", "push_rows")
"""The kinds of exchange of rows of sparse tables in lockstep."""

MAX_DEPTH = 32
"""The number of levels that values of a spec may be nested."""

_MODEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_NUMBERED = re.compile(r"[a-z][a-z0-9_]*:(0|[1-9][0-9]{0,4})")
_NODE = re.compile(_NUMBERED.pattern + r"(?:\.(?:0|[1-9][0-9]{0,5}))?")
_TABLE = re.compile(r"[a-z][a-z0-9_]*(:[0-9,*-]+)?")
_TURN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.(0|[1-9][0-9]*))?")
_DEVICE_KIND = re.compile(r"[a-z][a-z0-9_]*")
_DEVICES = re.compile(r"[a-z][a-z0-9_]*:[0-9,-]+")

Problems = Iterator[str]


def check_plan(plan: Plan, file: str) -> None:
    """Raise BuildError, with the first mistake, if a plan is inconsistent.

    `file` names the plan in the error.
    """
    for problem in _check_all(plan):
        raise BuildError(
            f"'{file}' is not a valid plan: {problem}", hint="compile the spec again"
        )


def _check_all(plan: Plan) -> Problems:
    yield from _check_names(_MODEL, [plan.name], "the model")
    yield from _check_names(_MODEL, plan.modules, "a module")
    yield from _check_unique("input", (column.name for column in plan.columns))
    for column in plan.columns:
        yield from _check_dtype(f"input '{column.name}'", column.dtype)
        if column.limits is not None:
            yield f"input '{column.name}' has limits, which only a source has"
    yield from _check_data(plan, plan.train, "train")
    if plan.evaluation is not None:
        yield from _check_data(plan, plan.evaluation, "eval")
    if plan.prediction is not None:
        yield from _check_data(plan, plan.prediction, "predict")
    yield from _check_outputs(plan)
    if not plan.nodes:
        yield "it has no nodes"
    yield from _check_unique("node", (node.name for node in plan.nodes))
    for name, threads in plan.processes.items():
        if len(threads) > 1 and any(node.name == name for node in threads):
            yield f"node '{name}' has threads that are nodes too"
    parameters = {parameter.name: parameter for parameter in plan.parameters}
    yield from _check_unique("parameter", (each.name for each in plan.parameters))
    for parameter in plan.parameters:
        yield from _check_parameter(plan, parameter)
    for node in plan.nodes:
        for problem in _check_node(plan, node, parameters):
            yield f"node '{node.name}': {problem}"
    yield from _check_holders(plan)
    recorded = {name for node in plan.nodes for name in node.step.metrics}
    for name in (*plan.metrics, plan.minimize):
        if name and name not in recorded:
            yield f"no node records '{name}'"
    edges = (*plan.step_edges, *plan.evaluation_edges, *plan.prediction_edges)
    yield from _check_unique("edge", (edge.id for edge in edges))
    nodes = {node.name for node in plan.nodes}
    for edge in edges:
        for problem in _check_edge(edge, nodes):
            yield f"edge {edge.id}: {problem}"
    yield from _check_exchanges(plan)
    yield from _check_sparse(plan, nodes)


def _check_names(pattern: re.Pattern[str], names: Iterable[str], what: str) -> Problems:
    for name in names:
        if not pattern.fullmatch(name):
            yield f"{name!r} is not a valid name of {what}"


def _check_unique(what: str, names: Iterable[object]) -> Problems:
    for name, count in Counter(names).items():
        if count > 1:
            yield f"{what} '{name}' is defined twice"


def _check_dtype(what: str, dtype: str) -> Problems:
    if dtype not in ITEM_BYTES:
        yield f"{what} has the unknown dtype '{dtype}'"


def _check_data(plan: Plan, data: RowSource, which: str) -> Problems:
    try:
        source = data.parsed
        check_split(source, data.split)
    except DataError as error:
        yield f"{which}: {error.message}"
        return
    if source.kind == "python" and source.path.split(":")[0] not in plan.modules:
        yield f"{which}: the module of '{data.source}' is not in the build"
    if isinstance(data.shuffle, Window) and (
        mistaken := data.shuffle.check(source, data.split, data.batch)
    ):
        yield f"{which}: {mistaken[1]}"
    if data.csv is not None and (problem := csv.check(data.csv)):
        yield f"{which}: {problem[1]}"
    for name, feature in (data.features or {}).items():
        if mistake := check_feature(name, feature):
            yield f"{which}: {mistake.message}"
            return
    try:
        check_features(data.features or {})
    except DataError as error:
        yield f"{which}: {error.message}"
    inputs = {column.name for column in plan.columns}
    for name, limits in data.ranges.items():
        if name not in inputs:
            yield f"{which}: it has a range for '{name}', which is not an input"
        if limits.low > limits.high:
            yield f"{which}: the range of '{name}' is empty"


def _check_outputs(plan: Plan) -> Problems:
    """Check that the nodes return every row of every output once."""
    if bool(plan.outputs) != (plan.prediction is not None):
        yield "it has outputs or rows to predict, but not both"
    yield from _check_unique("output", (output.name for output in plan.outputs))
    inputs = {column.name for column in plan.columns}
    for output in plan.outputs:
        yield from _check_dtype(f"output '{output.name}'", output.dtype)
        for name in output.inputs:
            if name not in inputs:
                yield f"output '{output.name}' depends on '{name}', which is no input"
        if output.classes is not None:
            yield from _check_classes(output, output.classes)
    returned: dict[str, list[RowShard]] = {}
    for node in plan.nodes:
        for name, shard in node.prediction.outputs.items() if node.prediction else ():
            returned.setdefault(name, []).append(shard)
    names = {output.name for output in plan.outputs}
    for name in sorted(returned.keys() | names):
        shards = returned.get(name, [])
        parts = sorted(index for shard in shards for index in shard.part_indices)
        counts = {shard.num_parts for shard in shards}
        if name not in names:
            yield f"a node returns '{name}', which is not an output"
        elif counts != {len(parts)} or parts != [*range(len(parts))]:
            yield f"the nodes do not return every row of '{name}' once"


def _check_classes(output: Output, classes: Classes) -> Problems:
    """Check that each class has a score and, if classes have names, its own one."""
    what = f"output '{output.name}'"
    is_of_one = classes.form in ("logit", "probability")
    expected = 2 if is_of_one else classes.count
    if (
        prod(output.shape) != (1 if is_of_one else expected)
        or classes.count != expected
    ):
        yield f"{what} has rows of {list(output.shape)} for {classes.count} classes"
    if classes.names and len({*classes.names}) != classes.count:
        yield f"{what} does not have a name for each of its classes"


def _check_parameter(plan: Plan, parameter: Parameter) -> Problems:
    what = f"parameter '{parameter.name}'"
    yield from _check_dtype(what, parameter.dtype)
    problem = _check_depth(parameter.init) or initializers.check(parameter.init)
    problem = problem or initializers.check_shape(parameter.init, parameter.shape)
    if problem:
        yield f"{what}: {problem}"
    file = initializers.file_of(parameter.init)
    if file is not None and file not in plan.files:
        yield f"{what}: its file '{file}' is not in the build"


def _check_depth(value: Any) -> str | None:
    """Return what is wrong with a value that is nested too deeply, or None."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = [each for each in level if isinstance(each, dict | list)]
        level = [v for e in inner for v in (e.values() if isinstance(e, dict) else e)]
        if not level:
            return None
    return f"it is nested deeper than {MAX_DEPTH} levels"


def _check_node(
    plan: Plan, node: NodePlan, parameters: Mapping[str, Parameter]
) -> Problems:
    yield from _check_names(_NODE, [node.name], "a node")
    yield from _check_names(_DEVICE_KIND, node.devices, "a device kind")
    for kind, count in node.devices.items():
        if count < 1:
            yield f"{kind} is {count}, and must be at least 1"
    yield from _check_names(_NUMBERED, node.device_bytes, "a device")
    for name, devices in node.computes.items():
        if not _DEVICES.fullmatch(name) or not devices:
            yield f"{name!r} is not a set of devices"
        for device in devices:
            # A node has one CPU where its devices do not mention any.
            kind, _, number = device.partition(":")
            count = node.devices.get(kind, 0) or kind == CPU
            if not _NUMBERED.fullmatch(device) or int(number) >= count:
                yield f"it has no '{device}'"
    for turn in node.turns:
        match = _TURN.fullmatch(turn)
        if not match or int(match[2] or 0) >= plan.microbatches:
            yield f"its turn {turn!r} is not a task of a microbatch"
    if (node.evaluation is None) != (plan.evaluation is None):
        yield "either it or the plan has an evaluation, but not both"
    if (node.prediction is None) != (plan.prediction is None):
        yield "either it or the plan has a prediction, but not both"
    inputs = {POSITION, *(column.name for column in plan.columns)}
    for phase in filter(None, (node.step, node.evaluation, node.prediction)):
        for read in phase.reads:
            if read.input not in inputs:
                yield f"it reads '{read.input}', which is not an input"
            own, parts = read.shard.part_indices, read.shard.num_parts
            if max(own, default=0) >= parts:
                yield f"it reads the parts {list(own)} of {parts}"
    yield from _check_unique("table", (table.name for table in node.tables))
    for table in node.tables:
        for problem in _check_table(node, table, parameters):
            yield f"table '{table.name}': {problem}"


def _check_table(
    node: NodePlan, table: Table, parameters: Mapping[str, Parameter]
) -> Problems:
    yield from _check_names(_TABLE, [table.name], "a table")
    if table.devices not in (MEMORY, *node.computes):
        yield f"it has no '{table.devices}'"
    if table.in_place and table.devices != MEMORY:
        yield f"it is on {table.devices}, where no table is updated in place"
    problem = _check_depth(table.learning_rate) or schedules.check(table.learning_rate)
    if table.rule is not None:
        problem = optimizers.check(table.rule, table.hyper) or problem
    elif table.hyper:
        problem = "it has hyperparameters, but no rule"
    if problem:
        yield problem
    if not table.blocks:
        yield "it has no blocks"
    yield from _check_unique("block", (block.name for block in table.blocks))
    dtypes = set()
    for block in table.blocks:
        parameter = parameters.get(block.parameter)
        if parameter is None:
            yield (
                f"block '{block.name}' is of '{block.parameter}', which is not a"
                " parameter"
            )
            continue
        dtypes.add(parameter.dtype)
        yield from _check_block(block, parameter)
    if len(dtypes) > 1:
        yield f"its blocks have several dtypes: {', '.join(sorted(dtypes))}"


def _check_block(block: Block, parameter: Parameter) -> Problems:
    if not block.start <= block.stop <= prod(parameter.shape):
        yield (
            f"block '{block.name}' has the elements {block.start} to {block.stop} of"
            f" {prod(parameter.shape)}"
        )
    if prod(block.shape) != block.numel:
        yield f"block '{block.name}' has a shape of another number of elements"


def _check_holders(plan: Plan) -> Problems:
    """Check that the holders of a parameter store all of its elements, in order."""
    tables = {
        (node.name, table.name): table.blocks
        for node in plan.nodes
        for table in node.tables
    }
    for parameter in plan.parameters:
        at = 0
        for node, table, index in parameter.holders:
            blocks = tables.get((node, table), ())
            block = blocks[index] if 0 <= index < len(blocks) else None
            if block is None or block.parameter != parameter.name or block.start != at:
                yield f"node '{node}' does not store '{parameter.name}' from {at} on"
                break
            at = block.stop
        else:
            if at != prod(parameter.shape):
                yield f"no node stores '{parameter.name}' from {at} on"


def _check_edge(edge: Edge, nodes: set[str]) -> Problems:
    for side in (edge.sources, edge.targets):
        if not side:
            yield "it has no sources or no targets"
        yield from _check_unique("node", side)
        for node in side:
            if node not in nodes:
                yield f"there is no node '{node}'"
    if edge.ring and (not edge.is_flat or edge.sources != edge.targets):
        yield "it is a ring of nodes that have no ranges"
    for value in edge.values:
        yield from _check_dtype(f"'{value.operand}'", value.dtype)
        if ("F" in value.layouts) != edge.is_flat:
            yield f"'{value.operand}' is not in ranges, as other values are"
        if ("F" in value.layouts) != (value.flat is not None):
            yield f"'{value.operand}' has no place in a group"
        if value.flat is not None:
            yield from _check_flat(edge, value, value.flat)
        cut = [value.start, value.stop]
        if cut.count(None) == 1 or (value.start or 0) > (value.stop or 0):
            yield f"'{value.operand}' has the range {value.start} to {value.stop}"
        end = value.at + prod(d for d in value.shape if isinstance(d, int))
        if value.whole is not None and end > value.numel:
            yield f"'{value.result}' ends after the {value.numel} elements of its whole"


def _check_exchanges(plan: Plan) -> Problems:
    """Check that each table without lockstep gets the gradients of workers, and that what
    is asked for is answered."""
    expected = [
        (node.name, {block.gradient for block in table.blocks})
        for node in plan.nodes
        for table in node.tables
        if table.mode is not None
    ]
    for edge in (*plan.evaluation_edges, *plan.prediction_edges):
        if edge.exchange not in (None, *BY_KEY):
            yield f"edge {edge.id}: only a training step goes without lockstep"
    for edge in plan.step_edges:
        if edge.exchange not in ("push", "push_delta", "push_all", "pull_sum"):
            continue
        gradients: set[str | None] = {value.result for value in edge.values}
        tables = [(node, gradients) for node in edge.targets]
        is_answered = edge.exchange in ("push", "push_delta")
        if is_answered and len(tables) != 1:
            tables = []
        if not tables or any(table not in expected for table in tables):
            yield f"edge {edge.id}: its gradients are not those of one table"
            continue
        for table in tables:
            expected.remove(table)
        if is_answered and not _has_reverse(plan, edge, "pull"):
            yield f"edge {edge.id}: no edge answers it"
        if edge.exchange == "pull_sum" and not _has_reverse(plan, edge, "push_sum"):
            yield f"edge {edge.id}: no edge brings the gradients"
    for server, _ in expected:
        yield f"node '{server}': no worker updates one of its tables"


def _check_sparse(plan: Plan, nodes: set[str]) -> Problems:
    """Check sparse tables, and that edges of their rows go to their holders and back."""
    yield from _check_unique("sparse table", (each.name for each in plan.sparse_tables))
    tables = {table.name: table for table in plan.sparse_tables}
    for table in plan.sparse_tables:
        for problem in _check_sparse_table(table, nodes):
            yield f"sparse table '{table.name}': {problem}"
    edges = (*plan.step_edges, *plan.evaluation_edges, *plan.prediction_edges)
    for edge in edges:
        for value in edge.values:
            is_by_key = edge.exchange in BY_KEY
            if is_by_key != (value.table is not None):
                yield f"edge {edge.id}: '{value.operand}' is not of a sparse table"
            if not is_by_key:
                continue
            held = tables.get(str(value.table))
            side = edge.sources if edge.exchange == "give_rows" else edge.targets
            if held is None or held.holders != side:
                yield f"edge {edge.id}: its nodes do not hold '{value.table}'"
                continue
            row = () if edge.exchange == "ask_rows" else (held.settings.dim,)
            if value.shape != ("keys", *row):
                yield f"edge {edge.id}: '{value.operand}' has another shape"
            if row and value.dtype != held.dtype:
                yield f"edge {edge.id}: '{value.operand}' is {value.dtype}"


def _check_sparse_table(table: SparseTable, nodes: set[str]) -> Problems:
    settings = table.settings
    if not table.holders or not nodes >= {*table.holders}:
        yield "its holders are not nodes"
    yield from _check_unique("holder", table.holders)
    if table.dtype not in ("float32", "float64"):
        yield f"its rows are {table.dtype}"
    yield from find_problems(settings)
    problem = _check_depth(table.learning_rate) or schedules.check(table.learning_rate)
    if problem:
        yield problem


def _has_reverse(plan: Plan, edge: Edge, exchange: str) -> bool:
    """Whether an edge of the same group and as many values goes the other way."""
    return any(
        (other.exchange, other.sources, other.targets)
        == (exchange, edge.targets, edge.sources)
        and (other.group, len(other.values)) == (edge.group, len(edge.values))
        for other in plan.step_edges
    )


def _check_flat(edge: Edge, value: EdgeValue, flat: Flat) -> Problems:
    if value.layouts not in (("P", "F"), ("F", "R")) or BATCH in value.shape:
        yield f"'{value.operand}' cannot be in ranges"
    if flat.at + value.size > flat.total:
        yield f"'{value.operand}' ends after its group"
