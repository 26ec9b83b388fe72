"""local_updates: let workers train local values, in optimizer groups with `update: geo`.

Needs places. Afterwards the optimizer of such a group is on the workers and updates a local
copy of each parameter, `local_parameter`. Each worker uses its own estimate of the
gradients. On the servers, an outer optimizer updates the parameters by the `delta`, the
difference between old and trained values. By default the outer optimizer is `sgd` with
rate 1, which subtracts the difference:

    %w.local = local_parameter(%w)
    %w.trained = if_training(%w.local, %w)
    %w.grad.row_estimate = row_estimate(%w.grad)
    %w.local.new = adam(%w.local, %w.grad.row_estimate)
    store(%w.local, %w.local.new)
    %w.delta = delta(%w.local.new)
    %w.new = sgd(%w, %w.delta)
    store(%w, %w.new)

Evaluations and predictions use the parameters on the servers. Later, the pass `slice` cuts
parameters and differences into blocks, and `exchange` inserts the ops that move them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from placer.compiler.graph.graph import Graph, Op, Value
from placer.compiler.graph.if_training import (
    IF_TRAINING,
    is_training_effect,
    resolve_if_training,
)
from placer.compiler.graph.rewriter import Rewriter
from placer.compiler.graph.structural_ops import (
    ROW_ESTIMATE,
    is_optimizer_part,
    is_update,
)
from placer.errors import GraphError
from placer.place import SERVER, WORKER, Place
from placer.plan.settings.training.schedules import read_rate
from placer.plan.settings.training.update_modes import Geo, Sync


def local_updates(graph: Graph) -> Graph:
    """Run the pass.

    Raises GraphError if such an optimizer is not on servers, or if nodes other than
    workers use its parameters.
    """
    modes = {g: mode for g, mode in graph.modes.items() if isinstance(mode, Geo)}
    if not modes:
        return graph
    return _LocalUpdates(graph, modes).rewritten()


class _LocalUpdates:
    """Rewrites the ops of a graph in program order."""

    def __init__(self, graph: Graph, modes: Mapping[int, Geo]) -> None:
        self._graph, self._modes = graph, modes
        self._rewriter = Rewriter(graph)
        for group in modes:
            _check_place(graph.optimizers[group])
        first = max(graph.optimizers) + 1
        self._local_groups = {group: first + i for i, group in enumerate(modes)}
        updates = [
            op for op in graph.ops if is_update(op.kind) and op.attrs["group"] in modes
        ]
        self._places = _local_places(graph, updates)
        self._updates = {op.operands[0]: op for op in updates}
        # The replacements of values at workers: for the optimizer, and for other ops.
        self._at_workers: dict[str, str] = {}
        self._trained: dict[str, str] = {}
        self._parts = self._optimizer_parts()
        self._estimates = self._estimate_ops()

    def rewritten(self) -> Graph:
        rewriter = self._rewriter
        for op in rewriter:
            if op.kind == "optimizer" and op.attrs["group"] in self._modes:
                self._split_optimizer(op)
            elif op in self._parts:
                rewriter.replace(self._at_worker(op))
            elif op.kind == "store" and op.operands[0] in self._updates:
                self._insert_local_store(op)
            else:
                if op.attrs.get("of") in self._trained:
                    rewriter.replace(op.with_attrs(of=self._trained[op.attrs["of"]]))
                rewriter.replace_operands(self._trained)
                if op.kind == "parameter" and op.name in self._updates:
                    self._insert_local_parameter(op)
                rewriter.insert_after(*self._estimates.get(op, ()))
        return rewriter.graph()

    def _optimizer_parts(self) -> dict[Op, str]:
        """Return the optimizer ops of these groups, each with its parameter."""
        parts: dict[Op, str] = {}
        owners = {name: name for name in self._updates}
        for op in self._graph.ops:
            if not is_optimizer_part(op.kind):
                continue
            owner = next((owners[n] for n in op.operands if n in owners), None)
            if owner is not None:
                parts[op] = owner
                owners.update((value.name, owner) for value in op.results)
        return parts

    def _estimate_ops(self) -> dict[Op, list[Op]]:
        """Return the ops that estimate gradients, by the op that computed the gradient."""
        found: dict[Op, list[Op]] = {}
        for op, parameter in self._parts.items():
            if not op.structure.update or op.operands[0] != parameter:
                continue
            name = op.operands[1]
            producer = self._graph.producers[name]
            if producer not in self._parts and name not in self._at_workers:
                self._check_gradient(producer, op)
                result = self._rewriter.new_value(name, ROW_ESTIMATE)
                self._at_workers[name] = result.name
                place, source = producer.place, producer.source
                estimate = Op(ROW_ESTIMATE, (name,), (result,), {}, place, source)
                found.setdefault(producer, []).append(estimate)
        return found

    def _check_gradient(self, gradient: Op, update: Op) -> None:
        """Raise GraphError unless a gradient is computed where its parameter is used."""
        graph = self._graph
        if graph.nodes(gradient) != graph.cluster.nodes(
            self._places[update.operands[0]]
        ):
            raise GraphError(
                f"the gradient of '{update.operands[0]}' is not computed on the nodes"
                " that use the parameter",
                span=update.source,
                hint="let each worker compute the gradient where it uses the parameter",
            )

    def _split_optimizer(self, op: Op) -> None:
        """Replace an optimizer by one for the servers and one for the workers."""
        group = op.attrs["group"]
        outer = _outer(self._modes[group])
        kept = ("update", "slicing", "shard_state", "all_reduce")
        attrs = {
            "group": group,
            "rule": outer.pop("op"),
            **outer,
            **{key: op.attrs[key] for key in kept if key in op.attrs},
        }
        of_servers = replace(op, attrs=attrs)
        of_worker = {k: v for k, v in op.attrs.items() if k not in kept}
        of_worker |= {"group": self._local_groups[group], "update": Sync()}
        place = next(
            self._places[name]
            for name, update in self._updates.items()
            if update.attrs["group"] == group
        )
        of_workers = replace(op, attrs=of_worker, place=place)
        self._rewriter.replace(of_servers, of_workers)

    def _insert_local_parameter(self, op: Op) -> None:
        name, place = op.name, self._places[op.name]
        local = self._rewriter.new_value(name, "local")
        trained = self._rewriter.new_value(name, "trained")
        attrs = {"whole": name, "group": self._local_groups[op.attrs["group"]]}
        if not op.attrs.get("decay", True):
            attrs["decay"] = False
        sides = local.name, name
        self._rewriter.insert_after(
            Op("local_parameter", (name,), (local,), attrs, place, op.source),
            Op(IF_TRAINING, sides, (trained,), {}, place, op.source),
        )
        self._at_workers[name] = local.name
        self._trained[name] = trained.name

    def _at_worker(self, op: Op) -> Op:
        """Return an op of an optimizer at the workers."""
        place = self._places[self._parts[op]]
        results = tuple(self._result_at_worker(value) for value in op.results)
        operands = tuple(self._at_workers.get(name, name) for name in op.operands)
        attrs = op.attrs
        if "group" in attrs:
            attrs = {**attrs, "group": self._local_groups[attrs["group"]]}
        return replace(op, operands=operands, results=results, attrs=attrs, place=place)

    def _result_at_worker(self, value: Value) -> Value:
        """Return a result of an optimizer op at the workers, with new values renamed."""
        producer = self._graph.producers[value.name]
        if not is_update(producer.kind):
            return value
        local = self._at_workers[self._parts[producer]]
        renamed = replace(value, name=self._rewriter.new_name(f"{local}.new"))
        self._at_workers[value.name] = renamed.name
        return renamed

    def _insert_local_store(self, op: Op) -> None:
        """Insert the local store at workers, then the update on servers."""
        name, new = op.operands
        local, local_new = self._at_workers[name], self._at_workers[new]
        place = self._places[name]
        memory = self._graph.cluster.host_memory(place)
        delta = self._rewriter.new_value(name, "delta")
        update = self._updates[name]
        group = update.attrs["group"]
        rule = _outer(self._modes[group])["op"]
        operands = name, delta.name
        attrs = {k: v for k, v in update.attrs.items() if k in ("group", "decay")}
        self._rewriter.insert(
            replace(op, operands=(local, local_new), place=place),
            Op("delta", (local_new,), (delta,), {}, memory, op.source),
            replace(update, kind=rule, operands=operands, attrs=attrs),
        )


def _outer(mode: Geo) -> dict[str, Any]:
    """Return the outer optimizer; by default it adds the changes of workers."""
    outer = dict(mode.outer or {"op": "sgd", "learning_rate": 1.0})
    return {**outer, "learning_rate": read_rate(outer["learning_rate"])}


def _check_place(op: Op) -> None:
    if op.known_place.node != SERVER:
        raise GraphError(
            f"'update: geo' needs the optimizer on servers, not at {op.place}",
            span=op.source,
            hint="place: /node:ps/cpu, with nodes of kind ps; workers still train their"
            " local values",
        )


def _local_places(graph: Graph, updates: Sequence[Op]) -> dict[str, Place]:
    """Return where each parameter of these updates is trained: where a step uses it."""
    # Only workers can train local values, so other users are an error.
    names = {op.operands[0] for op in updates}
    used: dict[str, list[Op]] = {name: [] for name in names}
    for op in resolve_if_training(graph, 0, is_training_effect):
        if op.is_computed and not is_optimizer_part(op.kind):
            for name in names & {*op.operands}:
                used[name].append(op)
    places: dict[str, Place] = {}
    for update in updates:
        name = update.operands[0]
        optimizer = graph.optimizers[update.attrs["group"]]
        for op in used[name]:
            if op.known_place.node != WORKER:
                raise GraphError(
                    f"'{op.name}' at {op.place} uses '{name}', but its optimizer has"
                    " 'update: geo'",
                    span=op.source or optimizer.source,
                    hint="place the op on workers, or use 'update: sync'",
                )
        place = graph.cluster.union([op.known_place for op in used[name]])
        assert place is not None
        places[name] = place
    return places
