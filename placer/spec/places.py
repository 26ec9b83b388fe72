"""Parses the place strings of a spec, merges nested ones and checks them."""

from __future__ import annotations

from placer.config.checks import describe_value
from placer.errors import PlaceError
from placer.place import Cluster, Place
from placer.spec.problems import Problems
from placer.spec.tree import ScalarNode, SpecNode


class Places:
    """The places of one spec. Equal places in equal scopes are parsed once."""

    def __init__(self, cluster: Cluster | None, problems: Problems) -> None:
        self._cluster = cluster
        self._problems = problems
        self._known: dict[tuple[Place | None, str], Place] = {}

    def merge(self, outer: Place | None, node: SpecNode | None) -> Place | None:
        """Return the place of an op or scope inside `outer` with the key `place`.

        After an error, which is reported, this is the outer place, so that the ops
        inside can still be checked.
        """
        if node is None:
            return outer
        if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
            message = f"'place' must be text, not {describe_value(node.value)}"
            self._problems.add(message, node.span, "write for example /node:worker/cpu")
            return outer
        key = outer, node.value
        place = self._known.get(key)
        if place is None:
            span = node.inner_span
            try:
                place = Place.merge(outer, Place.parse(node.value, span=span))
                if self._cluster is not None:
                    self._cluster.check(place, span=span)
            except PlaceError as error:
                self._problems.add_error(error)
                return outer
            self._known[key] = place
        return place
