"""The place language: which nodes and devices an op runs on."""

from placer.place.cluster import Cluster
from placer.place.nodes import CPU, HETER, SERVER, WORKER, Location, NodeId, NodeKind
from placer.place.place import Place

__all__ = [
    "CPU",
    "HETER",
    "SERVER",
    "WORKER",
    "Cluster",
    "Location",
    "NodeId",
    "NodeKind",
    "Place",
]
