"""Parses the place strings of a spec, merges nested places and checks them."""

from __future__ import annotations

from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.tree import ScalarNode, SpecNode
from placer.errors import PlaceError
from placer.place import Cluster, Place


class Places:
    """The places of one spec. A place string is parsed once for each scope that has
    it.
    """

    def __init__(self, cluster: Cluster | None, problems: Problems) -> None:
        self._cluster = cluster
        self._problems = problems
        self._known: dict[tuple[Place | None, str], Place] = {}

    def merge(self, outer: Place | None, node: SpecNode | None) -> Place | None:
        """Return the place of an op or scope with the key `place`, inside a scope at
        `outer`. After an error, which is reported, returns `outer`: the ops inside can
        still be checked."""
        hint = "write for example /node:worker/cpu"
        text = self._problems.expect(node, ScalarNode, "'place' must be text", hint)
        if text is None:
            return outer
        key = outer, text.text
        place = self._known.get(key)
        if place is None:
            span = text.inner_span
            try:
                place = Place.merge(outer, Place.parse(text.text, span=span))
                if self._cluster is not None:
                    self._cluster.check(place, span=span)
            except PlaceError as error:
                self._problems.add_error(error)
                return outer
            self._known[key] = place
        return place
