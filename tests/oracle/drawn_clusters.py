"""Drawn clusters: how many nodes, and which places a value may go between."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

from hypothesis import strategies as st

Hosts = tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """A cluster, and a batch that every set of its workers can share evenly."""

    workers: int
    servers: int
    fronts: int
    batch: int

    @property
    def nodes(self) -> dict[str, Any]:
        kinds: dict[str, Any] = {"worker": {"count": self.workers}}
        if self.servers:
            kinds["ps"] = {"count": self.servers}
        if self.fronts:
            kinds["front"] = {"count": self.fronts, "devices": {"cpu": 1}}
        return kinds

    @property
    def everywhere(self) -> Hosts:
        return tuple(f"worker:{i}" for i in range(self.workers))


@st.composite
def clusters(draw: Any) -> Layout:
    """One to four workers, none to three servers, now and then a node of a third kind."""
    workers = draw(st.sampled_from((1, 2, 2, 3, 3, 4)))
    batches = {1: (3, 5), 2: (4, 6), 3: (6, 12), 4: (12,)}[workers]
    return Layout(
        workers,
        draw(st.sampled_from((0, 1, 2, 2, 3, 3))),
        draw(st.sampled_from((0, 0, 0, 0, 1, 2))),
        draw(st.sampled_from(batches)),
    )


def places_of_ops(cluster: Layout) -> dict[str, Hosts]:
    """Places of some nodes that a forward op can have, by their text."""
    found: dict[str, Hosts] = {}
    for size in range(1, cluster.workers + 1):
        for ids in combinations(range(cluster.workers), size):
            text = ",".join(map(str, ids))
            found[f"/node:worker:{text}"] = tuple(f"worker:{i}" for i in ids)
    for i in range(cluster.fronts):
        found[f"/node:front:{i}"] = (f"front:{i}",)
    return found


def places_of_optimizers(cluster: Layout) -> list[str | None]:
    """Places that an optimizer can have; None leaves it to the compiler."""
    found: list[str | None] = [None]
    if cluster.servers:
        found += ["/node:ps", "/node:ps/cpu"] * 5
        found += [f"/node:ps:{i}" for i in range(cluster.servers)]
        if cluster.servers > 2:
            found += ["/node:ps:0-1", "/node:ps:0,2"]
    return [*found, "/node:worker", *places_of_ops(cluster)]


def may_go(source: Hosts, target: Hosts) -> bool:
    """Whether a value may go from one set of nodes to another (design 4's conversions
    of this version): between a set and a part of it, or between two single nodes."""
    if len(source) == len(target) == 1:
        return True
    same_kind = source[0].split(":")[0] == target[0].split(":")[0]
    return same_kind and (set(source) <= set(target) or set(target) <= set(source))
