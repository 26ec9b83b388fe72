"""Drawn clusters: how many nodes, and which places a value may go between."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

from hypothesis import strategies as st

Nodes = tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """A cluster, and a batch whose microbatches every set of its workers can share
    evenly, and all the GPUs of each set, which are emulated. Servers have as many."""

    workers: int
    servers: int
    third: str
    thirds: int
    gpus: int
    microbatches: int
    batch: int

    @property
    def nodes(self) -> dict[str, Any]:
        kinds: dict[str, Any] = {"worker": {"count": self.workers}}
        if self.gpus:
            kinds["worker"]["devices"] = {"cpu": 1, "gpu": self.gpus}
        if self.servers:
            kinds["ps"] = {"count": self.servers}
            if self.gpus:
                kinds["ps"]["devices"] = {"cpu": 1, "gpu": self.gpus}
        if self.thirds:
            kinds[self.third] = {"count": self.thirds, "devices": {"cpu": 1}}
        return kinds

    @property
    def everywhere(self) -> Nodes:
        return tuple(f"worker:{i}" for i in range(self.workers))


@st.composite
def clusters(draw: Any) -> Layout:
    """One to four workers, none to three servers, now and then nodes of a third kind;
    workers and servers with GPUs of their own in one of three."""
    workers = draw(st.sampled_from((1, 2, 2, 3, 3, 4)))
    gpus = draw(st.sampled_from((0, 0, 0, 0, 1, 2))) if workers < 4 else 0
    batches = {1: (3, 5), 2: (4, 6), 3: (6, 12), 4: (12,)}[workers]
    if gpus == 2:
        batches = ({1: 4, 2: 8, 3: 12}[workers],)
    microbatches = draw(st.sampled_from((1, 1, 1, 2, 3)))
    return Layout(
        workers,
        draw(st.sampled_from((0, 1, 2, 2, 3, 3))),
        draw(st.sampled_from(("heter", "front"))),
        draw(st.sampled_from((0, 0, 0, 1, 2, 2))),
        gpus,
        microbatches,
        microbatches * draw(st.sampled_from(batches)),
    )


def places_of_ops(cluster: Layout) -> dict[str, Nodes]:
    """Places of some nodes that a forward op can have, by their text: of all node
    kinds, in numbers that share the batch evenly."""
    found: dict[str, Nodes] = {}
    counts = {
        "worker": cluster.workers,
        "ps": cluster.servers,
        cluster.third: cluster.thirds,
    }
    for kind, count in counts.items():
        for size in range(1, count + 1):
            if cluster.batch // cluster.microbatches % size:
                continue
            for ids in combinations(range(count), size):
                text = ",".join(map(str, ids))
                nodes = tuple(f"{kind}:{i}" for i in ids)
                for device in _devices(cluster, kind, size):
                    found[f"/node:{kind}:{text}{device}"] = nodes
    if cluster.servers:
        found["/node:ps"] = ("ps",)  # one that the compiler chooses
    return found


def _devices(cluster: Layout, kind: str, nodes: int) -> list[str]:
    """What a place of so many nodes may say of devices; nothing is the CPU of servers,
    and of others the best kind, and all of it."""
    if kind == cluster.third or not cluster.gpus:
        return [""]
    found = ["", "/cpu", *(f"/gpu:{i}" for i in range(cluster.gpus))]
    if cluster.batch % (nodes * cluster.gpus) == 0:
        found.append("/gpu")
    return found


def places_of_optimizers(cluster: Layout) -> list[str | None]:
    """Places that an optimizer can have; None leaves it to the compiler."""
    found: list[str | None] = [None]
    if cluster.servers:
        found += ["/node:ps", "/node:ps/gpu" if cluster.gpus else "/node:ps/cpu"] * 5
    return [*found, "/node:worker", *places_of_ops(cluster)]
