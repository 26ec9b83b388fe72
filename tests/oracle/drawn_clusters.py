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
    """Places of some nodes that a forward op can have, by their text: of all node
    kinds, in numbers that share the batch evenly."""
    found: dict[str, Hosts] = {}
    counts = {
        "worker": cluster.workers,
        "ps": cluster.servers,
        "front": cluster.fronts,
    }
    for kind, count in counts.items():
        for size in range(1, count + 1):
            if cluster.batch % size:
                continue
            for ids in combinations(range(count), size):
                text = ",".join(map(str, ids))
                found[f"/node:{kind}:{text}"] = tuple(f"{kind}:{i}" for i in ids)
    if cluster.servers:
        found["/node:ps"] = ("ps",)  # one that the compiler chooses
    return found


def places_of_optimizers(cluster: Layout) -> list[str | None]:
    """Places that an optimizer can have; None leaves it to the compiler."""
    found: list[str | None] = [None]
    if cluster.servers:
        found += ["/node:ps", "/node:ps/cpu"] * 5
    return [*found, "/node:worker", *places_of_ops(cluster)]
