"""The place language: which nodes and devices an op runs on."""

from placer.place.cluster import Cluster
from placer.place.nodes import SERVER, Location, NodeKind
from placer.place.place import Place

__all__ = ["SERVER", "Cluster", "Location", "NodeKind", "Place"]
