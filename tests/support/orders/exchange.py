"""How the parameters of a simulated run are updated, and the order that it follows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from placer.plan.plan import Edge, Plan
from placer.plan.settings.training.update_modes import Mode
from support.orders.rules import Rule

RATE = 0.1
"""The learning rate of the runs, if nothing else is said."""
Arrays = dict[str, np.ndarray]
Piece = tuple[str, int, np.ndarray]
"""A parameter, its first element in flat order, and the elements from there on."""


@dataclass(frozen=True)
class Group:
    """The parameters of one optimizer, and how they are updated.

    Attributes:
        names: the parameters.
        rule_of: returns the rule of a parameter.
        mode: how workers agree; None if synchronous.
        rate: the learning rate of a step, from 1.
        clip: limits the gradients, by name.
        outer: the rule of the outer optimizer of servers, if there is one.
        outer_rate: its learning rate.
    """

    names: tuple[str, ...]
    rule_of: Callable[[str], Rule]
    mode: Mode | None
    rate: Callable[[int], float] = lambda step: RATE
    clip: Callable[[Arrays], Arrays] = lambda gradients: gradients
    outer: Rule | None = None
    outer_rate: Callable[[int], float] = lambda step: RATE


class Run(Protocol):
    """A simulated run, as an exchange sees it."""

    plan: Plan
    initial: Arrays
    steps: int

    def gradient(self, worker: str, step: int) -> tuple[Arrays, float] | None:
        """Return the part of a worker in the gradients of a step, and its share of the
        rows; None as long as it cannot be computed."""
        ...

    def events(self, node: str) -> list[list[Any]]:
        """Return what a node has recorded."""
        ...


class Exchange(Protocol):
    """The parameters of one group, or of one table of it, and their updates."""

    staleness: list[int]
    divergence: float

    def values(self, worker: str, step: int) -> Iterable[Piece] | None:
        """Return what a worker uses in a step; None if that is not known now."""
        ...

    def advance(self) -> bool:
        """Do what is next in the order, if that is possible; return whether it was."""
        ...

    def final(self) -> Iterable[Piece]:
        """Return the values at the end, when the order is done."""
        ...


def read_events(folder: Path) -> dict[str, list[list[Any]]]:
    """Return what each node has recorded in a folder."""
    return {
        file.stem.replace("-", ":"): [
            json.loads(line) for line in file.read_text().splitlines()[1:]
        ]
        for file in folder.glob("*.jsonl")
    }


def events_of(run: Run, node: str, kind: str, edge: int) -> list[list[Any]]:
    """Return the events of a kind and an edge that a node has recorded."""
    return [rest for k, e, *rest in run.events(node) if (k, e) == (kind, edge)]


def messages_taken(run: Run, server: str, push: Edge) -> list[str]:
    """Return the nodes whose messages on an edge a server has taken, in order."""
    takes = events_of(run, server, "take", 0)
    return [node for edge, node in takes if edge == push.id]


def clipped(group: Group, part: tuple[Arrays, float]) -> tuple[Arrays | None, float]:
    """Return the gradients of a group that a worker sends, and its share of the rows: as
    if all workers had the same; None without rows."""
    gradients, share = part
    if not share:
        return None, share
    estimates = group.clip({name: gradients[name] / share for name in group.names})
    return {name: share * each for name, each in estimates.items()}, share


def total(parts: Iterable[Arrays]) -> Arrays:
    """Return the sum of gradients."""
    first, *others = parts
    return {name: sum((each[name] for each in others), first[name]) for name in first}


def whole(arrays: Arrays) -> list[Piece]:
    """Return whole parameters as pieces."""
    return [(name, 0, array.reshape(-1)) for name, array in arrays.items()]
