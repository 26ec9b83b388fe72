"""A cluster: all nodes that a spec declares; resolves places to their devices."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from placer.errors import PlaceError, Span
from placer.node_kinds import CPU, SERVER, WORKER
from placer.place.check import check_place, find_kind
from placer.place.ids import Ids, ids_suffix
from placer.place.nodes import ONE_CPU, Location, NodeKind
from placer.place.place import Place


@dataclass(frozen=True, slots=True)
class Cluster:
    """All nodes that a spec declares, with their devices.

    Args:
        kinds: The node kinds in the order of their declaration. Each name occurs once.

    Raises:
        PlaceError: If two kinds have the same name.

    Example:
        >>> cluster = Cluster((NodeKind("worker", 2), NodeKind("ps", 1)))
        >>> cluster.all_nodes()
        ('worker:0', 'worker:1', 'ps:0')
        >>> cluster.nodes(Place.parse("/node:worker/cpu"))
        ('worker:0', 'worker:1')
    """

    kinds: tuple[NodeKind, ...]

    def __post_init__(self) -> None:
        names = [kind.name for kind in self.kinds]
        for name in names:
            if names.count(name) > 1:
                raise PlaceError(f"node '{name}' is declared twice")

    def kind(self, name: str) -> NodeKind:
        """Return the node kind called `name`.

        Raises PlaceError, with the nearest name as hint, if there is no such kind.
        """
        return find_kind(self.kinds, name, None)

    @property
    def default(self) -> NodeKind:
        """The node kind of ops without a place: the first kind other than `ps`.

        Raises PlaceError if all kinds are `ps`.
        """
        for kind in self.kinds:
            if kind.name != SERVER:
                return kind
        raise PlaceError(
            f"all nodes are {SERVER}, which run no ops without a place of their own",
            hint="declare workers too, for example worker: {count: 2}",
        )

    @property
    def workers(self) -> int:
        """The number of nodes of kind `worker`, for which `heter` nodes compute."""
        return next((kind.count for kind in self.kinds if kind.name == WORKER), 0)

    def check(self, place: Place, *, span: Span | None = None) -> None:
        """Raise PlaceError at `span` if the cluster does not have what the place names.

        The node or the device may be missing from the place. A device without a node
        must be declared by at least one node kind.
        """
        check_place(self.kinds, place, span)

    def resolve(
        self, place: Place, *, span: Span | None = None
    ) -> tuple[Location, ...]:
        """Return the devices of a place, ordered by node id, then device id.

        Raises PlaceError at `span` if the place does not have both a node and a device,
        or names a node, a device or an id that the cluster does not have.
        """
        if span is not None:
            check_place(self.kinds, place, span)
            _require_parts(place, device=True, span=span)
        return _resolve(self, place)

    def nodes(self, place: Place) -> tuple[str, ...]:
        """Return the distinct nodes of a place, in order, as `worker:0`.

        Raises PlaceError if the place has no node, or one that the cluster does not
        have.
        """
        return _nodes(self, place)

    def devices(self, place: Place) -> str:
        """Return the devices of a place on each of its nodes, with ids: `gpu:0-7`.

        Raises PlaceError as `resolve` does.
        """
        return _devices(self, place)

    def device_ids(self, place: Place) -> tuple[int, ...]:
        """Return the ids of the devices of a place on each of its nodes.

        Raises PlaceError as `resolve` does.
        """
        return _device_ids(self, place)

    def host_memory(self, place: Place) -> Place:
        """Return the first CPU of the nodes of a place: their host memory.

        A node reads rows into host memory, and sends and receives messages there.
        """
        return _host_memory(self, place)

    def all_nodes(self) -> tuple[str, ...]:
        """Return every node, in the order of declaration, as `worker:0`."""
        return tuple(
            f"{kind.name}:{number}"
            for kind in self.kinds
            for number in range(kind.count)
        )

    def canonical(self, place: Place) -> Place:
        """Return the shortest place of the same set: without ids that name all.

        Only for a place that is not merged into another one any more: inside `/gpu:1`,
        `/gpu:*` means all GPUs and `/gpu` means GPU 1. Raises PlaceError for a node, a
        device or an id that the cluster does not have.
        """
        return _canonical(self, place)

    def text(self) -> str:
        """Return the text of the cluster in a graph: `nodes(worker: 2, ps: 2)`."""
        return f"nodes({', '.join(map(str, self.kinds))})"

    def __str__(self) -> str:
        return self.text()

    @classmethod
    def parse(cls, text: str, *, span: Span | None = None) -> Cluster:
        """Parse what `text()` returns; PlaceError at `span` for any other text."""
        if not _NODES.fullmatch(text):
            raise PlaceError(
                f"{text[:80]!r} does not declare nodes",
                span=span,
                hint="write for example nodes(worker: 2 {cpu: 1, gpu: 8}, ps: 2)",
            )
        kinds = []
        for name, count, device_list in _KIND.findall(text[len("nodes(") : -1]):
            pairs = (pair.split(": ") for pair in device_list.split(", ") if pair)
            devices = tuple((device, int(number)) for device, number in pairs)
            kinds.append(NodeKind(name, int(count), devices or ONE_CPU))
        return cls(tuple(kinds))


_COUNTED = r"[a-z][a-z0-9_]*: (?:0|[1-9][0-9]{0,6})"
_DEVICES = rf"{_COUNTED}(?:, {_COUNTED})*"
_KIND = re.compile(
    r"([a-z][a-z0-9_]*): (0|[1-9][0-9]{0,6})(?: \{(" + _DEVICES + r")\})?"
)
_NODES = re.compile(rf"nodes\((?:{_KIND.pattern}(?:, {_KIND.pattern})*)?\)")


# These are called for every op of a graph, with few distinct places: hence the caches.
@lru_cache(maxsize=1024)
def _resolve(cluster: Cluster, place: Place) -> tuple[Location, ...]:
    check_place(cluster.kinds, place, None)
    place = _require_parts(place, device=True)
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
    node = Place(_require_parts(place, device=False).node, place.node_ids)
    check_place(cluster.kinds, node, None)
    assert node.node is not None
    ids = _all_ids(node.node_ids, cluster.kind(node.node).count)
    return tuple(f"{node.node}:{number}" for number in ids)


@lru_cache(maxsize=1024)
def _devices(cluster: Cluster, place: Place) -> str:
    return f"{place.device}{ids_suffix(_device_ids(cluster, place))}"


@lru_cache(maxsize=1024)
def _device_ids(cluster: Cluster, place: Place) -> tuple[int, ...]:
    check_place(cluster.kinds, place, None)
    place = _require_parts(place, device=True)
    assert place.node is not None
    assert place.device is not None
    return _all_ids(place.device_ids, cluster.kind(place.node).counts[place.device])


@lru_cache(maxsize=1024)
def _canonical(cluster: Cluster, place: Place) -> Place:
    check_place(cluster.kinds, place, None)
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
def _host_memory(cluster: Cluster, place: Place) -> Place:
    return cluster.canonical(Place(place.node, place.node_ids, CPU, (0,)))


def _require_parts(place: Place, *, device: bool, span: Span | None = None) -> Place:
    """Return the place if it has a node and, with `device`, a device."""
    missing = "node" if place.node is None else "device"
    if place.node is None or (device and place.device is None):
        raise PlaceError(
            f"the place '{place}' has no {missing}",
            span=span,
            hint="write both, for example /node:worker/cpu",
        )
    return place


def _all_ids(ids: Ids, count: int) -> tuple[int, ...]:
    return tuple(range(count)) if ids is None or ids == "*" else ids


def _shortest(ids: Ids, count: int) -> Ids:
    return None if _all_ids(ids, count) == tuple(range(count)) else ids
