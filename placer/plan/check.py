"""Checks that a plan read from disk is consistent.

The checks refuse paths outside the build folder, code without a hash in the plan, and
invalid references. `placer show` and `placer explain` run no code, so they are safe on
untrusted builds. Running an untrusted build is not safe: see `docs/reference/security.md`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from msgspec import ValidationError, to_builtins

from placer.errors import BuildError, DataError, PlacerError
from placer.place.node_kinds import CPU
from placer.place.types import ITEM_BYTES
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.data.sources import check_split
from placer.plan.settings.evaluation_and_stopping import Checkpointing
from placer.plan.settings.run import TrainSettings
from placer.plan.settings.training import initializers, optimizers
from placer.plan.settings.training.slicing import Block

if TYPE_CHECKING:
    from placer.plan.plan import Edge, NodePlan, Parameter, Plan, SparseTable, Table

MEMORY = "cpu:0"
"""The devices of a table in host memory."""

MAX_DEPTH = 32
"""The maximum nesting depth of spec values in a plan."""

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
    yield from _check_data(plan, plan.train, "train")
    if plan.evaluation is not None:
        yield from _check_data(plan, plan.evaluation, "eval")
    if plan.prediction is not None:
        yield from _check_data(plan, plan.prediction, "predict")
    for output in plan.outputs:
        yield from _check_dtype(f"output '{output.name}'", output.dtype)
    yield from _check_settings(plan.settings.train)
    if not plan.nodes:
        yield "it has no nodes"
    yield from _check_unique("node", (node.name for node in plan.nodes))
    for name, threads in plan.processes.items():
        if len(threads) > 1 and any(node.name == name for node in threads):
            yield f"'{name}' is both a node and a process with threads"
    parameters = {parameter.name: parameter for parameter in plan.parameters}
    yield from _check_unique("parameter", (each.name for each in plan.parameters))
    for parameter in plan.parameters:
        yield from _check_parameter(plan, parameter)
    for node in plan.nodes:
        for problem in _check_node(plan, node, parameters):
            yield f"node '{node.name}': {problem}"
    yield from _check_holders(plan)
    edges = (*plan.step_edges, *plan.evaluation_edges, *plan.prediction_edges)
    yield from _check_unique("edge", (edge.id for edge in edges))
    nodes = {node.name for node in plan.nodes}
    tables = {table.name: table for table in plan.sparse_tables}
    for edge in edges:
        for problem in _check_edge(edge, nodes, {*tables}):
            yield f"edge {edge.id}: {problem}"
    for each in plan.sparse_tables:
        for problem in _check_sparse_table(each, nodes, tables):
            yield f"sparse table '{each.settings.name}': {problem}"


def _check_settings(train: TrainSettings) -> Problems:
    checkpoint = train.checkpoint or Checkpointing()
    try:
        _ = train.eval.interval, checkpoint.interval
        _ = train.publish and train.publish.interval
    except PlacerError as error:
        yield error.message
    for each in (checkpoint.best, train.early_stopping):
        if each is not None and each.metric not in train.metrics:
            yield f"'{each.metric}' is not a metric"


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
    if (stream := data.stream) is not None:
        if mistake := stream.check(
            source, data.split, data.remainder, data.shuffle, data.batch
        ):
            yield f"{which}: {mistake.message}"
        if which != "train":
            yield f"{which}: only data.train is a stream"
    if source.kind == "python" and source.path.split(":")[0] not in plan.modules:
        yield f"{which}: the module of '{data.source}' is not in the build"


def _check_parameter(plan: Plan, parameter: Parameter) -> Problems:
    what = f"parameter '{parameter.name}'"
    yield from _check_dtype(what, parameter.dtype)
    if mistake := initializers.check_shape(parameter.init, parameter.shape):
        yield f"{what}: {mistake.message}"
    file = initializers.file_of(parameter.init)
    if file is not None and file not in plan.files:
        yield f"{what}: its file '{file}' is not in the build"


def _check_depth(value: Any) -> str | None:
    """Return an error if a value is nested too deeply, or None."""
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
            # A node always has one CPU, even if `devices` does not list it.
            kind, _, number = device.partition(":")
            count = node.devices.get(kind, 0) or kind == CPU
            if not _NUMBERED.fullmatch(device) or int(number) >= count:
                yield f"it has no '{device}'"
    for turn in node.turns:
        match = _TURN.fullmatch(turn)
        if not match or int(match[2] or 0) >= plan.settings.train.microbatches:
            yield f"its 'turns' contain {turn!r}, which is not a task with a microbatch"
    yield from _check_unique("table", (table.name for table in node.tables))
    for table in node.tables:
        for problem in _check_table(plan, node, table, parameters):
            yield f"table '{table.name}': {problem}"


def _check_table(
    plan: Plan, node: NodePlan, table: Table, parameters: Mapping[str, Parameter]
) -> Problems:
    yield from _check_names(_TABLE, [table.name], "a table")
    if table.devices not in (MEMORY, *node.computes):
        yield f"it has no '{table.devices}'"
    if table.in_place and table.devices != MEMORY:
        yield f"it is on {table.devices}; only tables on {MEMORY} are updated in place"
    problem = _check_depth(to_builtins(table.learning_rate))
    if table.rule == optimizers.OPTAX:
        problem = _check_optax(plan, table) or problem
    elif table.rule is not None:
        problem = _check_rule(table.rule, table.hyper) or problem
    elif table.hyper:
        problem = "it has hyperparameters, but no update rule"
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
                f"block '{block.name}' belongs to the unknown parameter"
                f" '{block.parameter}'"
            )
            continue
        dtypes.add(parameter.dtype)
        yield from _check_block(block, parameter)
    if len(dtypes) > 1:
        yield f"its blocks have several dtypes: {', '.join(sorted(dtypes))}"


def _check_rule(rule: str, hyper: Mapping[str, Any]) -> str | None:
    """Return the error of an invalid rule or hyperparameter, or None."""
    try:
        optimizers.read_rule(rule, hyper)
    except ValidationError as error:
        return str(error)
    return None


def _check_optax(plan: Plan, table: Table) -> str | None:
    """Return the error of a table with an optax optimizer, or None."""
    found = plan.transformations.get(table.transformation)
    if found is None:
        return f"the plan has no optax optimizer '{table.transformation}'"
    for path in filter(None, (found.fn, found.eval_params)):
        if path.partition(":")[0] not in plan.modules:
            return f"its optimizer '{path}' is not in a module of the plan"
    for block in table.blocks:
        if block.parameter not in found.parameters:
            return f"its optimizer has no parameter '{block.parameter}'"
    return None


def _check_block(block: Block, parameter: Parameter) -> Problems:
    if not block.start <= block.stop <= prod(parameter.shape):
        yield (
            f"block '{block.name}' covers elements {block.start} to {block.stop},"
            f" but the parameter has {prod(parameter.shape)}"
        )
    if prod(block.shape) != block.numel:
        yield f"the shape and the range of block '{block.name}' differ in size"


def _check_holders(plan: Plan) -> Problems:
    """Check that the holders of each parameter cover its elements in order, without gaps."""
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
                yield f"node '{node}' must store '{parameter.name}' from element {at}"
                break
            at = block.stop
        else:
            if at != prod(parameter.shape):
                yield f"no node stores '{parameter.name}' from element {at}"


def _check_edge(edge: Edge, nodes: set[str], sparse: set[str]) -> Problems:
    for side in (edge.sources, edge.targets):
        if not side:
            yield "it has no senders or no receivers"
        yield from _check_unique("node", side)
        for node in side:
            if node not in nodes:
                yield f"'{node}' is not a node of this plan"
    for value in edge.values:
        yield from _check_dtype(f"'{value.operand}'", value.dtype)
        if bool(value.tables) != edge.is_by_key or not sparse >= {*value.tables}:
            yield f"'{value.operand}' is of tables that the plan does not have"
        if value.others and len(value.counted) != len(value.counted_for):
            yield f"it is not clear what is counted for '{value.operand}'"


def _check_sparse_table(
    table: SparseTable, nodes: set[str], tables: Mapping[str, SparseTable]
) -> Problems:
    settings, sparse = table.settings, tables.keys()
    if table.over and (table.name not in table.over or not sparse >= {*table.over}):
        yield f"it is not over the keys of {', '.join(table.over)}"
    if table.index_of is not None:
        of = tables.get(table.index_of) if table.index_of in table.over else None
        if of is None or of.index_of is not None or not of.can_share_index(table):
            yield f"it cannot share the index of '{table.index_of}'"
    if not table.holders or not nodes >= {*table.holders}:
        yield "a node that stores it is missing from the plan"
    yield from _check_unique("holder", table.holders)
    if table.dtype not in ("float32", "float64"):
        yield f"its dtype is {table.dtype}, not float32 or float64"
    problem = _check_depth(to_builtins(table.learning_rate))
    problem = _check_rule(settings.rule, settings.hyper) or problem
    if problem:
        yield problem
