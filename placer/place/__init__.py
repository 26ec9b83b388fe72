"""The place language: which nodes and devices an op runs on."""

from placer.place.cluster import Cluster
from placer.place.node_kinds import CPU, HETER, SERVER, WORKER, NodeId
from placer.place.nodes import Location, NodeKind
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
