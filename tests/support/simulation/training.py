"""Asynchronous training in a simulation, and what has to hold of it.

Channels, communicators, services and tables are real. The parameters of a server say by
themselves what was applied: they have a row for each step of each worker, and the
gradient of that step adds 1 to all elements of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

from placer.channel.interface import Array
from placer.channel.session import Session
from placer.plan.plan import MEMORY, Edge, EdgeValue, Table
from placer.plan.settings.training.slicing import Block
from placer.plan.settings.training.update_modes import Async, HalfAsync, Mode
from placer.runtime.asynchronous.pulled_versions import PulledVersions
from placer.runtime.asynchronous.recorded_order import Order
from placer.runtime.asynchronous.service import Service
from placer.runtime.node.asynchronous_calls import AsynchronousCalls
from placer.runtime.node.learning_rates import LearningRates
from placer.runtime.node.position import Position
from placer.system import owned_threads
from placer.tables.dense import DenseTable
from support.simulation.world import World, check_waits

DEADLINE = 60.0
COLUMNS = (1, 90)
"""Elements of a row in each block: a block of one piece, and one of several."""


@dataclass(frozen=True)
class Run:
    """What is trained: steps of workers, with a drain after each of `drains`."""

    workers: list[str]
    servers: list[str]
    mode: Mode
    steps: int
    drains: frozenset[int]
    pauses: float

    @property
    def rows(self) -> int:
        return len(self.workers) * self.steps

    def row(self, worker: str, step: int) -> int:
        return self.workers.index(worker) * self.steps + step - 1

    def edges(self, server: str) -> tuple[Edge, Edge]:
        """Return the pull and the push edge of a server."""
        number = 1 + 2 * self.servers.index(server)
        workers, own = tuple(self.workers), (server,)
        values = tuple(
            EdgeValue(f"g{i}", f"g{i}", "float32", (self.rows, columns), ("P", "R"))
            for i, columns in enumerate(COLUMNS)
        )
        return (
            Edge(number, own, workers, (), 0, exchange="pull"),
            Edge(number + 1, workers, own, values, 0, exchange="push"),
        )

    def table(self) -> DenseTable:
        blocks = tuple(
            Block(
                f"p{i}", f"p{i}", 0, self.rows * columns, (self.rows, columns), f"g{i}"
            )
            for i, columns in enumerate(COLUMNS)
        )
        planned = Table(
            name="t", rule="sgd", learning_rate=1.0, blocks=blocks, devices=MEMORY
        )
        zeros = [np.zeros(block.shape, np.float32) for block in blocks]
        return DenseTable(planned, "float32", zeros)


def draw_run(world: World) -> Run:
    draw = world.random
    steps = draw.randrange(3, 8)
    bound = draw.choice([1, 2, 3, "none"])
    most = 3 if bound == "none" else bound + 1
    mode: Mode = Async(
        max_staleness=bound,
        max_merge=draw.choice([1, most]),
        queue=draw.randrange(1, 4),
    )
    if draw.random() < 0.25:
        mode = HalfAsync()
    return Run(
        [f"worker:{i}" for i in range(draw.choice([2, 2, 3]))],
        [f"ps:{i}" for i in range(draw.choice([1, 1, 2]))],
        mode,
        steps,
        frozenset({steps, draw.randrange(1, steps + 1)}),
        draw.choice([0.0, 1e-4, 5e-3]),
    )


@dataclass
class Training:
    """A run in a world; `play` is the simulation."""

    world: World
    run: Run
    sessions: dict[str, Session] = field(default_factory=dict)
    _met: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._nodes = [*self.run.servers, *self.run.workers]
        self._changed = self.world.threading.Condition()

    def play(self) -> None:
        """Train; raises what fails."""
        scheduler = self.world.scheduler
        scheduler.on_idle = lambda: check_waits(self.sessions.values())
        for node in self._nodes:
            scheduler.spawn(partial(self._run_node, node), node, node)
        loop = partial(_compute_sgd, scheduler.step)
        with patch.object(DenseTable, "_loop", lambda *_: loop):
            scheduler.run()

    def _meet(self, node: str, at: int) -> None:
        """Wait until all nodes are there: after a drain, as at the barrier of a run."""
        with self._changed:
            self._met[node] = at
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: all(self._met.get(each, -1) >= at for each in self._nodes)
            )

    def _pause(self) -> None:
        """Compute for a while."""
        if self.run.pauses:
            pause = self.run.pauses * self.world.random.random()
            self.world.scheduler.block(pause)

    def _run_node(self, node: str) -> None:
        session = self.world.session(
            node, self._nodes, deadline=DEADLINE, join_timeout=DEADLINE
        )
        self.sessions[node] = session
        session.join()
        self._meet(node, 0)
        if node == self._nodes[0]:
            self.world.network.begin_cuts()
        if node in self.run.workers:
            self._work(session, node)
        else:
            self._serve(session, node)
        self.world.network.draw_cut()
        began = self.world.scheduler.now
        session.close()
        assert self.world.scheduler.now - began < DEADLINE, f"{node} closes slowly"

    # A server.

    def _serve(self, session: Session, name: str) -> None:
        run = self.run
        pull, push = run.edges(name)
        table = run.table()
        serving = Service(session, [(pull, push, run.mode)], Order())
        rates = LearningRates(Position(), {"t": lambda step: 1.0}, {"t": run.mode})
        calls = AsynchronousCalls(
            rates.position, {push.id: push}, {"t": table}, rates, service=serving
        )

        def serve() -> None:
            for message in calls.messages():
                if message.edge == push.id:
                    self._pause()
                    calls.update_from("t", message)
                else:
                    calls.answer(message, table.values())

        for step in range(1, run.steps + 1):
            serving.start(serve)
            serving.wait_for_step(step)
            if step in run.drains:
                serving.drain()
                applied = self._applied(table.values())
                for worker in run.workers:
                    assert applied[worker] == step, (name, worker, applied, step)
                self._meet(name, step)

    # A worker.

    def _work(self, session: Session, name: str) -> None:
        run = self.run
        ends = [
            PulledVersions(session, *run.edges(server), run.mode, Order())
            for server in run.servers
        ]
        newest = [dict.fromkeys(run.workers, 0) for _ in ends]
        for step in range(1, run.steps + 1):
            for i, end in enumerate(ends):
                values = end.pull(step)
                applied = self._applied(values)
                self._check_pull(name, step, applied, newest[i])
                newest[i] = applied
                self._pause()
                assert self._applied(values) == applied, (
                    "parameters in use have changed"
                )
            gradients = self._gradients(name, step)
            for end in ends:
                end.push(step, (1, len(run.workers)), gradients)
            if step in run.drains:
                for end in ends:
                    end.drain(step)
                self._meet(name, step)
        for end in ends:
            end.close()

    def _gradients(self, worker: str, step: int) -> list[Array]:
        gradients = []
        for columns in COLUMNS:
            gradient = np.zeros((self.run.rows, columns), np.float32)
            gradient[self.run.row(worker, step)] = -1
            gradients.append(gradient)
        return gradients

    def _applied(self, values: Sequence[Array]) -> dict[str, int]:
        """Return how many steps of each worker are applied to parameters, of which all
        elements are of one version, each step once, and in order."""
        counts = values[0][:, 0]
        for value in values:
            assert (value == counts[:, None]).all(), "parameters of several versions"
        applied = {}
        for i, worker in enumerate(self.run.workers):
            own = counts[i * self.run.steps : (i + 1) * self.run.steps]
            applied[worker] = count = int(own.sum())
            once = [1] * count + [0] * (self.run.steps - count)
            assert own.tolist() == once, (worker, own)
        return applied

    def _check_pull(
        self, worker: str, step: int, applied: dict[str, int], before: dict[str, int]
    ) -> None:
        """Check the parameters that a worker begins a step with: none is older than it
        may be, or than what it had before."""
        run = self.run
        if run.mode.bound is not None:
            least = step - 1 - run.mode.bound
            assert min(applied.values()) >= least, (worker, step, applied)
        if run.mode.waits_for_own:
            assert applied[worker] == step - 1, (worker, step, applied)
        after_drain = max((each for each in run.drains if each < step), default=0)
        for other in run.workers:
            assert applied[other] >= max(before[other], after_drain), (worker, step)


def _compute_sgd(switch: Callable[[], None], arrays: Any, update: Any) -> None:
    """Compute what the kernel of `sgd` does; other threads may go on before it."""
    switch()
    (gradient,), scale, numbers = update
    arrays[-1][...] = arrays[0] - numbers["rate"][0] * scale * gradient


def simulate_training(seed: int) -> tuple[int, float]:
    """Train what is drawn from a seed; raises what fails. Returns the number of switch
    points, and the virtual time that it took."""
    world = World(seed, "tcp" if seed % 4 else "unix")
    try:
        with world.replaced(owned_threads):
            Training(world, draw_run(world)).play()
    except BaseException as error:
        error.add_note(f"simulate_training({seed})")
        raise
    return world.scheduler.steps, world.scheduler.now
