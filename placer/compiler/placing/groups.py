"""Movable groups: the forward ops of a graph that must run at one place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.placing.cycles import Sets
from placer.place import SERVER


@dataclass(frozen=True, slots=True)
class Movable:
    """Forward ops that run at one place. Their gradients, and by default the parameters,
    updates and slots, follow them.

    Attributes:
        name: the name of the first op.
        ops: the names of the ops, in program order.
        parameters: the names of the parameters that they use, in program order.
        why_fixed: why the ops stay where the spec places them; empty if they can move.
    """

    name: str
    ops: tuple[str, ...]
    parameters: tuple[str, ...] = ()
    why_fixed: str = ""

    @property
    def is_free(self) -> bool:
        return not self.why_fixed


def forward_ops(graph: Graph) -> list[Op]:
    """Return the computed ops of a graph before differentiation, in program order.

    Constants are not among them. Each place that uses one has its own.
    """
    return [op for op in graph.ops if op.is_computed and op.kind != "constant"]


def movable_groups(graph: Graph, fix: Sequence[str] = ()) -> tuple[Movable, ...]:
    """Return the groups of a graph as a front end makes it, in order of their first ops.

    A group has all ops that share a parameter or a state, the parts of a composite, and all
    ops on a cycle of groups. A call of a traced function is one op.

    Ops do not move if `fix` names them, if they are at `/node:ps` or if they use a sparse
    table; neither do ops of their groups. No op moves if workers do not wait for each other:
    each of them has to compute the whole loss.

    Args:
        graph: the graph.
        fix: patterns of names of ops, as of files: `h*`.

    Example:
        >>> model = load(Path("specs/mlp_pipeline.yaml"))
        >>> [group.name for group in movable_groups(model.graph)][:3]
        ['pixels', 'h1', 'h2']
    """
    ops = forward_ops(graph)
    number = {op: i for i, op in enumerate(ops)}
    apart = _why_apart(graph)
    reasons = [apart or _why_fixed(graph, op, fix) for op in ops]
    sets = Sets(len(ops))
    for weight in graph.weights:
        users = [number[op] for op in graph.uses.get(weight.name, ()) if op in number]
        for user in users[1:]:
            sets.join(users[0], user)
    for a, b in _parts(ops):
        sets.join(number[a], number[b])
    fixed = {sets.first(i) for i, reason in enumerate(reasons) if reason}
    # A value may go to a server and back to a later stage.
    sets.join_cycles(
        (number[producer], number[op])
        for op in ops
        for name in op.operands
        if (producer := graph.producers[name]) in number
        and fixed.isdisjoint((sets.first(number[producer]), sets.first(number[op])))
    )
    members: dict[int, list[int]] = {}
    for i in range(len(ops)):
        members.setdefault(sets.first(i), []).append(i)
    return tuple(
        _group(graph, [ops[i] for i in each], [reasons[i] for i in each])
        for each in members.values()
    )


def _group(graph: Graph, ops: Sequence[Op], reasons: Sequence[str]) -> Movable:
    used = {name for op in ops for name in op.operands}
    parameters = tuple(op.name for op in graph.weights if op.name in used)
    why = next((f"{op.name}: {r}" for op, r in zip(ops, reasons, strict=True) if r), "")
    return Movable(ops[0].name, tuple(op.name for op in ops), parameters, why)


def _why_apart(graph: Graph) -> str:
    """Return why workers do not wait for each other, or nothing."""
    for index in graph.optimizers:
        if graph.modes[index] is not None:
            return f"the updates of optimizer {index} are asynchronous"
        if graph.backups[index]:
            return f"optimizer {index} has backup workers"
    return ""


def _why_fixed(graph: Graph, op: Op, fix: Sequence[str]) -> str:
    """Return why an op does not move, or nothing."""
    if any(fnmatchcase(op.name, pattern) for pattern in fix):
        return "it is fixed"
    if op.place is not None and op.place.node == SERVER:
        return f"it is at {op.place}"
    for name in op.operands:
        if graph.producers[name].kind == "sparse_table":
            return f"it uses the sparse table '{name}'"
    return ""


def _parts(ops: Sequence[Op]) -> Iterator[tuple[Op, Op]]:
    """Yield the result of each composite with each of its other parts."""
    named = {op.name: op for op in ops}
    for op in ops:
        name = op.name
        while "." in name:
            name = name.rpartition(".")[0]
            whole = named.get(name)
            if whole is not None and whole.source == op.source:
                yield whole, op
