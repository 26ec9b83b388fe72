"""`NodeDriver`: advances a node from step to step, between the hooks of its program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from placer.errors import RunError
from placer.runtime.asynchronous.recorded_order import ALL_EDGES, DRAIN, Order
from placer.runtime.asynchronous.replicas import Replicas
from placer.runtime.asynchronous.service import Service
from placer.runtime.asynchronous.worker_end import WorkerEnd
from placer.runtime.exchange.worker_messages import WorkerMessage
from placer.runtime.node.node import Node


@dataclass(slots=True)
class NodeDriver:
    """Controls a node for the training loop and for predictions.

    Node programs do not use it.

    Attributes:
        node: the node, as its program sees it.
        serve: the hook that handles the messages for asynchronous tables.
        updates: the `WorkerEnd` of each table with a worker-side update.
        replicas: the tables that each worker keeps and updates a copy of.
        has_own_steps: whether the node, a worker or its companion, trains without waiting
            for other workers in each step.
        order: records or replays the order of asynchronous events.
    """

    node: Node
    serve: Callable[[Node], None] | None = None
    updates: Sequence[WorkerEnd] = ()
    replicas: Replicas | None = None
    has_own_steps: bool = False
    order: Order = field(default_factory=Order)
    _awaited: int = 0  # the step whose parameters the last step awaits; 0 for none

    # Steps.

    def enter_step(self, step: int, epoch: int, index: int) -> None:
        """Begin training step `step` (from 1) with batch `index` (from 0) of an epoch."""
        node = self.node
        if self._service is not None:
            self._start_serving(self._service)
        count = node.batch_calls.training.batch_size(index)
        node.position.enter_step(step, epoch, index, count)
        self._awaited = 0 if node.position.is_last else step + 1
        node.exchange.new_step()
        node.step_workers.begin(step, count)
        self._apply([end.take(step) for end in self.updates])

    def end_step(self) -> bool:
        """End the step, after the hook. Return False if a server skipped the step."""
        self.node.step_workers.end(self.node.position.step)
        return not self.node.asynchronous_calls.step_skipped

    def enter_evaluation(self, step: int) -> None:
        self.node.position.enter_evaluation(step)
        self.node.exchange.new_step()

    def enter_prediction(self) -> None:
        """Begin the prediction, which uses the batches of an evaluation."""
        self.enter_evaluation(0)
        self.node.position.where = "prediction"

    # Between steps.

    @property
    def is_server(self) -> bool:
        """Whether this node serves asynchronous tables."""
        return self._service is not None

    @property
    def has_drains(self) -> bool:
        """Whether a drain has anything to wait for: the node does not wait for all others in each
        step."""
        return self.has_own_steps or self.is_server or self.node.step_workers.has_drains

    def drains_next(self, step: int) -> bool:
        """Whether the replayed order has a drain after this step. A server follows the workers."""
        if self._follows_workers:
            return False
        return self.order.peek(DRAIN, ALL_EDGES) == [step]

    def drain(self, step: int, *, ends: bool = False) -> None:
        """Wait until everything computed up to a step is applied.

        A worker sends all its gradients to the servers of asynchronous tables. A server
        waits for all workers, and applies their gradients. Parameters then stay unchanged
        until the next step.

        Args:
            step: the last step that was computed.
            ends: whether this is the last step of the run.
        """
        if not self.has_drains:
            return
        self._follow_order(step)
        node = self.node
        for end in self._ends:
            end.drain(step, ends=ends)
        self._apply([end.take_rest() for end in self.updates])
        if node.row_calls is not None:
            node.row_calls.lookups.drain()
        if (service := self._service) is not None:
            # Workers may drain twice without a step in between.
            self._start_serving(service)
            service.drain()
            for table, done in service.steps_of_rows().items():
                assert node.row_calls is not None
                node.row_calls.pushes.forget_up_to(table, done)
        node.step_workers.drain(step)
        # The state of the last step of a worker with backup workers is stored now.
        if self.replicas is not None:
            self.replicas.agree()

    def resume(self, step: int, steps: Mapping[str, int]) -> None:
        """Continue after `step`, the last step that all workers have finished, and the
        last step of each worker."""
        if self.node.row_calls is not None:
            self.node.row_calls.pushes.resume(step)
        if self._service is not None:
            self._service.resume(steps)
        for end in self._ends:
            end.resume(steps)

    def discard_sent_back(self) -> None:
        """Receive and drop parameters for the step after the last one."""
        node = self.node
        if self._awaited:
            node.next_parameters.discard(node.name, self._awaited)

    # Statistics.

    @property
    def staleness(self) -> Counter[int]:
        """The number of applied gradients for each staleness, for any thread."""
        total: Counter[int] = Counter()
        if self._service is not None:
            total += Counter(self._service.staleness)
        for end in self.updates:
            total += Counter(end.staleness)  # A copy: its thread may change it.
        return total

    @property
    def geo_staleness(self) -> Counter[int]:
        """The number of applied differences (`geo`) for each staleness, for any thread."""
        return Counter(self._service.geo_staleness if self._service else {})

    @property
    def horizon(self) -> int:
        """The newest step known to be finished by all workers. Workers learn it from
        servers; a worker that pulls nothing learns it only at drains. With synchronous
        training it is the node's own step."""
        own = 0 if self.has_own_steps else self.node.position.step
        return min((end.horizon for end in self._ends), default=own)

    @property
    def _ends(self) -> Iterable[WorkerEnd]:
        """The distinct `WorkerEnd` objects of this node."""
        return dict.fromkeys(self.node.asynchronous_calls.ends.values())

    def _follow_order(self, step: int) -> None:
        """Record a drain, or compare it with the recorded order."""
        if self.order.replays:
            (recorded,) = self.order.next(DRAIN, ALL_EDGES)
            if recorded != step and not self._follows_workers:
                raise RunError(
                    f"the recorded order drains after step {recorded}, not {step}",
                    hint="replay with the options of the run that was recorded",
                )
        self.order.add(DRAIN, ALL_EDGES, step)

    @property
    def _follows_workers(self) -> bool:
        """Whether this node drains when all workers have drained. Its own step then says
        nothing: after a failure, a server counts from the step of the slowest worker."""
        return self.is_server and not self.has_own_steps

    def _apply(self, arrived: Sequence[Sequence[WorkerMessage]]) -> None:
        """Update tables from the messages of each end."""
        messages = [message for of_end in arrived for message in of_end]
        if messages:
            assert self.serve is not None
            calls = self.node.asynchronous_calls
            calls.arrived = messages
            self.serve(self.node)
            calls.arrived = ()

    @property
    def _service(self) -> Service | None:
        return self.node.asynchronous_calls.service

    def _start_serving(self, service: Service) -> None:
        """Handle the messages of workers in a thread, until all workers drain."""
        assert self.serve is not None
        service.start(partial(self.serve, self.node))
