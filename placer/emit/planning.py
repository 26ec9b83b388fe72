"""plan.json of a compiled model: edges, tables, reads, costs and choices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import placer
from placer import plan
from placer.emit.costs import step_costs
from placer.emit.host import Phase
from placer.emit.in_place import Readers
from placer.emit.memory import Memory
from placer.emit.reasons import choices
from placer.emit.schedule import Schedule
from placer.graph import optimizers
from placer.graph.graph import Graph, Op
from placer.graph.model import Model, Source
from placer.graph.rows import Share, pieces, shares
from placer.graph.structure import (
    is_computed,
    is_direction,
    is_once,
    is_update,
)
from placer.graph.types import TensorType
from placer.plan import (
    MEMORY,
    VERSION,
    Column,
    Data,
    Edge,
    Metric,
    Moved,
    Node,
    Parameter,
    Plan,
    Read,
    Table,
    TableBlock,
)


def make_plan(
    model: Model,
    phases: Sequence[Phase],
    tables: Mapping[str, tuple[Table, ...]],
    schedule: Schedule,
    programs: Mapping[str, str],
    files: Mapping[str, str],
) -> Plan:
    """The plan of a build, given the final graphs of its phases, which program each host
    runs, and the hashes of its files."""
    step, *rest = (phase.graph for phase in phases)
    evaluation = rest[0] if rest else None
    edges = _edges(step)
    costs = step_costs(step, edges)
    memory = Memory(phases[0], schedule)
    nodes = tuple(
        Node(
            name=host,
            program=programs[host],
            devices=dict(step.cluster.kind(host.split(":")[0]).devices),
            turns=schedule.of(host),
            computes=_computes((step, evaluation), host, tables[host]),
            step=_phase(step, host),
            evaluation=_phase(evaluation, host) if evaluation else None,
            tables=tables[host],
            table_bytes=memory.tables(tables[host]),
            activation_bytes=memory.activations(host),
            device_bytes=memory.devices(host, tables[host]),
            flops=costs[host].model,
            replicated_flops=costs[host].replicated,
            exchange_flops=costs[host].exchange,
        )
        for host in step.cluster.all_hosts()
    )
    return Plan(
        version=VERSION,
        placer=placer.__version__,
        name=step.name,
        precision=model.precision,
        emulate=model.emulate,
        microbatches=step.microbatches,
        schedule=model.schedule,
        seed=model.seed,
        epochs=model.epochs,
        metrics=model.metrics,
        columns=_columns(model, step),
        train=_data(model.train),
        evaluation=_data(model.eval) if model.eval else None,
        nodes=nodes,
        step_edges=edges,
        evaluation_edges=_edges(evaluation) if evaluation else (),
        parameters=_parameters(model, nodes),
        choices=choices(model, step),
        modules=model.modules,
        files=dict(sorted(files.items())),
    )


def make_tables(
    model: Model, step: Graph, evaluation: Graph | None
) -> dict[str, tuple[Table, ...]]:
    """What each host holds: one table for each optimizer, one for what is not trained,
    and of each one for every dtype."""
    recipes = {op.attrs["group"]: op for op in model.graph.of_kind("optimizer")}
    groups = {
        op.operands[0]: op.attrs["group"] for op in step.ops if is_update(op.kind)
    }
    held: dict[str, dict[_Held, list[Op]]] = {
        host: defaultdict(list) for host in step.cluster.all_hosts()
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
        for host in step.hosts(op):
            held[host][_Held(name, group, devices)].append(op)
    wholes = {op.name: op for op in model.graph.of_kind("parameter")}
    gradients = {
        op.operands[0]: op.operands[1]
        for op in step.ops
        if is_direction(op.kind)
        or (is_update(op.kind) and not optimizers.find(op.kind).direction)
    }
    readers = Readers(step, evaluation)

    def table(host: str, key: _Held) -> Table:
        found = held[host][key]
        blocks = tuple(_block(op, wholes, gradients.get(op.name)) for op in found)
        safe = key.devices == MEMORY
        safe = safe and readers.in_place(host, [block.name for block in blocks])
        return _table(key, recipes, blocks, safe)

    return {
        host: tuple(
            table(host, key) for key in sorted(of_host, key=lambda key: key.name)
        )
        for host, of_host in held.items()
    }


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


def _parameters(model: Model, nodes: Sequence[Node]) -> tuple[Parameter, ...]:
    holders: dict[str, dict[int, tuple[str, str, int]]] = defaultdict(dict)
    trained: set[str] = set()
    for node in nodes:
        for table in node.tables:
            if table.rule is not None:
                trained.update(block.parameter for block in table.blocks)
            for i, block in enumerate(table.blocks):
                holders[block.parameter].setdefault(
                    block.start, (node.name, table.name, i)
                )
    return tuple(
        Parameter(
            name=op.name,
            dtype=op.result.type.dtype,
            shape=op.result.type.sizes(1),
            init=op.attrs["init"],
            trainable=op.name in trained,
            holders=tuple(at for _, at in sorted(holders[op.name].items())),
        )
        for op in model.graph.of_kind("parameter")
        if isinstance(op.result.type, TensorType)
    )


def _computes(
    graphs: Iterable[Graph | None], host: str, tables: Sequence[Table]
) -> tuple[str, ...]:
    """The devices that a host computes on, and updates tables."""
    found: dict[str, None] = {}
    for graph in filter(None, graphs):
        for op in graph.on(host):
            if is_computed(op):
                found.setdefault(graph.devices(op))
    found.update((table.devices, None) for table in tables if table.devices != MEMORY)
    return tuple(found)


def _phase(graph: Graph, host: str) -> plan.Phase:
    reads = []
    for op in graph.of_kind("read"):
        hosts = graph.hosts(op)
        if host in hosts:
            share = Share((0,), 1)
            if op.result.layout == "S":
                share = shares(hosts, graph.cluster.workers)[hosts.index(host)]
            reads.append(
                Read(
                    value=op.name,
                    input=op.attrs["input"],
                    own=share.own,
                    parts=share.parts,
                )
            )
    metrics = {
        op.attrs["metric"]: Metric(
            layout=graph.values[op.operands[0]].layout or "R",
            final=op.attrs.get("final", "value"),
        )
        for op in graph.of_kind("record")
        if host in graph.hosts(op)
    }
    return plan.Phase(reads=tuple(reads), metrics=metrics)


def _edges(graph: Graph) -> tuple[Edge, ...]:
    found = []
    for edge, listen in graph.listens.items():
        send = graph.sends[edge]
        values = tuple(
            _moved(graph, operand, result.name)
            for operand, result in zip(send.operands, listen.results, strict=True)
        )
        sources, targets = graph.hosts(send), graph.hosts(listen)
        times = graph.microbatches if graph.is_repeated(listen) else 1
        found.append(
            Edge(
                id=edge,
                sources=sources,
                targets=targets,
                values=values,
                nbytes=times
                * sum(
                    _moved_bytes(
                        v, sources, targets, graph.batch // times, graph.cluster.workers
                    )
                    for v in values
                ),
                once=is_once(send),
            )
        )
    return tuple(sorted(found, key=lambda edge: edge.id))


def _moved(graph: Graph, operand: str, result: str) -> Moved:
    kind = graph.tensor(operand)
    have, need = graph.values[operand].layout, graph.values[result].layout
    assert have is not None
    assert need is not None
    cut = graph.producers[operand]
    of_cut = cut.kind == "cut"
    joined = [op for op in graph.uses.get(result, ()) if op.kind == "assemble"]
    at, numel, whole = 0, 0, None
    if joined:
        parts = joined[0].operands
        sizes = [graph.tensor(name).numel() for name in parts]
        at = sum(sizes[: parts.index(result)])
        whole, numel = joined[0].name, sum(sizes)
    return Moved(
        operand=cut.operands[0] if of_cut else operand,
        result=result,
        dtype=kind.dtype,
        shape=kind.shape,
        layouts=(have, need),
        start=cut.attrs["start"] if of_cut else None,
        stop=cut.attrs["stop"] if of_cut else None,
        whole=whole,
        at=at,
        numel=numel,
    )


def _moved_bytes(
    moved: Moved,
    sources: Sequence[str],
    targets: Sequence[str],
    batch: int,
    workers: int,
) -> int:
    """Bytes that cross between hosts for one value in one full step."""
    kind = TensorType(moved.dtype, moved.shape)  # type: ignore[arg-type]
    row = kind.nbytes(batch) // batch if kind.has_rows else kind.nbytes(batch)
    total = 0
    for target in targets:
        for piece in pieces(moved.layouts, sources, targets, target, batch, workers):
            if piece.source != target:
                if piece.whole:
                    total += kind.nbytes(batch)
                else:
                    total += row * (piece.high - piece.low)
    return total


def _columns(model: Model, graph: Graph) -> tuple[Column, ...]:
    used = dict.fromkeys(op.attrs["input"] for op in graph.of_kind("read"))
    return tuple(
        Column(name=name, dtype=kind.dtype, shape=kind.sizes(1)[1:])
        for name, kind in model.inputs.items()
        if name in used
    )


def _data(source: Source) -> Data:
    return Data(
        source=source.source,
        batch=source.batch,
        split=source.split,
        columns=dict(source.columns) if source.columns else None,
        shuffle=source.shuffle,
        seed=source.seed,
        remainder=source.remainder,
        csv=source.csv,
    )
