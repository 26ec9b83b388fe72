"""plan.json of a compiled model: edges, reads, costs and choices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import placer
from placer.analysis.costs import step_costs
from placer.analysis.input_ranges import index_ranges
from placer.analysis.memory import Memory
from placer.analysis.schedule import Schedule
from placer.analysis.units import Phase
from placer.build import plan
from placer.build.plan import (
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
)
from placer.emit.choices import choices
from placer.graph.graph import Graph
from placer.graph.kinds import (
    is_computed,
    is_once,
)
from placer.graph.model import Model, Source
from placer.layouts.conversions import Conversion, Share, share_of
from placer.types import TensorType


def make_plan(
    model: Model,
    phases: Sequence[Phase],
    tables: Mapping[str, tuple[Table, ...]],
    schedule: Schedule,
    programs: Mapping[str, str],
    files: Mapping[str, str],
) -> Plan:
    """The plan of a build, given the final graphs of its phases, which program each node
    runs, and the hashes of its files."""
    step, alike = phases[0].graph, phases[0].alike
    edges = _edges(phases[0])
    costs = step_costs(step, edges, alike)
    memory = Memory(phases[0], schedule)
    in_step, *in_evaluation = map(_of_nodes, phases)
    computes: dict[tuple[str, ...], tuple[str, ...]] = {}
    for node in step.cluster.all_nodes():
        if (same := _class(phases, node)) not in computes:
            computes[same] = _computes(phases, node, tables[node])
    nodes = tuple(
        Node(
            name=node,
            program=programs[node],
            devices=dict(step.cluster.kind(node.split(":")[0]).devices),
            turns=schedule.of(node),
            computes=computes[_class(phases, node)],
            step=in_step[node],
            evaluation=in_evaluation[0][node] if in_evaluation else None,
            tables=tables[node],
            table_bytes=memory.tables(tables[node]),
            activation_bytes=memory.activations(node),
            device_bytes=memory.devices(node, tables[node]),
            flops=costs[alike.first(node)].model,
            replicated_flops=costs[alike.first(node)].replicated,
            exchange_flops=costs[alike.first(node)].exchange,
        )
        for node in step.cluster.all_nodes()
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
        minimize=model.graph.of_kind("minimize")[0].operands[0],
        nan=model.nan,
        metrics=model.metrics,
        columns=_columns(model, step),
        train=_data(model.train, model.graph, evaluating=False),
        evaluation=_data(model.eval, model.graph, evaluating=True)
        if model.eval
        else None,
        nodes=nodes,
        step_edges=edges,
        evaluation_edges=_edges(phases[1]) if phases[1:] else (),
        parameters=_parameters(model, nodes),
        choices=choices(model, step),
        modules=model.modules,
        files=dict(sorted(files.items())),
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


def _class(phases: Sequence[Phase], node: str) -> tuple[str, ...]:
    """What nodes have in common that are alike in every phase."""
    return tuple([phase.alike.first(node) for phase in phases])


def _computes(
    phases: Iterable[Phase], node: str, tables: Sequence[Table]
) -> tuple[str, ...]:
    """The devices that a node computes on, and updates tables."""
    found: dict[str, None] = {}
    for phase in phases:
        for op in phase.graph.on(node):
            if is_computed(op):
                found.setdefault(phase.graph.devices(op))
    found.update((table.devices, None) for table in tables if table.devices != MEMORY)
    return tuple(found)


def _of_nodes(phase: Phase) -> dict[str, plan.Phase]:
    """What each node reads and records."""
    graph, workers = phase.graph, phase.graph.cluster.workers
    reads: dict[str, list[Read]] = {}
    metrics: dict[str, dict[str, Metric]] = {}
    for op in graph.of_kind("read"):
        nodes = graph.nodes(op)
        for i, node in enumerate(nodes):
            split = op.result.layout == "S"
            share = share_of(nodes, i, workers) if split else Share((0,), 1)
            read = Read(
                value=op.name,
                input=op.attrs["input"],
                own=share.own,
                parts=share.parts,
            )
            reads.setdefault(node, []).append(read)
    for op in graph.of_kind("record"):
        metric = Metric(
            layout=graph.values[op.operands[0]].layout or "R",
            final=op.attrs.get("final", "value"),
        )
        for node in graph.nodes(op):
            metrics.setdefault(node, {})[op.attrs["metric"]] = metric
    return {
        node: plan.Phase(
            reads=tuple(reads.get(node, ())), metrics=metrics.get(node, {})
        )
        for node in graph.cluster.all_nodes()
    }


def _edges(phase: Phase) -> tuple[Edge, ...]:
    graph = phase.graph
    found = []
    for edge, listen in graph.listens.items():
        send = graph.sends[edge]
        values = tuple(
            _moved(graph, operand, result.name)
            for operand, result in zip(send.operands, listen.results, strict=True)
        )
        sources, targets = graph.nodes(send), graph.nodes(listen)
        times = graph.microbatches if graph.is_repeated(listen) else 1
        nbytes = sum(_moved_bytes(phase, v, sources, targets, times) for v in values)
        found.append(
            Edge(
                id=edge,
                sources=sources,
                targets=targets,
                values=values,
                nbytes=times * nbytes,
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
    phase: Phase,
    moved: Moved,
    sources: Sequence[str],
    targets: Sequence[str],
    times: int,
) -> int:
    """Bytes that cross between nodes for one value in one of so many microbatches of a
    full step. Targets that are alike take as many."""
    batch, workers = phase.graph.batch // times, phase.graph.cluster.workers
    kind = TensorType(moved.dtype, moved.shape)  # type: ignore[arg-type]
    row = kind.nbytes(batch) // batch if kind.has_rows else kind.nbytes(batch)
    ways = Conversion(moved.layouts, sources, targets, batch, workers)
    classes = phase.alike.classes
    total = 0
    for target in filter(classes.__contains__, targets):
        for piece in ways.pieces(target):
            if piece.source != target:
                rows = piece.high - piece.low
                nbytes = kind.nbytes(batch) if piece.whole else row * rows
                total += len(classes[target]) * nbytes
    return total


def _columns(model: Model, graph: Graph) -> tuple[Column, ...]:
    used = dict.fromkeys(op.attrs["input"] for op in graph.of_kind("read"))
    return tuple(
        Column(name=name, dtype=kind.dtype, shape=kind.sizes(1)[1:])
        for name, kind in model.inputs.items()
        if name in used
    )


def _data(source: Source, graph: Graph, *, evaluating: bool) -> Data:
    return Data(
        source=source.source,
        batch=source.batch,
        split=source.split,
        columns=dict(source.columns) if source.columns else None,
        shuffle=source.shuffle,
        seed=source.seed,
        remainder=source.remainder,
        csv=source.csv,
        ranges=index_ranges(graph, evaluating=evaluating),
    )
