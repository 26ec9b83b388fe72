"""The tables of every node: the parameters, or blocks of them, that it stores."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from msgspec import structs

from placer.analysis.in_place import InPlaceAnalysis
from placer.analysis.stored_bytes import hyperparameters
from placer.build.plan import MEMORY, Table
from placer.config import optimizers
from placer.config.slicing import Block
from placer.graph.graph import Graph, Op
from placer.graph.kinds import is_update
from placer.graph.model import Model
from placer.types import TensorType


def plan_tables(
    model: Model, step: Graph, evaluation: Graph | None
) -> dict[str, tuple[Table, ...]]:
    """Return the tables of each node.

    A node has a table for each optimizer, dtype and set of devices, and likewise for
    the parameters that are not trained. `evaluation` is None for a model without one.
    """
    groups = {
        op.operands[0]: op.attrs["group"] for op in step.ops if is_update(op.kind)
    }
    analysis = InPlaceAnalysis(step, evaluation)
    node_classes = analysis.node_classes
    parameters: dict[str, dict[_TableKey, list[Op]]] = {
        node: defaultdict(list) for node in node_classes.classes
    }
    for op in step.parameters:
        group = groups.get(op.name)
        name = "dense" if group is not None else "frozen"
        name = "state" if op.attrs.get("state") else name
        name += str(group) if group is not None and len(step.optimizers) > 1 else ""
        dtype = step.tensor_type(op.name).dtype
        name += f"_{dtype}" if dtype != model.precision else ""
        devices = step.devices(op)
        name += f"_{devices}" if devices != MEMORY else ""
        for node in filter(parameters.__contains__, step.nodes(op)):
            parameters[node][_TableKey(name, group, devices)].append(op)
    gradients = {
        op.operands[0]: op.operands[1]
        for op in reversed(step.ops)  # so that the first phase of a rule counts
        if op.structure.update
    }

    def table(node: str, key: _TableKey) -> Table:
        blocks = tuple(
            _make_block(op, gradients.get(op.name)) for op in parameters[node][key]
        )
        in_place = key.devices == MEMORY
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
        node: of_class[node_classes.representative(node)]
        for node in step.cluster.all_nodes()
    }


class _TableKey(NamedTuple):
    """What the parameters of one table have in common.

    The name is unique on a node: it includes the optimizer, the dtype and the devices.
    """

    name: str
    group: int | None
    devices: str


def _make_table(
    key: _TableKey, step: Graph, blocks: tuple[Block, ...], in_place: bool
) -> Table:
    table = Table(
        name=key.name,
        learning_rate=0.0,
        blocks=blocks,
        in_place=in_place,
        devices=key.devices,
    )
    if key.group is None:
        return table
    attrs = step.optimizers[key.group].attrs
    rule, rate = attrs["rule"], attrs["learning_rate"]
    hyper = optimizers.complete(rule, hyperparameters(attrs))
    return structs.replace(table, rule=rule, hyper=hyper, learning_rate=rate)


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
