"""What a plan must hold beyond its types: names, paths and numbers that fit together.

A plan is checked once, where it is read; what runs relies on it. This finds mistakes
and names that would leave the build. It does not make a foreign build safe to run:
`docs/security.md`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

from placer.errors import BuildError, DataError, PlaceError
from placer.config import csv
from placer.config import initializers
from placer.config import optimizers
from placer.config import schedules
from placer.config.sources import Source, check_split
from placer.config.sources import POSITION
from placer.types import BATCH, ITEM_BYTES
from placer.place import Place

if TYPE_CHECKING:
    from placer.build.plan import Data, Edge, Node, Parameter, Plan, Table, TableBlock

MEMORY = "cpu:0"
"""The devices of what lies in a node's memory."""

DEEPEST = 32
"""How deeply a spec may be nested."""

SCHEDULES = ("1f1b", "gpipe")

_MODEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_VALUE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_NODE = re.compile(r"([a-z][a-z0-9_]*):(0|[1-9][0-9]{0,4})")
_TABLE = re.compile(r"[a-z][a-z0-9_]*(:[0-9,*-]+)?")
_TURN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.(0|[1-9][0-9]*))?")
_DEVICE = re.compile(r"[a-z][a-z0-9_]*:(0|[1-9][0-9]{0,4})")
_HASH = re.compile(r"[0-9a-f]{64}")

Problems = Iterator[str]


def check_plan(plan: Plan, file: str) -> None:
    """Raise BuildError, with the first mistake, unless all that a plan says fits
    together. `file` is where it was read."""
    for problem in _plan(plan):
        raise BuildError(
            f"'{file}' is no plan: {problem}", hint="compile the spec again"
        )


def _plan(plan: Plan) -> Problems:
    yield from _named(_MODEL, [plan.name], "the model")
    yield from _named(_MODEL, plan.modules, "a module")
    yield from _least(1, {"microbatches": plan.microbatches, "epochs": plan.epochs})
    if plan.schedule not in SCHEDULES:
        yield f"there is no schedule '{plan.schedule}'"
    if not 0 <= plan.seed < 2**63:
        yield f"the seed {plan.seed} is not within 0 and 2**63 - 1"
    for path, digest in plan.files.items():
        if not _HASH.fullmatch(digest):
            yield f"the hash of '{path}' is no sha256"
    yield from _once("input", (column.name for column in plan.columns))
    for column in plan.columns:
        yield from _named(_VALUE, [column.name], "an input")
        yield from _type(f"input '{column.name}'", column.dtype, column.shape)
    yield from _data(plan, plan.train, "train")
    if plan.evaluation is not None:
        yield from _data(plan, plan.evaluation, "eval")
    if not plan.nodes:
        yield "it has no node"
    yield from _once("node", (node.name for node in plan.nodes))
    parameters = {parameter.name: parameter for parameter in plan.parameters}
    yield from _once("parameter", (parameter.name for parameter in plan.parameters))
    for parameter in plan.parameters:
        yield from _parameter(plan, parameter)
    for node in plan.nodes:
        for problem in _node(plan, node, parameters):
            yield f"node '{node.name}': {problem}"
    yield from _holders(plan)
    recorded = {name for node in plan.nodes for name in node.step.metrics}
    for name in (*plan.metrics, plan.minimize):
        if name not in recorded:
            yield f"no node records '{name}'"
    edges = (*plan.step_edges, *plan.evaluation_edges)
    yield from _once("edge", (edge.id for edge in edges))
    nodes = {node.name for node in plan.nodes}
    for edge in edges:
        for problem in _edge(edge, nodes):
            yield f"edge {edge.id}: {problem}"


def _named(pattern: re.Pattern[str], names: Iterable[str], what: str) -> Problems:
    for name in names:
        if not pattern.fullmatch(name):
            yield f"{name!r} cannot be the name of {what}"


def _once(what: str, names: Iterable[object]) -> Problems:
    seen = set()
    for name in names:
        if name in seen:
            yield f"{what} '{name}' is there twice"
        seen.add(name)


def _least(least: int, numbers: Mapping[str, int]) -> Problems:
    for name, number in numbers.items():
        if number < least:
            yield f"{name} is {number}, and cannot be less than {least}"


def _type(what: str, dtype: str, shape: Iterable[int | str]) -> Problems:
    if dtype not in ITEM_BYTES:
        yield f"{what} has the dtype '{dtype}', which there is not"
    for dim in shape:
        if dim != BATCH and (isinstance(dim, str) or dim < 0):
            yield f"{what} has a dimension of {dim}"


def _data(plan: Plan, data: Data, which: str) -> Problems:
    yield from _least(1, {"batch": data.batch})
    if not 0 <= data.seed < 2**63:
        yield f"{which}: the seed {data.seed} is not within 0 and 2**63 - 1"
    try:
        source = Source.parse(data.source)
        check_split(source, data.split)
    except DataError as error:
        yield f"{which}: {error.message}"
        return
    if source.kind == "python" and source.path.split(":")[0] not in plan.modules:
        yield f"{which}: the module of '{data.source}' is not in the build"
    if data.csv is not None and (problem := csv.check(data.csv)):
        yield f"{which}: {problem[1]}"
    inputs = {column.name for column in plan.columns}
    for name in data.columns or {}:
        yield from _named(_VALUE, [name], "an input")
    for name, limits in data.ranges.items():
        if name not in inputs:
            yield f"{which}: there is no input '{name}', of which it has a range"
        if limits.low > limits.high:
            yield f"{which}: the range of '{name}' is empty"
        yield from _named(_VALUE, [limits.op, limits.kind], "an op")


def _parameter(plan: Plan, parameter: Parameter) -> Problems:
    what = f"parameter '{parameter.name}'"
    yield from _named(_VALUE, [parameter.name], "a parameter")
    yield from _type(what, parameter.dtype, parameter.shape)
    problem = _nested(parameter.init) or initializers.check(parameter.init)
    problem = problem or initializers.check_shape(parameter.init, parameter.shape)
    if problem:
        yield f"{what}: {problem}"
    file = initializers.file_of(parameter.init)
    if file is not None and file not in plan.files:
        yield f"{what}: its file '{file}' is not in the build"


def _nested(value: Any) -> str | None:
    """What is wrong with a value that is nested deeper than any of a spec."""
    level = [value]
    for _ in range(DEEPEST):
        inner = [each for each in level if isinstance(each, dict | list)]
        level = [v for e in inner for v in (e.values() if isinstance(e, dict) else e)]
        if not level:
            return None
    return f"it is nested deeper than {DEEPEST} levels"


def _node(plan: Plan, node: Node, parameters: Mapping[str, Parameter]) -> Problems:
    yield from _named(_NODE, [node.name], "a node")
    for kind in node.devices:
        if not _is_device(kind):
            yield f"{kind!r} cannot be the name of a kind of device"
    yield from _least(1, node.devices)
    yield from _least(
        0,
        {
            "table_bytes": node.table_bytes,
            "activation_bytes": node.activation_bytes,
            "flops": node.flops,
            "replicated_flops": node.replicated_flops,
            "exchange_flops": node.exchange_flops,
        },
    )
    for device, needed in node.device_bytes.items():
        if not _DEVICE.fullmatch(device):
            yield f"{device!r} cannot be the name of a device"
        yield from _least(0, {f"device_bytes of {device}": needed})
    for devices in node.computes:
        yield from _devices(node, devices)
    for turn in node.turns:
        match = _TURN.fullmatch(turn)
        if not match or int(match[2] or 0) >= plan.microbatches:
            yield f"it takes the turn {turn!r}, which there is not"
    if (node.evaluation is None) != (plan.evaluation is None):
        yield "it evaluates where the plan does not, or the other way round"
    inputs = {POSITION, *(column.name for column in plan.columns)}
    for phase in filter(None, (node.step, node.evaluation)):
        for read in phase.reads:
            yield from _named(_VALUE, [read.value], "a value")
            if read.input not in inputs:
                yield f"it reads '{read.input}', which is no input"
            if not all(0 <= part < read.parts for part in read.own):
                yield f"it reads the parts {list(read.own)} of {read.parts}"
        yield from _named(_VALUE, phase.metrics, "a metric")
    yield from _once("table", (table.name for table in node.tables))
    for table in node.tables:
        for problem in _table(node, table, parameters):
            yield f"table '{table.name}': {problem}"


def _table(node: Node, table: Table, parameters: Mapping[str, Parameter]) -> Problems:
    yield from _named(_TABLE, [table.name], "a table")
    yield from _devices(node, table.devices)
    if table.in_place and table.devices != MEMORY:
        yield f"it lies on {table.devices}, where nothing is updated in place"
    problem = _nested(table.learning_rate) or schedules.check(table.learning_rate)
    if table.rule is not None:
        problem = optimizers.check(table.rule, table.hyper) or problem
    elif table.hyper:
        problem = "nothing updates it, and it has hyperparameters"
    if problem:
        yield problem
    if not table.blocks:
        yield "it has no block"
    yield from _once("block", (block.name for block in table.blocks))
    dtypes = set()
    for block in table.blocks:
        parameter = parameters.get(block.parameter)
        if parameter is None:
            yield f"block '{block.name}' is of '{block.parameter}', no parameter"
            continue
        dtypes.add(parameter.dtype)
        yield from _block(block, parameter)
    if len(dtypes) > 1:
        yield f"its blocks are of several dtypes: {', '.join(sorted(dtypes))}"


def _block(block: TableBlock, parameter: Parameter) -> Problems:
    yield from _named(_VALUE, [block.name], "a block")
    if block.gradient is not None:
        yield from _named(_VALUE, [block.gradient], "a gradient")
    if not 0 <= block.start <= block.stop <= prod(parameter.shape):
        yield (
            f"block '{block.name}' has the elements {block.start} to {block.stop} of"
            f" {prod(parameter.shape)}"
        )
    if min(block.shape, default=0) < 0 or prod(block.shape) != block.stop - block.start:
        yield f"block '{block.name}' does not have as many elements as its shape"


def _holders(plan: Plan) -> Problems:
    """The blocks that a parameter's holders have are the whole of it, in its order."""
    tables = {
        (node.name, table.name): table.blocks
        for node in plan.nodes
        for table in node.tables
    }
    for parameter in plan.parameters:
        at = 0
        for node, table, index in parameter.holders:
            blocks = tables.get((node, table), ())
            held = blocks[index] if 0 <= index < len(blocks) else None
            if held is None or held.parameter != parameter.name or held.start != at:
                yield f"node '{node}' does not hold '{parameter.name}' from {at} on"
                break
            at = held.stop
        else:
            if at != prod(parameter.shape):
                yield f"no node holds '{parameter.name}' from {at} on"


def _edge(edge: Edge, nodes: set[str]) -> Problems:
    yield from _least(1, {"id": edge.id})
    yield from _least(0, {"nbytes": edge.nbytes})
    for side in (edge.sources, edge.targets):
        if not side:
            yield "it has no end"
        yield from _once("node", side)
        for node in side:
            if node not in nodes:
                yield f"there is no node '{node}'"
    for value in edge.values:
        names = (value.operand, value.result, value.whole or value.result)
        yield from _named(_VALUE, names, "a value")
        yield from _type(f"'{value.operand}'", value.dtype, value.shape)
        if (value.start is None) != (value.stop is None) or not (
            0 <= (value.start or 0) <= (value.stop or 0)
        ):
            yield f"'{value.operand}' goes from {value.start} to {value.stop}"
        yield from _least(0, {"at": value.at, "numel": value.numel})
        end = value.at + prod(d for d in value.shape if isinstance(d, int))
        if value.whole is not None and end > value.numel:
            yield f"'{value.result}' lies beyond the {value.numel} of its whole"


def _devices(node: Node, text: str) -> Problems:
    """Devices of a node, as `gpu:0-7`."""
    found = _parsed(text)
    if found is None:
        yield f"{text!r} are no devices"
    elif isinstance(found.device_ids, tuple):
        most = node.devices.get(str(found.device), 0) or (found.device == "cpu")
        if found.device_ids[-1] >= most:
            yield f"it has no '{text}'"


@cache
def _parsed(text: str) -> Place | None:
    try:
        place = Place.parse(f"/{text}")
    except PlaceError:
        return None
    return place if place.node is None and place.device is not None else None


def _is_device(kind: str) -> bool:
    found = _parsed(kind)
    return found is not None and found.device == kind and found.device_ids is None
