"""Computes which partitions of a sparse table a node holds."""

from __future__ import annotations


def server_partitions(server: int, servers: int, partitions: int) -> range:
    """Return the partitions of one of several servers: consecutive ones."""
    first, stop = partitions * server // servers, partitions * (server + 1) // servers
    return range(first, stop)
