"""Runs whose processes are killed, frozen and replaced, and what has to hold of them.

Sessions are real. Each process has the loop that the runtime has: after a failure it opens a
session for the next attempt. Its program exchanges a message with all peers in each step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from unittest.mock import patch

import numpy as np

from placer.channel import session as sessions
from placer.channel.cause import Aborted, Cause
from placer.channel.incarnations import Incarnations
from placer.channel.interface import Key
from placer.channel.session import Session
from placer.errors import RunError
from support.simulation.network import Weather
from support.simulation.world import World

MAX_STEPS = 400_000
DEADLINE = 60.0
HOUR = 3600.0
ELEMENTS = (0, 50, 500)
"""Elements of a message: in its header, and in one and several pieces."""


@dataclass(frozen=True)
class Fault:
    """A process of `node` fails at a time.

    `kind` is "kill", "lose" (its machine, so that its peers learn nothing), "freeze" (the
    process goes on after `seconds`), "replace" (the same, and another process takes its
    place meanwhile) or "double" (a second process is started by mistake). A new process
    starts after `restart` seconds.
    """

    kind: str
    node: str
    at: float
    seconds: float
    restart: float


@dataclass(frozen=True)
class Plan:
    """What happens in a simulation.

    Attributes:
        peers: those of each node.
        clocks: how far the clock of each node's first machine is ahead, in seconds, and that
            of the machine where its later processes start.
        faults, weather: what goes wrong.
    """

    peers: dict[str, list[str]]
    clocks: dict[str, tuple[float, float]]
    faults: list[Fault]
    weather: Weather


def draw_plan(draw: Random, streams: str) -> Plan:
    nodes = ["a:0", "b:0", "c:0", "d:0"][: draw.choice([2, 3, 3, 4])]
    control = draw.choice(nodes)
    pairs = {
        (one, other)
        for one in nodes
        for other in nodes
        if one < other and (control in (one, other) or draw.random() < 0.5)
    }
    peers = {
        node: [each for each in nodes if {(node, each), (each, node)} & pairs]
        for node in nodes
    }
    kinds = ["kill", "lose", "freeze", "replace", "double"]
    if streams == "unix":  # nobody else can listen at the address
        kinds = ["kill", "freeze"]
    at_once = draw.random() < 0.3
    end = draw.choice([0.1, 1.0, 5.0])
    faults = [
        Fault(
            draw.choice(kinds),
            draw.choice(nodes),
            end if at_once else draw.uniform(0.0, end),
            draw.choice([0.1, 5.0, 10.0, 20.0, 40.0]),
            draw.choice([0.05, 0.3, 3.0, 10.0]),
        )
        for _ in range(draw.randrange(1, 6))
    ]
    weather = Weather(
        delay=draw.choice([20e-6, 1e-3, 20e-3]),
        parts=draw.choice([0.0, 0.1]),
        cuts=draw.choice([0, 0, 2]) if streams == "tcp" else 0,
        within=end,
        failures=draw.choice([0.0, 0.2]),
        forgeries=draw.choice([0.0, 0.0, 0.2]) if streams == "tcp" else 0.0,
        old_ways=0.3 if streams == "tcp" else None,
    )
    offsets = [0.0, 0.0, HOUR, -HOUR]
    clocks = {node: (draw.choice(offsets), draw.choice(offsets)) for node in nodes}
    return Plan(peers, clocks, faults, weather)


def with_doubles_only(plan: Plan) -> Plan:
    """Return a plan that starts second processes by mistake once all have met, while
    connections break."""
    faults = [replace(each, kind="double", at=3.0 + each.at) for each in plan.faults]
    weather = replace(plan.weather, cuts=8, within=20.0, old_ways=1.0)
    return replace(plan, faults=faults, weather=weather)


@dataclass(eq=False)
class Process:
    """A process of a node; `name` is its own, and `is_frozen` as long as it stands still."""

    node: str
    name: str
    incarnations: Incarnations
    session: Session | None = None
    step: int = 0
    is_alive: bool = True
    is_frozen: bool = False
    has_failed: bool = False
    heard: dict[str, int] = field(default_factory=dict)

    @property
    def is_joined(self) -> bool:
        session = self.session
        is_over = session is None or session.aborted is not None
        return self.is_alive and not is_over and self.step > 0


class Recovery:
    """A run in a world. `play` is the simulation; it raises what does not hold."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._world, self._plan = world, plan
        self._draw = world.random
        self._processes: list[Process] = []
        self._pending = len(plan.faults)  # events that are still to come
        self._failures = 0
        self._doubled: set[str] = set()
        self._last_step = 0  # the last step of the run, once it is known

    def play(self) -> int:
        """Run until all processes have met in one attempt; return its number."""
        scheduler = self._world.scheduler
        for node in self._plan.peers:
            self._start(node)
        scheduler.spawn(self._wait_for_end, "guard", "guard")
        for fault in self._plan.faults:
            scheduler.after(fault.at, partial(self._fail, fault))
        with patch.object(sessions, "CONNECT_PAUSE", 0.1):
            self._world.network.begin_cuts()
            scheduler.run()
        return self._check()

    # Processes.

    def _wait_for_end(self) -> None:
        """Keep the simulation alive while no process is."""
        while not self._last_step:
            self._world.scheduler.block(1.0)

    def _start(self, node: str) -> None:
        scheduler = self._world.scheduler
        is_later = any(each.node == node for each in self._processes)
        clock = 2 * HOUR + scheduler.now + self._plan.clocks[node][is_later]
        own = int(clock * 1e9) + len(self._processes)  # no two are equal
        name = f"{node} process {len(self._processes)}"
        process = Process(node, name, Incarnations(own))
        self._processes.append(process)
        scheduler.spawn(partial(self._run, process), name, name)

    def _start_later(self, node: str, seconds: float) -> None:
        def start() -> None:
            self._pending -= 1
            self._start(node)

        self._pending += 1
        self._world.scheduler.after(seconds, start)

    def _living_of(self, node: str) -> Process | None:
        """Return the newest process of a node that has not ended."""
        return next((p for p in self._living[::-1] if p.node == node), None)

    def _fail(self, fault: Fault) -> None:
        """Let a fault happen to the newest process of its node, if that is running."""
        self._pending -= 1
        process = self._living_of(fault.node)
        if process is None or process.is_frozen:
            return
        self._failures += 1
        scheduler, network = self._world.scheduler, self._world.network
        # Two processes of each node could be two runs.
        is_doubled = fault.kind in ("replace", "double")
        if is_doubled and not self._doubled | {fault.node} >= self._plan.peers.keys():
            self._doubled.add(fault.node)
            self._start_later(fault.node, fault.restart)
        if fault.kind == "double":
            return
        if fault.kind in ("kill", "lose"):
            process.is_alive = False
            scheduler.kill(process.name)
            if fault.kind == "kill":
                network.end(process.name)
            else:
                network.lose(process.name)
            self._start_later(fault.node, fault.restart)
            return

        def go_on() -> None:
            self._pending -= 1
            process.is_frozen = False
            scheduler.go_on(process.name)

        process.is_frozen = True
        scheduler.stop(process.name)
        self._pending += 1
        scheduler.after(fault.seconds, go_on)

    def _run(self, process: Process) -> None:
        """What a process does: one attempt after the other."""
        attempt = 1
        while not self._take_part(process, attempt):
            session = process.session
            assert session is not None
            if session.is_replaced or process.has_failed:
                self._failures += 1
                process.is_alive = False
                if self._living_of(process.node) is None:
                    self._start_later(process.node, 0.3)
                return
            attempt = max(attempt + 1, session.newer_attempt)

    def _take_part(self, process: Process, attempt: int) -> bool:
        """Take part in an attempt; return whether the run has ended with it."""
        node = process.node
        process.step = 0
        session = process.session = self._world.session(
            node,
            [*self._plan.peers],
            peers=self._plan.peers[node],
            attempt=attempt,
            incarnations=process.incarnations,
            beat=2.0,
            lost_after=20.0,
            deadline=DEADLINE,
            join_timeout=DEADLINE,
        )
        session.continues = True
        try:
            session.join()
            while not self._last_step or process.step < self._last_step:
                self._exchange(process, session)
        except Aborted:
            session.close()
            return False
        except RunError as error:  # nobody has connected
            self._check_absence(str(error))
            process.has_failed = True
            session.abort(Cause(node, "joining", str(error), is_error=True))
            session.close()
            return False
        session.close()
        assert session.aborted is None
        return True

    def _exchange(self, process: Process, session: Session) -> None:
        """Do a step, and end the run soon if all processes have met."""
        process.step += 1
        own, attempt = process.incarnations.own, session.attempt
        peers = self._plan.peers[process.node]
        key = Key(1, process.step)
        for peer in peers:
            rest = np.zeros(self._draw.choice(ELEMENTS), np.int64)
            session.send(peer, key, [np.array([attempt, own]), rest])
        for peer in peers:
            (theirs, incarnation), _ = session.receive(peer, key)
            assert theirs == attempt, "a message of another attempt"
            newest = process.heard.get(peer, 0)
            assert incarnation >= newest, "a message of an older process"
            process.heard[peer] = int(incarnation)
        self._world.scheduler.block(0.5 * self._draw.random())
        if not self._last_step and not self._pending and self._have_met():
            self._last_step = 3 + max(each.step for each in self._living)

    def _check_absence(self, text: str) -> None:
        """Check that processes may be away for as long as a session waits for them."""
        kinds = {fault.kind for fault in self._plan.faults}
        assert kinds & {"freeze", "replace", "double"}, text

    @property
    def _living(self) -> list[Process]:
        return [each for each in self._processes if each.is_alive]

    def _have_met(self) -> bool:
        living = self._living
        attempts = {each.session.attempt for each in living if each.session}
        return (
            len(attempts) == 1
            and len(living) == len(self._plan.peers)
            and all(each.is_joined for each in living)
        )

    def _check(self) -> int:
        """Check the attempt that all processes have met in, and return it."""
        for process in self._living:
            assert process.session is not None
            for link in process.session.links.values():
                peer = self._living_of(link.peer)
                assert peer is not None
                assert peer.session is not None
                theirs = peer.session.links[process.node].own_incarnation
                assert link.incarnation == theirs
        (attempt,) = {each.session.attempt for each in self._living if each.session}
        assert attempt <= self._failures + 2, f"{attempt} for {self._failures} failures"
        return attempt


def simulate_recovery(
    seed: int, streams: str = "", change: Callable[[Plan], Plan] = lambda plan: plan
) -> tuple[int, int]:
    """Run the failures of a seed; raises what does not hold.

    Args:
        seed: all that happens is drawn from it.
        streams: "tcp", "unix", or by default one of them.
        change: changes the plan that is drawn.

    Returns:
        The number of switch points, and the last attempt.
    """
    streams = streams or ("tcp" if seed % 4 else "unix")
    plan = change(draw_plan(Random(seed), streams))
    world = World(seed, streams, plan.weather, max_steps=MAX_STEPS)
    recovery = Recovery(world, plan)
    try:
        with world.replaced():
            attempt = recovery.play()
    except BaseException as error:
        error.add_note(f"simulate_recovery({seed}, {streams!r})")
        raise
    return world.scheduler.steps, attempt
