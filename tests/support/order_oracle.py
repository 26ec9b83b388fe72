"""A run without lockstep as a simulation in one process: it follows a recorded order."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from placer.build.plan import Plan
from placer.config.update_modes import Mode
from placer.runtime.program.worker_messages import MessageKind

RATE = 0.1
"""The learning rate of the runs."""
Arrays = dict[str, np.ndarray]
Gradient = Callable[[Arrays, str, int], tuple[Arrays, float]]
"""A worker's part in the gradients of all parameters, and its share of the rows, of
parameters, a worker and a step."""
Rule = Callable[[np.ndarray, np.ndarray, dict[str, Any], int, float], np.ndarray]
"""The new value: of the value, the gradient, the slots, the number of the update and the
learning rate."""


def sgd(
    value: np.ndarray, g: np.ndarray, slots: dict[str, Any], t: int, rate: float
) -> np.ndarray:
    """Stochastic gradient descent."""
    return value - rate * g


def adam(
    value: np.ndarray, g: np.ndarray, slots: dict[str, Any], t: int, rate: float
) -> np.ndarray:
    """Adam (Kingma and Ba, 2015)."""
    slots["m"] = 0.9 * slots.get("m", 0.0) + 0.1 * g
    slots["v"] = 0.999 * slots.get("v", 0.0) + 0.001 * g * g
    m, v = slots["m"] / (1 - 0.9**t), slots["v"] / (1 - 0.999**t)
    return value - rate * m / (np.sqrt(v) + 1e-8)


def lamb(
    value: np.ndarray, g: np.ndarray, slots: dict[str, Any], t: int, rate: float
) -> np.ndarray:
    """LAMB (You et al., 2020), for a whole parameter."""
    slots["m"] = 0.9 * slots.get("m", 0.0) + 0.1 * g
    slots["v"] = 0.999 * slots.get("v", 0.0) + 0.001 * g * g
    m, v = slots["m"] / (1 - 0.9**t), slots["v"] / (1 - 0.999**t)
    change = m / (np.sqrt(v) + 1e-6)
    return value - rate * _trust(value, change) * change


def lars(
    value: np.ndarray, g: np.ndarray, slots: dict[str, Any], t: int, rate: float
) -> np.ndarray:
    """LARS (You et al., 2017), for a whole parameter."""
    change = 0.001 * _trust(value, g) * g
    slots["trace"] = 0.9 * slots.get("trace", 0.0) + rate * change
    return value - slots["trace"]


def _trust(value: np.ndarray, change: np.ndarray) -> float:
    norms = np.linalg.norm(value), np.linalg.norm(change)
    return norms[0] / norms[1] if all(norms) else 1.0


@dataclass(frozen=True)
class Group:
    """The parameters of one optimizer, and how they are updated.

    Attributes:
        names: the parameters.
        rule_of: returns the rule of a parameter.
        mode: how workers agree; None in lockstep.
        rate: the learning rate of a step, from 1.
        clip: limits the gradients, by name.
    """

    names: tuple[str, ...]
    rule_of: Callable[[str], Rule]
    mode: Mode | None
    rate: Callable[[int], float] = lambda step: RATE
    clip: Callable[[Arrays], Arrays] = lambda gradients: gradients


@dataclass
class _Table:
    """A table of a server: its blocks, by name, in all versions.

    `uses` has the version that each worker uses in each step, `sends` what each
    worker sends, `takes` the workers whose messages the server takes, in order. A worker's
    part may be that of its heter node.
    """

    group: Group
    blocks: Mapping[str, tuple[str, int, int]]
    takes: list[str]
    versions: list[Arrays]
    uses: dict[tuple[str, int], int] = field(default_factory=dict)
    sends: dict[str, list[list[int]]] = field(default_factory=dict)
    slots: defaultdict[str, dict[str, Any]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    taken: int = 0
    steps: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    messages: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    history: list[tuple[str, int]] = field(default_factory=list)


@dataclass
class _Lockstep:
    """The parameters of a group in lockstep, in all versions."""

    group: Group
    versions: list[Arrays]
    slots: defaultdict[str, dict[str, Any]] = field(
        default_factory=lambda: defaultdict(dict)
    )


@dataclass
class Simulation:
    """A run of one process that follows a recorded order.

    Args:
        plan: the plan of the build.
        folder: the recorded order.
        initial: the initial values of the trained parameters.
        gradient: computes the part of one worker in the gradients.
        groups: the optimizers.
        steps: the number of steps.

    Attributes:
        staleness: that of each update without lockstep, in no order.
        used: the parameters that each worker used in each step.
    """

    plan: Plan
    folder: Path
    initial: Arrays
    gradient: Gradient
    groups: list[Group]
    steps: int
    staleness: list[int] = field(default_factory=list)
    used: dict[tuple[str, int], Arrays] = field(default_factory=dict)
    _computed: dict[tuple[str, int], tuple[Arrays, float]] = field(default_factory=dict)

    def run(self) -> Arrays:
        """Return the parameters at the end."""
        group_of = {name: group for group in self.groups for name in group.names}
        self._tables = [
            self._table(push, group_of)
            for push in self.plan.step_edges
            if push.exchange == "push"
        ]
        self._workers = [f"worker:{i}" for i in range(self.plan.workers)]
        self._lockstep = [
            _Lockstep(group, [{name: self.initial[name] for name in group.names}])
            for group in self.groups
            if group.mode is None
        ]
        while any(self._take(table) for table in self._tables) or any(
            self._update(each) for each in self._lockstep
        ):
            pass
        assert all(table.taken == len(table.takes) for table in self._tables)
        assert all(len(each.versions) == self.steps + 1 for each in self._lockstep)
        return self._values(
            {id(table): len(table.versions) - 1 for table in self._tables}, self.steps
        )

    def _table(self, push: Any, group_of: Mapping[str, Group]) -> _Table:
        events = {
            file.stem: [json.loads(line) for line in file.read_text().splitlines()[1:]]
            for file in self.folder.glob("*.jsonl")
        }
        (server,) = push.targets
        gradients = {value.result for value in push.values}
        planned = next(
            table
            for table in self.plan.node(server).tables
            if table.blocks[0].gradient in gradients
        )
        (pull,) = (
            edge.id
            for edge in self.plan.step_edges
            if edge.exchange == "pull"
            and (edge.sources, edge.targets) == (push.targets, push.sources)
            and edge.group == push.group
            and edge.values[0].dtype == push.values[0].dtype
        )
        blocks = {b.name: (b.parameter, b.start, b.stop) for b in planned.blocks}
        start = {
            name: self.initial[parameter].reshape(-1)[low:high]
            for name, (parameter, low, high) in blocks.items()
        }
        nodes = {f"worker:{self.plan.worker_of(node)}": node for node in push.sources}
        workers = {node: worker for worker, node in nodes.items()}
        takes = [
            workers[rest[1]]
            for kind, _, *rest in events[server.replace(":", "-")]
            if kind == "take" and rest[0] == push.id
        ]
        group = group_of[planned.blocks[0].parameter]
        table = _Table(group, blocks, takes, [start])
        for worker, node in nodes.items():
            table.sends[worker] = []
            for kind, edge, *rest in events[node.replace(":", "-")]:
                if kind == "use" and edge == pull:
                    table.uses[worker, rest[0]] = rest[1]
                elif kind == "send" and edge == push.id:
                    table.sends[worker].append(rest)
        return table

    def _values(self, versions: Mapping[int, int], step: int) -> Arrays:
        """Return all parameters: in these versions of tables, and after a step of the
        groups in lockstep."""
        flat = {name: array.reshape(-1).copy() for name, array in self.initial.items()}
        for table in self._tables:
            for name, (parameter, low, high) in table.blocks.items():
                flat[parameter][low:high] = table.versions[versions[id(table)]][name]
        for each in self._lockstep:
            for name, array in each.versions[step].items():
                flat[name][:] = array.reshape(-1)
        return {n: flat[n].reshape(self.initial[n].shape) for n in self.initial}

    def _gradients(self, worker: str, step: int) -> tuple[Arrays, float] | None:
        """Return the gradients of a step; None if versions that it uses are missing."""
        at = worker, step
        if at not in self._computed:
            versions = {id(table): table.uses[at] for table in self._tables}
            if any(t.uses[at] >= len(t.versions) for t in self._tables):
                return None
            if any(step > len(each.versions) for each in self._lockstep):
                return None
            self.used[at] = self._values(versions, step - 1)
            self._computed[at] = self.gradient(self.used[at], worker, step)
        return self._computed[at]

    def _update(self, each: _Lockstep) -> bool:
        """Do the next step of a group in lockstep; return whether that was possible."""
        step, group = len(each.versions), each.group
        if step > self.steps:
            return False
        parts = [self._gradients(worker, step) for worker in self._workers]
        if any(part is None for part in parts):
            return False
        total = {name: sum(part[0][name] for part in parts) for name in group.names}
        total = group.clip(total)
        old, rate = each.versions[-1], group.rate(step)
        each.versions.append(
            {
                name: group.rule_of(name)(
                    old[name], total[name], each.slots[name], step, rate
                )
                for name in group.names
            }
        )
        return True

    def _take(self, table: _Table) -> bool:
        """Take messages of workers, as long as their gradients can be computed; return
        whether there were any."""
        before = table.taken
        while table.taken < len(table.takes):
            worker = table.takes[table.taken]
            kind, count = table.sends[worker][table.messages[worker]]
            if kind == MessageKind.PUSH:
                first = table.steps[worker] + 1
                steps = [*range(first, first + count)]
                parts = [self._gradients(worker, step) for step in steps]
                if any(part is None for part in parts):
                    break
                table.steps[worker] += count
                with_rows = [i for i, part in enumerate(parts) if part[1]]
                if with_rows:
                    base = table.uses[worker, steps[with_rows[0]]]
                    self._apply(
                        table, worker, [parts[i] for i in with_rows], base, steps
                    )
            table.messages[worker] += 1
            table.taken += 1
        return table.taken > before

    def _apply(
        self,
        table: _Table,
        worker: str,
        parts: list[tuple[Arrays, float]],
        base: int,
        steps: list[int],
    ) -> None:
        """Apply a push of some steps, which used the version `base`."""
        group, mode = table.group, table.group.mode
        assert mode is not None
        others = [n for w, n in table.history[base:] if w != worker]
        self.staleness.append(sum(others))
        rate = group.rate(steps[-1])
        if mode.staleness_scale:
            rate /= 1 + self.staleness[-1]
        clipped = []
        for part, share in parts:
            estimates = group.clip({name: part[name] / share for name in group.names})
            clipped.append({name: share * g for name, g in estimates.items()})
        share, new, old = parts[-1][1], {}, table.versions[-1]
        for name, (parameter, low, high) in table.blocks.items():
            total = sum(part[parameter].reshape(-1)[low:high] for part in clipped)
            if mode.merge == "mean":
                total = total / len(parts)
            if mode.compensate is not None:
                estimate = total / share
                moved = old[name] - table.versions[base][name]
                total = share * (estimate + mode.compensate * estimate**2 * moved)
            slots, number = table.slots[name], len(table.versions)
            new[name] = group.rule_of(parameter)(old[name], total, slots, number, rate)
        table.versions.append(new)
        table.history.append((worker, len(steps)))
