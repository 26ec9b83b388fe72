"""Random clusters, and the places that ops and optimizers can have on them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

from hypothesis import strategies as st

Nodes = tuple[str, ...]


@dataclass(frozen=True)
class DrawnCluster:
    """A cluster, and a batch size for it.

    Every set of its workers can split a microbatch evenly, and so can the threads and the
    GPUs of each set. GPUs are emulated; workers and servers have the same number of them.
    """

    workers: int
    threads: int
    servers: int
    third_kind: str
    third_count: int
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
        if self.third_count:
            kinds[self.third_kind] = {"count": self.third_count, "devices": {"cpu": 1}}
        return kinds

    @property
    def all_workers(self) -> Nodes:
        return tuple(f"worker:{i}" for i in range(self.workers))


@st.composite
def clusters(draw: Any) -> DrawnCluster:
    """Draw a cluster: one to four workers, up to three servers, sometimes other nodes.

    One in three clusters has GPUs on workers and servers, one in four has workers of two
    threads.
    """
    workers = draw(st.sampled_from((1, 2, 2, 3, 3, 4)))
    gpus = draw(st.sampled_from((0, 0, 0, 0, 1, 2))) if workers < 4 else 0
    threads = draw(st.sampled_from((1, 1, 1, 2))) if workers < 3 else 1
    batches = {1: (3, 5), 2: (4, 6), 3: (6, 12), 4: (12,)}[workers * threads]
    if gpus == 2:
        batches = ({1: 4, 2: 8, 3: 12, 4: 8}[workers * threads],)
    microbatches = draw(st.sampled_from((1, 1, 1, 2, 3)))
    return DrawnCluster(
        workers,
        threads,
        draw(st.sampled_from((0, 1, 2, 2, 3, 3))),
        draw(st.sampled_from(("heter", "front"))),
        draw(st.sampled_from((0, 0, 0, 1, 2, 2))),
        gpus,
        microbatches,
        microbatches * draw(st.sampled_from(batches)),
    )


def op_places(cluster: DrawnCluster) -> dict[str, Nodes]:
    """Return the places that a forward op can have, with their nodes.

    They have nodes of any kind, in numbers that split the batch evenly.
    """
    places: dict[str, Nodes] = {}
    counts = {
        "worker": cluster.workers,
        "ps": cluster.servers,
        cluster.third_kind: cluster.third_count,
    }
    for kind, count in counts.items():
        threads = cluster.threads if kind == "worker" else 1
        for size in range(1, count + 1):
            if cluster.batch // cluster.microbatches % (size * threads):
                continue
            for ids in combinations(range(count), size):
                text = ",".join(map(str, ids))
                nodes = tuple(f"{kind}:{i}" for i in ids)
                for device in _device_texts(cluster, kind, size * threads):
                    places[f"/node:{kind}:{text}{device}"] = nodes
    if cluster.servers:
        places["/node:ps"] = ("ps",)  # a server that the compiler chooses
    return places


def _device_texts(cluster: DrawnCluster, kind: str, nodes: int) -> list[str]:
    """Return the device parts that a place of `nodes` nodes can have.

    An empty part means the CPU on servers, and on other nodes all devices of the best
    kind.
    """
    if kind == cluster.third_kind or not cluster.gpus:
        return [""]
    texts = ["", "/cpu", *(f"/gpu:{i}" for i in range(cluster.gpus))]
    if cluster.batch % (nodes * cluster.gpus) == 0:
        texts.append("/gpu")
    return texts


def optimizer_places(cluster: DrawnCluster) -> list[str | None]:
    """Return the places that an optimizer can have; None is the compiler's choice."""
    places: list[str | None] = [None]
    if cluster.servers:
        places += ["/node:ps", "/node:ps/gpu" if cluster.gpus else "/node:ps/cpu"] * 5
    return [*places, "/node:worker", *op_places(cluster)]


def places_of_several(cluster: DrawnCluster) -> set[str]:
    """Return the places of optimizers on several nodes that are not servers."""
    places = {
        place
        for place, nodes in op_places(cluster).items()
        if len(nodes) > 1 and not place.startswith("/node:ps")
    }
    return places | ({"/node:worker"} if cluster.workers > 1 else set())
