"""A run with `update: geo` as a simulation in one process: it follows a recorded order."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import ml_dtypes  # noqa: F401  (numpy knows bfloat16 by it)
import numpy as np
import optax

from placer.build.plan import Edge, Plan
from placer.config.update_modes import Geo
from support.order_oracle import Arrays, Gradient


@dataclass
class _Server:
    """A table of a server: its blocks, and what it has answered."""

    push: Edge
    blocks: list[tuple[str, int, int]]
    values: list[np.ndarray]
    takes: list[str]
    rule: optax.GradientTransformation | None
    state: Any = None
    version: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    others: dict[tuple[str, int], int] = field(default_factory=dict)
    messages: defaultdict[str, list[Any]] = field(
        default_factory=lambda: defaultdict(list)
    )
    taken: Counter[str] = field(default_factory=Counter)
    answers: dict[tuple[str, int], tuple[int, list[np.ndarray]]] = field(
        default_factory=dict
    )
    round: dict[str, tuple[int, list[np.ndarray]]] = field(default_factory=dict)
    staleness: list[int] = field(default_factory=list)

    def serve(self) -> bool:
        """Handle what is next in the recorded order; return whether that was there."""
        if not self.takes:
            return False
        worker = self.takes[0]
        number = self.taken[worker]
        if number >= len(self.messages[worker]):
            return False
        self.takes.pop(0)
        self.taken[worker] += 1
        content = self.messages[worker][number]
        if content is None:
            return True  # it drains
        steps, oldest, delta = content
        if self.rule is not None:
            self.round[worker] = number, delta
            if len(self.round) == len(self.push.sources):
                self._end_round()
            return True
        others = self.steps.total() - self.steps[worker]
        self.staleness.append(others - self.others.get((worker, oldest), 0))
        self.steps[worker] += steps
        self.values = [v - d for v, d in zip(self.values, delta, strict=True)]
        self._answer(worker, number)
        return True

    def _end_round(self) -> None:
        assert self.rule is not None
        order = [self.round[worker] for worker in self.push.sources]
        mean = [sum(d) / len(order) for d in zip(*(d for _, d in order), strict=True)]
        changes, self.state = self.rule.update(mean, self.state, self.values)
        self.values = [
            v + np.asarray(c) for v, c in zip(self.values, changes, strict=True)
        ]
        self.version += 1
        for worker in self.push.sources:
            self.answers[worker, self.round[worker][0]] = self.version, self.values
        self.round.clear()

    def _answer(self, worker: str, number: int) -> None:
        self.version += 1
        self.others[worker, self.version] = self.steps.total() - self.steps[worker]
        self.answers[worker, number] = self.version, self.values


@dataclass
class _End:
    """A worker's end of a server: the old values, and what it has sent."""

    server: _Server
    old: list[np.ndarray]
    uses: list[list[int]]
    open: bool = False
    pushed: int = 0
    version: int = 0
    oldest: int = 0


def simulate_geo(
    plan: Plan,
    folder: Path,
    initial: Arrays,
    gradient: Gradient,
    rule: optax.GradientTransformation,
    mode: Geo,
    outer: optax.GradientTransformation | None = None,
) -> tuple[Arrays, dict[str, Arrays], list[int]]:
    """Return the parameters at the end of a recorded run, each worker's own ones, and the
    staleness of each push, in no order.

    Args:
        plan: the plan of the build.
        folder: the recorded order.
        initial: the initial parameters.
        gradient: computes the part of one worker in the gradients.
        rule: updates the values of a worker.
        mode: the settings of the mode.
        outer: updates the values of the servers, if the mode has an outer optimizer.
    """
    events = {
        file.stem.replace("-", ":"): [
            json.loads(line) for line in file.read_text().splitlines()[1:]
        ]
        for file in folder.glob("*.jsonl")
    }
    pulls = {e.sources[0]: e for e in plan.step_edges if e.exchange == "pull"}
    servers = []
    with jax.enable_x64(True):
        for push in plan.step_edges:
            if push.exchange != "push_delta":
                continue
            (name,) = push.targets
            (planned,) = plan.node(name).tables
            blocks = [(b.parameter, b.start, b.stop) for b in planned.blocks]
            values = [initial[p].reshape(-1)[low:high] for p, low, high in blocks]
            takes = [rest[1] for kind, _, *rest in events[name] if kind == "take"]
            state = None if outer is None else outer.init(values)
            servers.append(_Server(push, blocks, values, takes, outer, state))
        local: dict[str, Arrays] = {}
        running = []
        for worker in servers[0].push.sources:
            ends = [
                _End(
                    server,
                    [value.copy() for value in server.values],
                    [
                        rest
                        for kind, edge, *rest in events[worker]
                        if kind == "use" and edge == pulls[server.push.targets[0]].id
                    ],
                )
                for server in servers
            ]
            drains = [rest[0] for kind, _, *rest in events[worker] if kind == "drain"]
            running.append(
                _work(worker, ends, drains, initial, gradient, rule, mode, local)
            )
        while running or any(server.takes for server in servers):
            before = len(running)
            running = [worker for worker in running if next(worker, "ended") is None]
            served = [server.serve() for server in servers]
            assert any(served) or before > len(running), "the order cannot be followed"
    final = {name: array.reshape(-1).copy() for name, array in initial.items()}
    for server in servers:
        for (name, low, high), value in zip(server.blocks, server.values, strict=True):
            final[name][low:high] = value
    staleness = [each for server in servers for each in server.staleness]
    return {n: final[n].reshape(initial[n].shape) for n in initial}, local, staleness


def _work(
    worker: str,
    ends: list[_End],
    drains: list[int],
    initial: Arrays,
    gradient: Gradient,
    rule: optax.GradientTransformation,
    mode: Geo,
    local: dict[str, Arrays],
) -> Iterator[None]:
    """Run the steps of a worker; yield while it waits for a server."""
    own = {name: array.copy() for name, array in initial.items()}
    state, last, step = rule.init(own), drains[-1], 0
    is_synchronous = mode.outer is not None
    workers = len(ends[0].server.push.sources)
    divisor = workers if mode.scale == "mean" and not is_synchronous else 1

    def merge(end: _End) -> Iterator[None]:
        key = worker, len(end.server.messages[worker]) - 1
        while key not in end.server.answers:
            yield
        end.version, values = end.server.answers[key]
        for i, (name, low, high) in enumerate(end.server.blocks):
            part = own[name].reshape(-1)[low:high]
            part[...] = values[i] if is_synchronous else part + (values[i] - end.old[i])
            end.old[i] = values[i].copy()
        end.open = False

    def push(end: _End) -> Iterator[None]:
        if end.open:
            yield from merge(end)
        sent = []
        for i, (name, low, high) in enumerate(end.server.blocks):
            part = own[name].reshape(-1)[low:high]
            delta = (end.old[i] - part) / divisor
            delta = delta.astype(mode.dtype or delta.dtype).astype(delta.dtype)
            end.old[i] = end.old[i] - delta
            sent.append(delta)
        message = step - end.pushed, end.oldest, sent
        end.server.messages[worker].append(message)
        end.pushed, end.open = step, True

    while step < last:
        step += 1
        for end in ends:
            is_recorded = bool(end.uses) and end.uses[0][0] == step
            if end.open and (is_synchronous or is_recorded):
                yield from merge(end)
                assert is_synchronous or end.uses.pop(0)[1] == end.version
            if step == end.pushed + 1:
                end.oldest = end.version
        parts, share = gradient(own, worker, step)
        if share:
            estimate = {name: part / share for name, part in parts.items()}
            changes, state = rule.update(estimate, state, own)
            own = {n: own[n] + np.asarray(changes[n]) for n in own}
        for end in ends:
            if step % mode.every == 0:
                yield from push(end)
        while drains and drains[0] == step:
            drains.pop(0)
            for end in ends:
                if step > end.pushed and (step == last or not is_synchronous):
                    yield from push(end)
                if end.open:
                    yield from merge(end)
                end.server.messages[worker].append(None)
    local[worker] = own
