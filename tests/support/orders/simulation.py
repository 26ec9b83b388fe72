"""An asynchronous run as a simulation in one process: it follows a recorded order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from placer.plan.plan import Edge, Plan
from placer.plan.settings.training.update_modes import Geo
from support.orders.differences import Differences
from support.orders.exchange import Arrays, Exchange, Group, Piece, Run, read_events
from support.orders.own_updates import Peers, Sums
from support.orders.pushes import Pushes
from support.orders.rows import RowPushes, Vocabulary
from support.orders.synchronous import Synchronous

Gradient = Callable[[Arrays, str, int], tuple[Arrays, float]]
"""A worker's part in the gradients of all parameters, and its share of the rows, of
parameters, a worker and a step."""


class Simulation:
    """A run of one process that follows a recorded order.

    Args:
        plan: the plan of the build.
        folder: the recorded order.
        initial: the initial values of the trained parameters.
        gradient: computes the part of one worker in the gradients.
        groups: the optimizers.
        steps: the number of steps.
        clip: limits the gradients of all synchronous groups together.
        tables: the keys of the sparse tables, each of which has initial values as a dense
            parameter with a row for each of them, here of any value.

    Attributes:
        exchanges: how the parameters are updated.
        used: the parameters that each worker used in each step.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        initial: Arrays,
        gradient: Gradient,
        groups: Sequence[Group],
        steps: int,
        clip: Callable[[Arrays], Arrays] = lambda gradients: gradients,
        tables: Mapping[str, Vocabulary] | None = None,
    ) -> None:
        self.plan, self.initial, self.steps = plan, initial, steps
        self._gradient, self._events = gradient, read_events(folder)
        self._computed: dict[tuple[str, int], tuple[Arrays, float]] = {}
        self.used: dict[tuple[str, int], Arrays] = {}
        synchronous = [group for group in groups if group.mode is None]
        self.exchanges: list[Exchange] = []
        if synchronous:
            self.exchanges.append(Synchronous(self, synchronous, clip))
        for group in groups:
            self.exchanges += exchanges(self, group, tables or {})

    def run(self) -> Arrays:
        """Return the parameters at the end."""
        while any(each.advance() for each in self.exchanges):
            pass
        return self._join(piece for each in self.exchanges for piece in each.final())

    @property
    def staleness(self) -> list[int]:
        """The staleness of each update, in no order."""
        return [stale for each in self.exchanges for stale in each.staleness]

    @property
    def divergence(self) -> float:
        """The largest one, of all drains."""
        return max(each.divergence for each in self.exchanges)

    def gradient(self, worker: str, step: int) -> tuple[Arrays, float] | None:
        """Return the part of a worker in the gradients of a step, and its share of the
        rows; None as long as parameters that it uses are missing."""
        at = worker, step
        if at not in self._computed:
            pieces: list[Piece] = []
            for each in self.exchanges:
                values = each.values(worker, step)
                if values is None:
                    return None
                pieces += values
            self.used[at] = self._join(pieces)
            self._computed[at] = self._gradient(self.used[at], worker, step)
        return self._computed[at]

    def events(self, node: str) -> list[list[Any]]:
        """Return what a node has recorded."""
        return self._events.get(node, [])

    def _join(self, pieces: Iterable[Piece]) -> Arrays:
        flat = {name: array.reshape(-1).copy() for name, array in self.initial.items()}
        for name, low, values in pieces:
            flat[name][low : low + values.size] = values
        return {n: flat[n].reshape(self.initial[n].shape) for n in self.initial}


def exchanges(
    run: Run, group: Group, tables: Mapping[str, Vocabulary]
) -> Iterator[Exchange]:
    """Yield the exchanges of a group, unless it is synchronous."""
    if group.mode is None:
        return
    if isinstance(group.mode, Geo):
        yield Differences(run, group)
    else:
        for edge in run.plan.step_edges:
            if not edge.is_push or not _parameters(run.plan, edge) & {*group.names}:
                continue
            if edge.exchange == "push_rows":
                yield RowPushes(run, group, edge, tables)
            elif edge.exchange == "push":
                yield Pushes(run, group, edge)
            elif edge.exchange == "push_all":
                yield Peers(run, group, edge)
            else:
                yield Sums(run, group, edge, _answers(run.plan, edge))


def _answers(plan: Plan, push: Edge) -> Edge:
    """Return the edge of the sums of what comes by another edge."""
    pushed = {value.result for value in push.values}
    (pull,) = (
        edge
        for edge in plan.step_edges
        if edge.exchange == "pull_sum"
        and {value.operand for value in edge.values} == pushed
    )
    return pull


def _parameters(plan: Plan, push: Edge) -> set[str]:
    """Return the parameters that are updated by what comes by an edge."""
    if push.exchange == "push_rows":
        return {name for value in push.values for name in value.tables}
    brings = _answers(plan, push) if push.exchange == "push_sum" else push
    gradients = {value.result for value in brings.values}
    return {
        block.parameter
        for table in plan.node(brings.targets[0]).tables
        for block in table.blocks
        if block.gradient in gradients
    }
