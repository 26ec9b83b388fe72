"""A cluster: the nodes that a spec declares, and places as sets of their devices."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from placer.errors import PlaceError, Span
from placer.place.check import check, node_kind
from placer.place.ids import Ids, suffix
from placer.place.nodes import CPU, ONE_CPU, SERVER, WORKER, Location, NodeKind
from placer.place.place import Place


@dataclass(frozen=True, slots=True)
class Cluster:
    """The node kinds that a spec declares, in its order; each name once."""

    kinds: tuple[NodeKind, ...]

    def __post_init__(self) -> None:
        names = [kind.name for kind in self.kinds]
        for name in names:
            if names.count(name) > 1:
                raise PlaceError(f"node '{name}' is declared twice")

    def kind(self, name: str) -> NodeKind:
        """The node kind of that name; PlaceError with the nearest name if none is."""
        return node_kind(self.kinds, name, None)

    @property
    def default(self) -> NodeKind:
        """The node kind of what nobody placed: the first that is no server.

        Raises PlaceError where all are servers.
        """
        for kind in self.kinds:
            if kind.name != SERVER:
                return kind
        raise PlaceError(
            f"all nodes are {SERVER}, where nothing stands that is not placed there",
            hint="declare workers beside it, for example worker: {count: 2}",
        )

    @property
    def workers(self) -> int:
        """How many nodes of kind `worker` there are, for whom `heter` nodes compute."""
        return next((kind.count for kind in self.kinds if kind.name == WORKER), 0)

    def check(self, place: Place, *, span: Span | None = None) -> None:
        """Raise PlaceError at `span` for what the place says and the cluster lacks.

        Either part may be left out; a device without a node must be one that some node
        has.
        """
        check(self.kinds, place, span)

    def resolve(
        self, place: Place, *, span: Span | None = None
    ) -> tuple[Location, ...]:
        """The devices of a place, ordered by node id, then device id.

        Raises PlaceError at `span` for a place that does not say both node and device,
        and for a node, a device or an id that the cluster does not have.
        """
        if span is not None:
            check(self.kinds, place, span)
            _said(place, device=True, span=span)
        return _resolve(self, place)

    def nodes(self, place: Place) -> tuple[str, ...]:
        """The distinct nodes of a place, in order, as `worker:0`.

        Raises PlaceError for a place that does not say a node, or one that the cluster
        does not have.
        """
        return _nodes(self, place)

    def devices(self, place: Place) -> str:
        """The devices of a place on each of its nodes, ids written out: `gpu:0-7`.

        Raises PlaceError as `resolve` does.
        """
        return _devices(self, place)

    def device_ids(self, place: Place) -> tuple[int, ...]:
        """The ids of the devices of a place on each of its nodes.

        Raises PlaceError as `resolve` does.
        """
        return _device_ids(self, place)

    def in_memory(self, place: Place) -> Place:
        """The first CPU of the nodes of a place, which is where a node keeps what is
        read, sent and received: the memory of its machine."""
        return _in_memory(self, place)

    def all_nodes(self) -> tuple[str, ...]:
        """Every node, in the order of declaration, as `worker:0`."""
        return tuple(
            f"{kind.name}:{number}"
            for kind in self.kinds
            for number in range(kind.count)
        )

    def canonical(self, place: Place) -> Place:
        """The shortest place of the same set: no ids where they are all there are.

        For a place into which nothing merges any more: inside `/gpu:1`, `/gpu:*` is all
        of them and `/gpu` is one. Raises PlaceError for what the cluster lacks.
        """
        return _canonical(self, place)

    def text(self) -> str:
        """The cluster as in the text of a graph: `nodes(worker: 2 {gpu: 8}, ps: 2)`."""
        return f"nodes({', '.join(map(str, self.kinds))})"

    def __str__(self) -> str:
        return self.text()

    @classmethod
    def parse(cls, text: str, *, span: Span | None = None) -> Cluster:
        """Read back what `text()` prints; PlaceError at `span` for anything else."""
        if not _NODES.fullmatch(text):
            raise PlaceError(
                f"{text[:80]!r} does not declare nodes",
                span=span,
                hint="write for example nodes(worker: 2 {cpu: 1, gpu: 8}, ps: 2)",
            )
        kinds = []
        for name, count, listed in _KIND.findall(text[len("nodes(") : -1]):
            pairs = (pair.split(": ") for pair in listed.split(", ") if pair)
            devices = tuple((device, int(number)) for device, number in pairs)
            kinds.append(NodeKind(name, int(count), devices or ONE_CPU))
        return cls(tuple(kinds))


_COUNTED = r"[a-z][a-z0-9_]*: (?:0|[1-9][0-9]{0,6})"
_DEVICES = rf"{_COUNTED}(?:, {_COUNTED})*"
_KIND = re.compile(
    r"([a-z][a-z0-9_]*): (0|[1-9][0-9]{0,6})(?: \{(" + _DEVICES + r")\})?"
)
_NODES = re.compile(rf"nodes\((?:{_KIND.pattern}(?:, {_KIND.pattern})*)?\)")


# All these are asked for every op of a graph, so they are remembered.
@lru_cache(maxsize=1024)
def _resolve(cluster: Cluster, place: Place) -> tuple[Location, ...]:
    check(cluster.kinds, place, None)
    place = _said(place, device=True)
    assert place.node is not None
    assert place.device is not None
    kind = cluster.kind(place.node)
    device_ids = _all_ids(place.device_ids, kind.counts[place.device])
    return tuple(
        Location(place.node, node_id, place.device, device_id)
        for node_id in _all_ids(place.node_ids, kind.count)
        for device_id in device_ids
    )


@lru_cache(maxsize=1024)
def _nodes(cluster: Cluster, place: Place) -> tuple[str, ...]:
    node = Place(_said(place, device=False).node, place.node_ids)
    check(cluster.kinds, node, None)
    assert node.node is not None
    ids = _all_ids(node.node_ids, cluster.kind(node.node).count)
    return tuple(f"{node.node}:{number}" for number in ids)


@lru_cache(maxsize=1024)
def _devices(cluster: Cluster, place: Place) -> str:
    return f"{place.device}{suffix(_device_ids(cluster, place))}"


@lru_cache(maxsize=1024)
def _device_ids(cluster: Cluster, place: Place) -> tuple[int, ...]:
    check(cluster.kinds, place, None)
    said = _said(place, device=True)
    assert said.node is not None
    assert said.device is not None
    return _all_ids(said.device_ids, cluster.kind(said.node).counts[said.device])


@lru_cache(maxsize=1024)
def _canonical(cluster: Cluster, place: Place) -> Place:
    check(cluster.kinds, place, None)
    node_ids, device_ids = place.node_ids, place.device_ids
    if place.node is not None:
        kind = cluster.kind(place.node)
        node_ids = _shortest(node_ids, kind.count)
        if place.device is not None:
            device_ids = _shortest(device_ids, kind.counts[place.device])
    elif device_ids == "*":
        device_ids = None
    return Place(place.node, node_ids, place.device, device_ids)


@lru_cache(maxsize=1024)
def _in_memory(cluster: Cluster, place: Place) -> Place:
    return cluster.canonical(Place(place.node, place.node_ids, CPU, (0,)))


def _said(place: Place, *, device: bool, span: Span | None = None) -> Place:
    """The place, if it says its node and, where asked for, its device."""
    missing = "node" if place.node is None else "device"
    if place.node is None or (device and place.device is None):
        raise PlaceError(
            f"the place '{place}' says no {missing}",
            span=span,
            hint="write both, for example /node:worker/cpu",
        )
    return place


def _all_ids(ids: Ids, count: int) -> tuple[int, ...]:
    return tuple(range(count)) if ids is None or ids == "*" else ids


def _shortest(ids: Ids, count: int) -> Ids:
    return None if _all_ids(ids, count) == tuple(range(count)) else ids
