"""Parameters assembled from received blocks, and from other blocks."""

import numpy as np

from placer.channel.in_process import memory_channels
from placer.channel.interface import Key
from placer.plan.plan import Edge, EdgeValue
from placer.runtime.exchange.exchange import Exchange

NODES = ["ps:0", "worker:0"]
KEY = Key(1, 1)


def receive_blocks():
    """Return a worker's exchange, and the two blocks of `w` that it has received."""
    moved = [
        EdgeValue(
            f"w.block{i}", f"w.block{i}.copy", "float32", (4,), ("R", "R"),
            whole="w", at=4 * i, numel=8,
        )
        for i in range(2)
    ]  # fmt: skip
    edge = Edge(1, ("ps:0",), ("worker:0",), tuple(moved), nbytes=32)
    channels = memory_channels(NODES, deadline=10)
    server, worker = (Exchange(node, channels[node], {1: edge}, 2) for node in NODES)
    server.send(KEY, [np.arange(4, dtype="f4"), np.arange(4, 8, dtype="f4")], 1)
    return worker, worker.receive(KEY, 1)


def test_adjacent_blocks_are_not_copied():
    worker, blocks = receive_blocks()
    whole = worker.assemble(blocks, (2, 4))
    np.testing.assert_array_equal(whole, np.arange(8).reshape(2, 4))
    assert np.shares_memory(whole, blocks[0])


def test_other_blocks_are_concatenated():
    worker, (first, second) = receive_blocks()
    other = np.full(4, 9, np.float32)
    for blocks in ((second, first), (first, other), (first, second, other)):
        whole = worker.assemble(blocks, (len(blocks), 4))
        np.testing.assert_array_equal(whole, np.stack(blocks))
