"""Place strings of a spec: merged as guards nest, and held against the cluster."""

from __future__ import annotations

from placer.config.checks import shown
from placer.errors import PlaceError
from placer.place import Cluster, Place
from placer.spec.problems import Problems
from placer.spec.tree import Node, Scalar


class Places:
    """Reads the places of one spec; each different one is parsed and checked once."""

    def __init__(self, cluster: Cluster | None, problems: Problems) -> None:
        self._cluster = cluster
        self._problems = problems
        self._known: dict[tuple[Place | None, str], Place] = {}

    def merge(self, outer: Place | None, node: Node | None) -> Place | None:
        """The place of a thing that says `node` inside `outer`.

        A mistake is told and the outer place stands, so that what is inside can still
        be checked.
        """
        if node is None:
            return outer
        if not isinstance(node, Scalar) or not isinstance(node.value, str):
            message = f"'place' must be text, not {shown(node.value)}"
            self._problems.add(message, node.span, "write for example /node:worker/cpu")
            return outer
        key = outer, node.value
        place = self._known.get(key)
        if place is None:
            span = node.inside
            try:
                place = Place.merge(outer, Place.parse(node.value, span=span))
                if self._cluster is not None:
                    self._cluster.check(place, span=span)
            except PlaceError as error:
                self._problems.take(error)
                return outer
            self._known[key] = place
        return place
