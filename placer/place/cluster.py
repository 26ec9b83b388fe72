"""A cluster: all nodes that a spec declares; resolves places to their devices."""

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
    """Cache what a method returns for a place: most ops of a graph share a few."""
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
        return next((kind.size for kind in self.kinds if kind.name == WORKER), 0)

    @property
    def worker_nodes(self) -> tuple[NodeId, ...]:
        """The nodes of kind `worker`."""
        found = (kind.nodes() for kind in self.kinds if kind.name == WORKER)
        return next(found, ())

    def check(self, place: Place, *, span: Span | None = None) -> None:
        """Raise PlaceError at `span` if the cluster does not have what a place in a spec
        names.

        The node or the device may be missing from the place. A device without a node
        must be declared by at least one node kind.
        """
        if place.threads is not None:
            raise PlaceError(
                "a place names nodes and devices, and no threads",
                span=span,
                hint="train: {threads: 4} runs each worker as four threads",
            )
        check_place(self.kinds, place, span)

    @_cached
    def resolve(
        self, place: Place, *, span: Span | None = None
    ) -> tuple[Location, ...]:
        """Return the devices of a place, ordered by node id, then device id.

        Raises PlaceError at `span` if the place does not have both a node and a device,
        or names a node, a device or an id that the cluster does not have.
        """
        node, device = self._parts(place, span)
        device_ids = self.device_ids(place)
        return tuple(
            Location(node, each.number, device, device_id, each.thread)
            for each in self.nodes(place)
            for device_id in device_ids
        )

    @_cached
    def nodes(self, place: Place) -> tuple[NodeId, ...]:
        """Return the distinct nodes of a place, in order, as `worker:0`.

        Raises PlaceError if the place has no node, or one that the cluster does not
        have.
        """
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
        """Return the smallest place with these nodes, which are of one kind, and with
        the devices of another place."""
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
        """Return a place of a spec with defaults for what it leaves out.

        The default nodes are those of the place `nodes`, which a place with nodes does not
        need. The default device is `cpu` on a server; elsewhere it is the first kind that
        the node declares and that is not `cpu`, if there is one.

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
        """Return the place with the nodes of all places and the devices of the first.

        Returns None if the nodes are of several kinds, or there is no place.
        """
        distinct = tuple(dict.fromkeys(places))
        if len(distinct) == 1:
            return distinct[0]
        if len({each.node for each in distinct}) != 1:
            return None
        nodes = dict.fromkeys(node for each in distinct for node in self.nodes(each))
        return self.place_of(nodes, distinct[0])

    def first_node(self, place: Place) -> Place:
        """Return the place without its nodes after the first."""
        return self.place_of(self.nodes(place)[:1], place)

    def place_of_sum(self, terms: Iterable[Place]) -> Place:
        """Return where values at these places are added up: at their place, or at the
        first node of the first if they are at several."""
        first, *others = dict.fromkeys(terms)
        return self.first_node(first) if others else first

    @_cached
    def first_threads(self, place: Place) -> Place:
        """Return the place with the first thread of each of its processes only."""
        if place.node is None or self.kind(place.node).threads is None:
            return place
        firsts: dict[str, NodeId] = {}
        for node in self.nodes(place):
            firsts.setdefault(node.process, node)
        return self.place_of(firsts.values(), place)

    @_cached
    def devices(self, place: Place) -> str:
        """Return the devices of a place on each of its nodes, with ids: `gpu:0-7`.

        Raises PlaceError as `resolve` does.
        """
        return f"{place.device}{ids_suffix(self.device_ids(place))}"

    @_cached
    def device_ids(self, place: Place) -> tuple[int, ...]:
        """Return the ids of the devices of a place on each of its nodes.

        Raises PlaceError as `resolve` does.
        """
        node, device = self._parts(place, None)
        return _all_ids(place.device_ids, self.kind(node).counts[device])

    def _parts(self, place: Place, span: Span | None) -> tuple[str, str]:
        """Return the node kind and the device kind of a place; PlaceError at `span`."""
        check_place(self.kinds, place, span)
        if place.node is None or place.device is None:
            missing = "node" if place.node is None else "device"
            raise _missing_part_error(place, missing, span)
        return place.node, place.device

    def host_memory(self, place: Place) -> Place:
        """Return the first CPU of the nodes of a place: their host memory.

        A node reads rows into host memory, and sends and receives messages there.
        """
        return self.canonical(
            Place(place.node, place.node_ids, CPU, (0,), place.threads)
        )

    def all_nodes(self) -> tuple[NodeId, ...]:
        """Return every node, in the order of declaration, as `worker:0`."""
        return tuple(node for kind in self.kinds for node in kind.nodes())

    @_cached
    def canonical(self, place: Place) -> Place:
        """Return the shortest place of the same set: without ids that name all.

        Only for a place that is not merged into another one any more: inside `/gpu:1`,
        `/gpu:*` means all GPUs and `/gpu` means GPU 1. Raises PlaceError for a node, a
        device or an id that the cluster does not have.
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
        """Return the text of the cluster in a graph: `nodes(worker: 2, ps: 2)`."""
        return f"nodes({', '.join(map(str, self.kinds))})"

    __str__ = text

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
