"""A cluster: the nodes that a spec declares. Resolves places to devices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import ParamSpec, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from placer.errors import PlaceError, Span
from placer.place.check import check_place, find_kind
from placer.place.ids import Ids, ids_suffix
from placer.place.node_kinds import CPU, SERVER, WORKER, NodeId
from placer.place.nodes import ONE_CPU, Location, NodeKind
from placer.place.place import Place

P = ParamSpec("P")
T = TypeVar("T")


def _cached(method: Callable[P, T]) -> Callable[P, T]:
    """Cache the results of a method by place: most ops of a graph share a few
    places.
    """
    return cast("Callable[P, T]", lru_cache(maxsize=1024)(method))


class Cluster(Struct, frozen=True):
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
        """Return the node kind called `name`. Raises PlaceError if the cluster lacks
        it. The hint is the nearest name."""
        return find_kind(self.kinds, name, None)

    @property
    def default(self) -> NodeKind:
        """The node kind of ops without a place: the first kind other than `ps`. Raises
        PlaceError if all kinds are `ps`."""
        for kind in self.kinds:
            if kind.name != SERVER:
                return kind
        raise PlaceError(
            f"all nodes are {SERVER}, and these only run ops that are placed on them",
            hint="declare workers too, for example worker: {count: 2}",
        )

    @property
    def workers(self) -> int:
        """The number of nodes of kind `worker`."""
        return next((kind.size for kind in self.kinds if kind.name == WORKER), 0)

    @property
    def worker_nodes(self) -> tuple[NodeId, ...]:
        """The nodes of kind `worker`."""
        found = (kind.nodes() for kind in self.kinds if kind.name == WORKER)
        return next(found, ())

    def check(self, place: Place, *, span: Span | None = None) -> None:
        """Raise PlaceError at `span` if a place names something that the cluster lacks.
        The place may lack the node or the device. If it has no node, at least one node
        kind must declare the device."""
        if place.threads is not None:
            raise PlaceError(
                "a place cannot name threads",
                span=span,
                hint="train: {threads: 4} runs each worker as four threads",
            )
        check_place(self.kinds, place, span)

    @_cached
    def resolve(
        self, place: Place, *, span: Span | None = None
    ) -> tuple[Location, ...]:
        """Return the devices of a place, ordered by node id, then device id. Raises
        PlaceError at `span` if the place lacks a node or a device, or names something
        that the cluster lacks."""
        node, device = self._parts(place, span)
        device_ids = self.device_ids(place)
        return tuple(
            Location(node, each.number, device, device_id, each.thread)
            for each in self.nodes(place)
            for device_id in device_ids
        )

    @_cached
    def nodes(self, place: Place) -> tuple[NodeId, ...]:
        """Return the distinct nodes of a place, in order, such as `worker:0`. Raises
        PlaceError if the place has no node, or a node that the cluster lacks."""
        if place.node is None:
            raise _missing_part_error(place, "node", None)
        check_place(
            self.kinds, Place(place.node, place.node_ids, threads=place.threads), None
        )
        kind = self.kind(place.node)
        all_ids = _all_ids(place.node_ids, kind.count)
        if kind.threads is None:
            return tuple(NodeId.of(place.node, number) for number in all_ids)
        ids, threads = set(all_ids), set(_all_ids(place.threads, kind.most_threads))
        return tuple(
            node
            for node in kind.nodes()
            if node.number in ids and (node.thread or 0) in threads
        )

    def place_of(self, nodes: Iterable[NodeId], devices: Place) -> Place:
        """Return the smallest place with these nodes and the devices of `devices`."""
        nodes = tuple(nodes)
        ids = tuple(sorted({node.number for node in nodes}))
        threads = sorted({node.thread for node in nodes if node.thread is not None})
        place = Place(
            nodes[0].kind,
            ids,
            devices.device,
            devices.device_ids,
            tuple(threads) or None,
        )
        return self.canonical(place)

    def complete(self, place: Place, nodes: Place | None = None) -> Place:
        """Return a place with defaults for its missing parts.

        The default nodes are those of the place `nodes`. The default device is `cpu` on
        a server. On other nodes it is the first declared kind that is not `cpu`, if
        any.

        Example:
            >>> cluster = Cluster((NodeKind("worker", 2, (("cpu", 1), ("gpu", 8))),))
            >>> str(cluster.complete(Place.parse("/gpu:1"), Place("worker", (0,))))
            '/node:worker:0/gpu:1'
            >>> str(cluster.complete(Place("worker")))
            '/node:worker/gpu'
        """
        if place.node is None and nodes is not None:
            place = replace(
                place, node=nodes.node, node_ids=nodes.node_ids, threads=nodes.threads
            )
        if place.device is None:
            assert place.node is not None
            kinds = [kind for kind, _ in self.kind(place.node).devices]
            device = next((kind for kind in kinds if kind != CPU), CPU)
            if place.node == SERVER and CPU in kinds:
                device = CPU
            place = replace(place, device=device)
        return self.canonical(place)

    def union(self, places: Iterable[Place]) -> Place | None:
        """Return a place with the nodes of all places and the devices of the first.
        Returns None if the nodes are of several kinds, or `places` is empty."""
        distinct = tuple(dict.fromkeys(places))
        if len(distinct) == 1:
            return distinct[0]
        if len({each.node for each in distinct}) != 1:
            return None
        nodes = dict.fromkeys(node for each in distinct for node in self.nodes(each))
        return self.place_of(nodes, distinct[0])

    def first_node(self, place: Place) -> Place:
        """Return the place with only its first node."""
        return self.place_of(self.nodes(place)[:1], place)

    def place_of_sum(self, terms: Iterable[Place]) -> Place:
        """Return where values at these places are added up. This is their common place,
        or the first node of the first place if they differ."""
        first, *others = dict.fromkeys(terms)
        return self.first_node(first) if others else first

    @_cached
    def first_threads(self, place: Place) -> Place:
        """Return the place with only the first thread of each process."""
        if place.node is None or self.kind(place.node).threads is None:
            return place
        firsts: dict[str, NodeId] = {}
        for node in self.nodes(place):
            firsts.setdefault(node.process, node)
        return self.place_of(firsts.values(), place)

    @_cached
    def devices(self, place: Place) -> str:
        """Return the devices of a place on each of its nodes, with ids: `gpu:0-7`.
        Raises PlaceError as `resolve` does."""
        return f"{place.device}{ids_suffix(self.device_ids(place))}"

    @_cached
    def device_ids(self, place: Place) -> tuple[int, ...]:
        """Return the device ids of a place on each node. Raises PlaceError."""
        node, device = self._parts(place, None)
        return _all_ids(place.device_ids, self.kind(node).counts[device])

    def _parts(self, place: Place, span: Span | None) -> tuple[str, str]:
        check_place(self.kinds, place, span)
        if place.node is None or place.device is None:
            missing = "node" if place.node is None else "device"
            raise _missing_part_error(place, missing, span)
        return place.node, place.device

    def host_memory(self, place: Place) -> Place:
        """Return the first CPU of each node of a place: the node's host memory. A node
        reads rows into host memory, and sends and receives messages from there."""
        return self.canonical(
            Place(place.node, place.node_ids, CPU, (0,), place.threads)
        )

    def all_nodes(self) -> tuple[NodeId, ...]:
        """Return every node in the order of declaration, such as `worker:0`."""
        return tuple(node for kind in self.kinds for node in kind.nodes())

    @_cached
    def canonical(self, place: Place) -> Place:
        """Return the shortest text of the place: ids that cover all nodes or devices
        are omitted.

        Use this only after all merging: inside `/gpu:1`, `/gpu:*` means all GPUs, but
        `/gpu` means GPU 1. Raises PlaceError if the place names something that the
        cluster lacks.
        """
        check_place(self.kinds, place, None)
        node_ids, device_ids, threads = place.node_ids, place.device_ids, place.threads
        if place.node is not None:
            kind = self.kind(place.node)
            node_ids = _shortest(node_ids, kind.count)
            threads = _shortest(threads, kind.most_threads)
            if place.device is not None:
                device_ids = _shortest(device_ids, kind.counts[place.device])
        elif device_ids == "*":
            device_ids = None
        return Place(place.node, node_ids, place.device, device_ids, threads)

    def text(self) -> str:
        """Return the cluster as text for a graph: `nodes(worker: 2, ps: 2)`."""
        return f"nodes({', '.join(map(str, self.kinds))})"

    __str__ = text

    @classmethod
    def parse(cls, text: str, *, span: Span | None = None) -> Cluster:
        """Parse the result of `text()`. Raises PlaceError at `span` for any other
        text.
        """
        if not _NODES.fullmatch(text):
            raise PlaceError(
                f"{text[:80]!r} does not declare nodes",
                span=span,
                hint="write for example nodes(worker: 2 {cpu: 1, gpu: 8}, ps: 2)",
            )
        kinds = []
        for name, count, threads, listed in _KIND.findall(text[len("nodes(") : -1]):
            pairs = (pair.split(": ") for pair in listed.split(", ") if pair)
            devices = tuple((device, int(number)) for device, number in pairs)
            total = int(threads) if threads else None
            kinds.append(NodeKind(name, int(count), devices or ONE_CPU, total))
        return cls(tuple(kinds))


_NUMBER = r"(?:0|[1-9][0-9]{0,6})"
_COUNTED = rf"[a-z][a-z0-9_]*: {_NUMBER}"
_DEVICES = rf"{_COUNTED}(?:, {_COUNTED})*"
_KIND = re.compile(
    rf"([a-z][a-z0-9_]*): ({_NUMBER})(?: with ({_NUMBER}) threads)?(?: \{{({_DEVICES})\}})?"
)
_NODES = re.compile(rf"nodes\((?:{_KIND.pattern}(?:, {_KIND.pattern})*)?\)")


def _missing_part_error(place: Place, part: str, span: Span | None) -> PlaceError:
    hint = "write both, for example /node:worker/cpu"
    return PlaceError(f"the place '{place}' has no {part}", span=span, hint=hint)


def _all_ids(ids: Ids, count: int) -> tuple[int, ...]:
    return tuple(range(count)) if ids is None or ids == "*" else ids


def _shortest(ids: Ids, count: int) -> Ids:
    return None if _all_ids(ids, count) == tuple(range(count)) else ids
