"""Plans the tables of every node: the parameters, or blocks of parameters, that it stores."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from msgspec import structs

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.model import Model
from placer.compiler.graph.stored_bytes import rule_of
from placer.compiler.graph.structural_ops import is_update
from placer.compiler.memory.in_place import InPlaceAnalysis
from placer.place.node_kinds import HETER
from placer.place.types import TensorType
from placer.plan.plan import MEMORY, Table
from placer.plan.settings.training.optimizers import OPTAX
from placer.plan.settings.training.slicing import Block
from placer.plan.settings.training.update_modes import Mode


def plan_tables(
    model: Model, step: Graph, evaluation: Graph | None
) -> dict[str, tuple[Table, ...]]:
    """Return the tables of each node.

    A table has the parameters of one optimizer, dtype and set of devices. Parameters that
    are not trained are in separate tables. So are, with asynchronous updates, parameters
    with gradients from heter nodes: a worker and its heter node push at different times.

    Args:
        model: the model.
        step: the graph of a step.
        evaluation: the graph of an evaluation; None without evaluations.
    """
    groups = {
        op.operands[0]: op.attrs["group"] for op in step.ops if is_update(op.kind)
    }
    analysis = InPlaceAnalysis(step, evaluation)
    node_classes = analysis.node_classes
    parameters: dict[str, dict[_TableKey, list[Op]]] = {
        node: defaultdict(list) for node in node_classes.classes
    }
    gradients = {
        op.operands[0]: _as_pushed(step, op.operands[1])
        for op in reversed(step.ops)  # of optimizers with two phases, keep the first
        if op.structure.update
    }
    stored = step.of_kind("parameter", "local_parameter")
    local = {groups[op.name] for op in stored if op.kind == "local_parameter"}
    for op in stored:
        group = groups.get(op.name)
        name = "dense" if group is not None else "frozen"
        per_worker = op.attrs.get("per_worker", False)
        if op.attrs.get("state"):
            name = "own_state" if per_worker else "state"
        name = "local" if group in local else name
        same = local if group in local else step.optimizers.keys() - local
        name += str(group) if group is not None and len(same) > 1 else ""
        if _is_pushed_by_heter_nodes(step, gradients.get(op.name)):
            name += f"_{HETER}"
        dtype = step.tensor_type(op.name).dtype
        name += f"_{dtype}" if dtype != model.settings.precision else ""
        devices = step.devices(op)
        name += f"_{devices}" if devices != MEMORY else ""
        for node in filter(parameters.__contains__, step.nodes(op)):
            key = _TableKey(name, group, devices, group in local, per_worker)
            parameters[node][key].append(op)

    def table(node: str, key: _TableKey) -> Table:
        blocks = tuple(
            _make_block(op, gradients.get(op.name)) for op in parameters[node][key]
        )
        # Asynchronous workers also read older versions, which must not change.
        in_place = key.devices == MEMORY and _is_synchronous(step, key)
        in_place = in_place and analysis.can_update_in_place(
            node, [block.name for block in blocks]
        )
        return _make_table(key, step, blocks, in_place)

    of_class = {
        node: tuple(
            table(node, key) for key in sorted(of_node, key=lambda key: key.name)
        )
        for node, of_node in parameters.items()
    }
    return {
        node: tuple(
            _with_ranges(step, node, each)
            for each in of_class[node_classes.representative(node)]
        )
        for node in step.cluster.all_nodes()
    }


def _as_pushed(step: Graph, gradient: str) -> str:
    """Return the pushed gradient that a gradient on devices is a copy of, or itself."""
    op = step.producers[gradient]
    if op.structure.copies:
        operand = op.operands[step.result_indices[gradient]]
        exchange = step.producers[operand].exchange
        if exchange is not None and exchange.handling == "applies":
            return operand
    return gradient


def _is_pushed_by_heter_nodes(step: Graph, gradient: str | None) -> bool:
    if gradient is None:
        return False
    made = step.producers[gradient]
    return made.is_push and made.attrs["from"].node == HETER


def _with_ranges(step: Graph, node: str, table: Table) -> Table:
    """Return the table with the node's range of each parameter that is split in ranges."""
    if all(step.values[block.name].flat is None for block in table.blocks):
        return table
    blocks = []
    for block in table.blocks:
        if step.values[block.name].flat is not None:
            part = step.nodes(step.producers[block.name]).index(node)
            low, high = step.ranges(block.name).of(part)
            shape = (high - low,)
            block = structs.replace(block, start=low, stop=high, shape=shape)
        blocks.append(block)
    return structs.replace(table, blocks=tuple(blocks))


class _TableKey(NamedTuple):
    """The properties that the parameters of one table share; the name is unique on a node."""

    name: str
    group: int | None
    devices: str
    local: bool
    per_worker: bool


def _make_table(
    key: _TableKey, step: Graph, blocks: tuple[Block, ...], in_place: bool
) -> Table:
    table = Table(
        name=key.name,
        learning_rate=0.0,
        blocks=blocks,
        in_place=in_place,
        devices=key.devices,
        local=key.local,
        per_worker=key.per_worker,
    )
    if key.group is None:
        return table
    attrs = step.optimizers[key.group].attrs
    table = structs.replace(
        table, learning_rate=attrs.get("learning_rate"), mode=_mode(step, key)
    )
    if attrs["rule"] == OPTAX:
        # Each update makes new arrays.
        return structs.replace(
            table,
            rule=OPTAX,
            transformation=str(key.group),
            averages=bool(attrs["transformation"].eval_params),
            in_place=False,
        )
    rule = rule_of(attrs)
    return structs.replace(table, rule=rule.name, hyper=rule.hyper)


def _is_synchronous(step: Graph, key: _TableKey) -> bool:
    """Whether each update of a table waits for all workers."""
    if key.group is None:
        return True
    return not step.backups[key.group] and step.modes[key.group] is None


def _mode(step: Graph, key: _TableKey) -> Mode | None:
    """Return the asynchronous mode of a table; None if workers train synchronously."""
    return None if key.group is None else step.modes[key.group]


def _make_block(op: Op, gradient: str | None) -> Block:
    kind = op.result.type
    assert isinstance(kind, TensorType)
    return Block(
        parameter=op.attrs.get("whole", op.name),
        name=op.name,
        start=op.attrs.get("start", 0),
        stop=op.attrs.get("stop", kind.numel()),
        shape=kind.sizes(1),
        gradient=gradient,
        decays=op.attrs.get("decay", True),
    )
