"""The tables of every node: which parameters, or blocks of them, it holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from placer.analysis.in_place import Readers
from placer.analysis.node_classes import Alike
from placer.build.plan import MEMORY, Table, TableBlock
from placer.config import optimizers
from placer.graph.graph import Graph, Op
from placer.graph.kinds import is_direction, is_update
from placer.graph.model import Model
from placer.types import TensorType


def plan_tables(
    model: Model, step: Graph, evaluation: Graph | None
) -> dict[str, tuple[Table, ...]]:
    """What each node holds: one table for each optimizer, one for what is not trained,
    and of each one for every dtype."""
    recipes = {op.attrs["group"]: op for op in model.graph.of_kind("optimizer")}
    groups = {
        op.operands[0]: op.attrs["group"] for op in step.ops if is_update(op.kind)
    }
    alike = Alike([step, *([evaluation] if evaluation is not None else [])])
    held: dict[str, dict[_Held, list[Op]]] = {
        node: defaultdict(list) for node in alike.classes
    }
    for op in step.of_kind("parameter"):
        group = groups.get(op.name)
        name = "dense" if group is not None else "frozen"
        name = "state" if op.attrs.get("state") else name
        name += str(group) if group is not None and len(recipes) > 1 else ""
        dtype = step.tensor(op.name).dtype
        name += f"_{dtype}" if dtype != model.precision else ""
        devices = step.devices(op)
        name += f"_{devices}" if devices != MEMORY else ""
        for node in filter(held.__contains__, step.nodes(op)):
            held[node][_Held(name, group, devices)].append(op)
    wholes = {op.name: op for op in model.graph.of_kind("parameter")}
    gradients = {
        op.operands[0]: op.operands[1]
        for op in step.ops
        if is_direction(op.kind)
        or (is_update(op.kind) and not optimizers.find(op.kind).direction)
    }
    readers = Readers(step, evaluation, alike)

    def table(node: str, key: _Held) -> Table:
        found = held[node][key]
        blocks = tuple(_block(op, wholes, gradients.get(op.name)) for op in found)
        safe = key.devices == MEMORY
        safe = safe and readers.in_place(node, [block.name for block in blocks])
        return _table(key, recipes, blocks, safe)

    found = {
        node: tuple(
            table(node, key) for key in sorted(of_node, key=lambda key: key.name)
        )
        for node, of_node in held.items()
    }
    return {node: found[alike.first(node)] for node in step.cluster.all_nodes()}


class _Held(NamedTuple):
    """What parameters of one table have in common: its name, which says it all, the
    optimizer and the devices."""

    name: str
    group: int | None
    devices: str


def _table(
    key: _Held,
    recipes: Mapping[int, Op],
    blocks: tuple[TableBlock, ...],
    in_place: bool,
) -> Table:
    if key.group is None:
        return Table(
            name=key.name,
            rule=None,
            hyper={},
            learning_rate=0.0,
            blocks=blocks,
            in_place=in_place,
            devices=key.devices,
        )
    recipe = recipes[key.group]
    rule = recipe.attrs["rule"]
    named = optimizers.find(rule).hyper
    hyper = optimizers.complete(
        rule, {name: v for name, v in recipe.attrs.items() if name in named}
    )
    return Table(
        name=key.name,
        rule=rule,
        hyper=hyper,
        learning_rate=recipe.attrs["learning_rate"],
        blocks=blocks,
        in_place=in_place,
        devices=key.devices,
    )


def _block(op: Op, wholes: Mapping[str, Op], gradient: str | None) -> TableBlock:
    kind = op.result.type
    assert isinstance(kind, TensorType)
    parameter = op.name
    if "start" in op.attrs:
        parameter = op.name.rsplit(".block", 1)[0]
    whole = wholes[parameter].result.type
    assert isinstance(whole, TensorType)
    start = op.attrs.get("start", 0)
    return TableBlock(
        parameter=parameter,
        name=op.name,
        start=start,
        stop=op.attrs.get("stop", whole.numel()),
        shape=kind.sizes(1),
        gradient=gradient,
        decays=op.attrs.get("decay", True),
    )
