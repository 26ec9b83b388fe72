"""Exchanges the gradients of an optimizer on several nodes by all-reduce in two halves.

Afterwards the gradients of an optimizer group are divided into ranges, one per node
(layout F). `reduce_scatter` sums each range at its node. The next step depends on the
settings:

- By default, `all_gather` gives every node all sums, and every node updates all
  parameters, with the same result:

      %w.grad.reduce_scatter F = reduce_scatter(%w.grad)
      %w.grad.all_gather R = all_gather(%w.grad.reduce_scatter)
      %w.new R = adam(%w, %w.grad.all_gather)

- With `shard_state`, parameters and slots have the same ranges. A node updates its own
  range. At the start of the next step, `all_gather` gives all nodes the new parameters:

      %w F = parameter()
      %w.all_gather R = all_gather(%w)
      %w.grad.reduce_scatter F = reduce_scatter(%w.grad)
      %w.new F = adam(%w, %w.grad.reduce_scatter)

- With `sum`, servers hold the ranges and sum them, and `all_gather` gives the workers all
  sums.

Norms of ranges are sums over the nodes, like any partial value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from placer.compiler.graph.graph import Graph, Op, Value
from placer.compiler.graph.optax_groups import reason_for_whole
from placer.compiler.graph.rewriter import Rewriter
from placer.compiler.graph.structural_ops import SCALES, is_optimizer_part
from placer.compiler.passes.gradients.updates import owning_parameters
from placer.place import Place
from placer.place.layouts.ranges import Flat, pack


def all_reduce(graph: Graph, updates: Sequence[Op]) -> Graph:
    """Insert the exchange of these updates; each of them runs on several nodes."""
    if not updates:
        return graph
    return _Exchange(graph, updates).rewritten()


class _Exchange:
    """Rewrites the ops of a graph in program order."""

    def __init__(self, graph: Graph, updates: Sequence[Op]) -> None:
        self._graph = graph
        self._rewriter = Rewriter(graph)
        self._updates = {op.operands[0]: op for op in updates}
        self._flats = divide(graph, updates)
        for name, flat in self._flats.items():
            if self._is_sharded(name) and reason_for_whole(graph, self._updates[name]):
                self._flats[name] = replace(flat, whole=True)  # one node updates it
        self._owners = {
            value: parameter
            for value, parameter in owning_parameters(graph).items()
            if parameter in self._updates
        }
        # The replacements of values for optimizers and for other ops, by name.
        self._for_optimizers: dict[str, str] = {}
        self._for_others: dict[str, str] = {}

    def rewritten(self) -> Graph:
        rewriter = self._rewriter
        sums: dict[str, tuple[str, ...]] = {}
        for op in rewriter:
            if is_optimizer_part(op.kind):
                for name in op.operands:
                    self._exchange(name)
            if op.kind == "sum_of_squares":
                parts = self._sums_of_squares(op)
                sums[op.name] = tuple(part.name for part in parts)
                rewriter.replace(*parts)
                continue
            if op.kind in SCALES:
                names = [p for name in op.operands for p in sums.get(name, (name,))]
                op = op.with_operands(tuple(names))
            op = self._with_ranges(op)
            if op.kind == "parameter" and op.result.flat and op.result.flat.whole:
                why = reason_for_whole(self._graph, self._updates[op.name])
                op = replace(op, why=why)
            rewriter.replace(op)
            if op.kind == "parameter" and op.result.layout == "F":
                gathered = self._gathered(op.name, op.name, op.name)
                rewriter.insert_after(gathered)
                self._for_others[op.name] = gathered.name
        return rewriter.graph()

    def _is_sharded(self, parameter: str) -> bool:
        return bool(self._settings(parameter).get("shard_state"))

    def _settings(self, parameter: str) -> Mapping[str, object]:
        group = self._updates[parameter].attrs["group"]
        return self._graph.optimizers[group].attrs

    def _with_ranges(self, op: Op) -> Op:
        """Return the op with replaced operands, and results in ranges if sharded."""
        is_part = is_optimizer_part(op.kind) or op.kind == "store"
        names = self._for_optimizers if is_part else self._for_others
        op = op.with_operands(tuple(names.get(name, name) for name in op.operands))
        owner = op.name if op.kind == "parameter" else None
        if is_part and op.results and op.kind not in SCALES:
            owner = self._owners.get(op.name) or self._updated(op)
        if owner is None or owner not in self._updates or not self._is_sharded(owner):
            return op
        flat = self._flats[owner]
        results = tuple(replace(each, layout="F", flat=flat) for each in op.results)
        return op.with_values(op.operands, results)

    def _updated(self, op: Op) -> str | None:
        return op.operands[0] if op.structure.update == "value" else None

    def _exchange(self, name: str) -> None:
        """Insert the exchange of a gradient before its first use by an optimizer."""
        # Inserting at the first use keeps gradients in the order of their parameters.
        parameter = self._owners.get(name)
        producer = self._graph.producers[name]
        if parameter is None or name in self._for_optimizers:
            return
        if producer.kind == "parameter" or is_optimizer_part(producer.kind):
            return
        kind, flat = "reduce_scatter", self._flats[parameter]
        result = self._rewriter.new_value(name, kind, layout="F", flat=flat)
        exchanged = self._op(kind, name, result, parameter)
        self._rewriter.insert(exchanged)
        if not self._is_sharded(parameter):
            exchanged = self._gathered(exchanged.name, name, parameter)
            self._rewriter.insert(exchanged)
        self._for_optimizers[name] = exchanged.name

    def _gathered(self, ranges: str, name: str, parameter: str) -> Op:
        """Return the op that gives all nodes the whole of a value in ranges."""
        whole = self._rewriter.new_value(name, "all_gather")
        return self._op("all_gather", ranges, whole, parameter)

    def _op(self, kind: str, operand: str, result: Value, parameter: str) -> Op:
        """Return a conversion at the nodes of a parameter."""
        settings = self._settings(parameter)
        update = self._updates[parameter]
        attrs: dict[str, object] = {"group": update.attrs["group"]}
        if settings.get("all_reduce") == "ring":
            attrs["ring"] = True
        place = self._graph.cluster.host_memory(update.known_place)
        if kind == "reduce_scatter" and "sum" in settings:
            place = place_of_sums(self._graph, update)
        source, why = update.source, _why(kind, settings)
        return Op(kind, (operand,), (result,), attrs, place, source, why)

    def _sums_of_squares(self, op: Op) -> list[Op]:
        """Split a sum of squares into whole values and ranges if it has both."""
        whole: list[str] = []
        ranges: list[str] = []
        for name in op.operands:
            owner = self._owners.get(name)
            sharded = owner is not None and self._is_sharded(owner)
            used = self._for_optimizers.get(name, name)
            (ranges if sharded else whole).append(used)
        if not (whole and ranges):
            return [op.with_operands(tuple(whole or ranges))]
        of_ranges = self._rewriter.new_value(op.name, "ranges")
        return [
            op.with_operands(tuple(whole)),
            op.with_values(tuple(ranges), (of_ranges,)),
        ]


def place_of_sums(graph: Graph, update: Op) -> Place:
    """Return the place of an optimizer's `sum`, where gradients are summed."""
    place = graph.optimizers[update.attrs["group"]].attrs["sum"]
    return graph.cluster.host_memory(graph.cluster.complete(place))


def _why(kind: str, settings: Mapping[str, object]) -> str:
    """Return the reason that is recorded for a conversion."""
    ring = settings.get("all_reduce") == "ring"
    way = "from node to node in a ring" if ring else "directly"
    if "sum" in settings and kind == "reduce_scatter":
        return "inserted: each server sums its range of the gradients, in worker order"
    if kind == "reduce_scatter":
        order = "the order of the ring" if ring else "the order of the nodes"
        return f"inserted: each node sums its range of the gradients, sent {way}, in {order}"
    if "sum" in settings:
        return "inserted: each worker receives the sums of all servers"
    what = "new parameters" if settings.get("shard_state") else "summed gradients"
    return f"inserted: each node receives the missing ranges of the {what}, {way}"


def divide(graph: Graph, updates: Sequence[Op]) -> dict[str, Flat]:
    """Return the range of each parameter in its group of equal optimizer, place and
    dtype."""
    groups: dict[tuple[int, Place, str], list[str]] = {}
    for op in updates:
        (name, *_), place = op.operands, op.known_place
        dtype = graph.tensor_type(name).dtype
        groups.setdefault((op.attrs["group"], place, dtype), []).append(name)
    return {
        name: flat
        for names in groups.values()
        for name, flat in zip(
            names, pack([graph.tensor_type(n).numel() for n in names]), strict=True
        )
    }
