"""`NodeDriver`: moves a node from step to step, between the calls of its program."""

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
    """What the training loop and a prediction do with a node. Its program calls none of
    this.

    Attributes:
        node: the node, as its program sees it.
        serve: the hook that handles the messages for asynchronous tables.
        updates: the node's ends of tables whose copy this worker updates.
        replicas: the tables of which each worker updates a copy.
        has_own_steps: whether the node does not wait for other workers in each step:
            a worker, or its companion.
        order: records or replays the order of asynchronous events.
    """

    node: Node
    serve: Callable[[Node], None] | None = None
    updates: Sequence[WorkerEnd] = ()
    replicas: Replicas | None = None
    has_own_steps: bool = False
    order: Order = field(default_factory=Order)
    _trained: int = 0  # the last training step that has begun

    # Steps.

    def enter_step(self, step: int, epoch: int, index: int) -> None:
        """Begin training step `step` (from 1): batch `index` (from 0) of an epoch."""
        node = self.node
        if self._service is not None:
            self._start_serving(self._service)
        count = node.batch_calls.training.batch_size(index)
        node.position.enter_step(step, epoch, index, count)
        self._trained = step
        node.exchange.new_step()
        node.step_workers.begin(step, count)
        self._apply([end.take(step) for end in self.updates])

    def end_step(self) -> bool:
        """End the step, after the hook; return whether it is done. That of a server is
        not if all workers have drained before it."""
        self.node.step_workers.end(self.node.position.step)
        return not self.node.asynchronous_calls.is_short

    def enter_evaluation(self, step: int) -> None:
        """Begin the evaluation after a training step."""
        self.node.position.enter_evaluation(step)
        self.node.exchange.new_step()

    def enter_prediction(self) -> None:
        """Begin the prediction: its batches are those of an evaluation."""
        self.enter_evaluation(0)
        self.node.position.where = "prediction"

    # Between steps.

    @property
    def is_server(self) -> bool:
        """Whether this node has asynchronous tables."""
        return self._service is not None

    @property
    def has_drains(self) -> bool:
        """Whether this node does not wait for all others in each step, so that a drain has
        something to wait for."""
        return self.has_own_steps or self.is_server or self.node.step_workers.has_drains

    def drains_next(self, step: int) -> bool:
        """Whether a replayed order has a drain after a step."""
        return self.order.peek(DRAIN, ALL_EDGES) == [step]

    def drain(self, step: int, *, ends: bool = False) -> None:
        """Send everything that this node has computed up to a step to the servers of
        asynchronous tables; on such a server, wait until all workers have done so, and
        apply it. Nothing changes until the next step. `ends` says that the step is the
        last one of the run."""
        if not self.has_drains:
            return
        self._follow_order(step)
        node = self.node
        for end in self._ends:
            end.drain(step, ends=ends)
        self._apply([end.take_rest() for end in self.updates])
        if self.replicas is not None:
            self.replicas.agree()
        if (service := self._service) is not None:
            # After the drain before, workers may drain again without a step.
            self._start_serving(service)
            service.drain()
            for table, done in service.steps_of_rows().items():
                assert node.row_calls is not None
                node.row_calls.pushes.forget_up_to(table, done)
        node.step_workers.drain(step)

    def resume(self, step: int, steps: Mapping[str, int]) -> None:
        """Continue after a step that all workers have done, and the last one of each."""
        if self.node.row_calls is not None:
            self.node.row_calls.pushes.resume(step)
        if self._service is not None:
            self._service.resume(steps)
        for end in self._ends:
            end.resume(steps)

    def discard_sent_back(self) -> None:
        """Receive the parameters that other nodes have sent for a step after the end of
        the run."""
        node = self.node
        if self._trained not in (0, node.position.last_step):
            node.next_parameters.discard(node.name, self._trained + 1)

    # What the node knows.

    @property
    def staleness(self) -> Counter[int]:
        """How many gradients were applied with each staleness."""
        total: Counter[int] = Counter()
        if self._service is not None:
            total += Counter(self._service.staleness)
        for end in self.updates:
            total += end.staleness
        return total

    @property
    def horizon(self) -> int:
        """The newest step that this node knows all workers to have done: from the servers,
        or, in lockstep, its own; a worker that pulls nothing learns it at drains only."""
        own = 0 if self.has_own_steps else self.node.position.step
        return min((end.horizon for end in self._ends), default=own)

    @property
    def _ends(self) -> Iterable[WorkerEnd]:
        """The node's ends of asynchronous tables, each once."""
        return dict.fromkeys(self.node.asynchronous_calls.ends.values())

    def _follow_order(self, step: int) -> None:
        """Record a drain, or compare it with the recorded one."""
        if self.order.replays:
            (recorded,) = self.order.next(DRAIN, ALL_EDGES)
            if recorded != step:
                raise RunError(
                    f"the recorded order drains after step {recorded}, not {step}",
                    hint="replay with the options of the run that was recorded",
                )
        self.order.add(DRAIN, ALL_EDGES, step)

    def _apply(self, arrived: Sequence[Sequence[WorkerMessage]]) -> None:
        """Update tables by messages, those of each end."""
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
        """Handle the messages of workers, until these drain, in a thread."""
        assert self.serve is not None
        service.start(partial(self.serve, self.node))
