"""Finds the layers of a model in its graph, with the parameters, FLOPs and bytes of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod

from placer import ops
from placer.compiler.graph.flops import FlopsCache, op_flops
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.keyed import count_keys, is_keyed, row_bytes, tables_of
from placer.compiler.graph.structural_ops import is_conversion, is_optimizer_part
from placer.place.ids import format_nodes
from placer.place.types import TensorType
from placer.plan.plan import EdgeValue, Plan
from placer.plan.settings.data.sources import POSITION

INPUT = "input"
"""The kind of a layer that is an input."""
_COMPOSITES = {
    "normalize": "batch_norm",
    "replica_norm": "batch_norm",
    "drop": "dropout",
}
"""Maps an op that only a composite contains to the composite's kind in a spec."""
_Key = tuple[str, str]
"""The name and the place of a layer."""


@dataclass(frozen=True, slots=True)
class Layer:
    """An input or an op of the model as a user wrote it.

    Attributes:
        parameters: Number of elements in its parameters, without those of earlier
            layers.
        per_key: The same for sparse tables, per key.
        shares: Whether earlier layers use all its parameters.
        nodes: The nodes that compute or read it.
        stored: The nodes that store its parameters.
        sent: The bytes that nodes send in a step: the parameters of the layer, their
            gradients, its result and the gradient of its result.
        flops: The FLOPs of its forward and backward pass for one batch. Work that
            several nodes repeat counts once.
    """

    name: str
    kind: str
    output: str
    parameters: int
    shares: bool
    place: str
    per_key: int = 0
    nodes: str = ""
    stored: str = ""
    sent: int = 0
    flops: int = 0


def find_layers(plan: Plan, step: Graph) -> list[Layer]:
    """Return the inputs and the layers of a model, in program order. Ops whose names
    start with the same name of a spec form one layer: the parts of a composite, or of a
    function at one place."""
    groups: dict[_Key, list[Op]] = {}
    for op in step.ops:
        if is_of_model(op):
            groups.setdefault(_key(op), []).append(op)
    sizes = {p.name: prod(p.shape) for p in plan.parameters}
    columns = {table.name: table.settings.dim for table in plan.sparse_tables}
    names = Counter(name for name, _ in groups)
    order = {op: i for i, op in enumerate(step.ops)}
    sorted_groups = sorted(
        groups.items(), key=lambda group: order[main_op(group[0][0], group[1])]
    )
    used = {key: _used_parameters(step, parts, sizes) for key, parts in sorted_groups}
    sent, flops = _sent_bytes(plan, step, used), _flops(step, groups)
    holders = _holders(plan)
    counted: set[str] = set()
    layers = []
    for key, parts in sorted_groups:
        name, own = key[0], used[key]
        runs_on = {node for op in parts for node in step.nodes(op)}
        stored_on = {node for parameter in own for node in holders[parameter]}
        layers.append(
            Layer(
                # A function at several places has one layer at each place.
                name if names[name] == 1 else main_op(name, parts).name,
                _kind(name, parts),
                format_output(main_op(name, parts)),
                sum(sizes.get(parameter, 0) for parameter in own - counted),
                bool(own) and own <= counted,
                ", ".join(dict.fromkeys(str(op.place) for op in parts)),
                sum(columns.get(parameter, 0) for parameter in own - counted),
                format_nodes(n.name for n in plan.nodes if n.name in runs_on),
                format_nodes(n.name for n in plan.nodes if n.name in stored_on),
                sent.get(key, 0),
                flops.get(key, 0),
            )
        )
        counted |= own
    return layers


def _key(op: Op) -> _Key:
    """Return the layer of an op of the model."""
    return layer_name(op), "" if op.kind == "read" else str(op.place)


def layer_name(op: Op) -> str:
    """Return the name of the layer of an op of the model."""
    return str(op.attrs["input"]) if op.kind == "read" else op.name.partition(".")[0]


def is_of_model(op: Op) -> bool:
    """Return True for an op of the forward pass, and for a read of an input."""
    if op.kind == "read":
        return bool(op.attrs["input"] != POSITION)
    return (
        op.is_computed
        and not op.is_gradient
        and not op.attrs.get("again", False)
        and not is_conversion(op.kind)
        and not is_optimizer_part(op.kind)
        and op.kind != "accumulate"
        and "grad" not in op.name.split(".")
    )


def _used_parameters(
    step: Graph, parts: Iterable[Op], parameters: Mapping[str, int]
) -> set[str]:
    return {
        parameter
        for op in parts
        for operand in op.operands
        if (parameter := _parameter_of(step, operand, parameters)) is not None
    }


def _parameter_of(step: Graph, value: str, parameters: Mapping[str, int]) -> str | None:
    """Return the parameter behind a value, such as `h.w` for its copy `h.w.copy`.
    For rows of a sparse table, return the table. None for other values."""
    if is_keyed(step, value):
        return tables_of(step, value)[0]
    name = value
    while name not in parameters:
        name, dot, _ = name.rpartition(".")
        if not dot:
            return None
    return name


def _holders(plan: Plan) -> dict[str, set[str]]:
    """Return the nodes that store each parameter and sparse table, without the local
    copies of workers."""
    holders = {table.name: {*table.holders} for table in plan.sparse_tables}
    holders |= {parameter.name: set() for parameter in plan.parameters}
    for node in plan.nodes:
        for table in node.tables:
            for block in table.blocks if not table.local else ():
                holders[block.parameter].add(node.name)
    return holders


def _sent_bytes(
    plan: Plan, step: Graph, used: Mapping[_Key, set[str]]
) -> dict[_Key, int]:
    """Return the bytes that nodes send in a step, by layer. The values of an edge share its
    bytes by their sizes. Sums for the whole model, such as norms, belong to no layer."""
    sizes = {parameter.name: prod(parameter.shape) for parameter in plan.parameters}
    of_parameter: dict[str, _Key] = {}
    of_name: dict[str, _Key] = {}
    for key, parameters in used.items():
        of_name.setdefault(key[0], key)
        for parameter in parameters:
            of_parameter.setdefault(parameter, key)
    sent: dict[_Key, int] = {}
    for edge in plan.step_edges:
        weights = [_value_bytes(step, value) for value in edge.values]
        total = sum(weights)
        for value, weight in zip(edge.values, weights, strict=True):
            owner = of_name.get(value.operand.partition(".")[0])
            parameter_name = next(iter(value.tables), None)
            parameter_name = parameter_name or _parameter_of(step, value.operand, sizes)
            if parameter_name is not None:
                owner = of_parameter.get(parameter_name, owner)
            if owner is not None and total:
                sent[owner] = sent.get(owner, 0) + edge.nbytes * weight // total
    return sent


def _value_bytes(step: Graph, value: EdgeValue) -> int:
    """Return the bytes of a value of an edge for the whole batch."""
    if value.tables:
        keys = count_keys(step, value.operand, step.batch)
        return keys * row_bytes(step.tensor_type(value.operand))
    return TensorType(value.dtype, value.shape).nbytes(step.batch)


def _flops(step: Graph, groups: Mapping[_Key, object]) -> dict[_Key, int]:
    """Return the FLOPs of the forward and backward pass for one batch, by layer."""
    flops: dict[_Key, int] = {}
    cache = FlopsCache()
    for op in step.ops:
        if not op.is_computed or is_conversion(op.kind) or is_optimizer_part(op.kind):
            continue
        key = _key(step.producers[op.operands[0]] if op.is_gradient else op)
        if key in groups:
            flops[key] = flops.get(key, 0) + op_flops(step, op, step.batch, cache)
    return flops


def main_op(name: str, parts: Sequence[Op]) -> Op:
    """Return the op whose result other layers use: the layer's namesake, or the
    last.
    """
    return next((op for op in parts if op.name == name), parts[-1])


def _kind(name: str, parts: Sequence[Op]) -> str:
    op = main_op(name, parts)
    return INPUT if op.kind == "read" else kind_in_spec(op, {p.kind for p in parts})


def kind_in_spec(main: Op, kinds: Set[str]) -> str:
    """Return the kind of a layer as in a spec.

    Args:
        main: the op whose result other layers use.
        kinds: the kinds of all ops of the layer.
    """
    if main.kind == "call":
        return f"call {main.attrs['fn']}" if "fn" in main.attrs else main.kind
    if "sample_classes" in kinds:
        return main.kind.removesuffix("_loss")
    composites = (_COMPOSITES[kind] for kind in kinds & _COMPOSITES.keys())
    return next(composites, main.kind)


def format_output(op: Op) -> str:
    """Format the first result of an op, and the number of further results."""
    if op.is_computed and ops.find(op.kind).finalizer is not None:
        return "metric"
    first, *others = op.tensors
    kind = first.type
    assert isinstance(kind, TensorType)
    shape = f"[{', '.join(map(str, kind.shape))}]" if kind.shape else "scalar"
    if not kind.is_float:
        shape = kind.dtype + shape
    return f"{shape} and {len(others)} more" if others else shape
