"""Times messages between two processes of this machine, from both ends.

As in a step, JAX computes each message from the last one, other memory is used in between,
and the receiver has to wake up.
"""

from __future__ import annotations

import json
import sys
from time import process_time_ns
from typing import Any, Final

import numpy as np

from placer.channel.interface import Key
from placer.channel.keys import RunKey
from placer.channel.session import Session
from placer.plan.plan import Edge, EdgeValue
from placer.runtime.exchange.exchange import Exchange
from placer.system.memory import aligned

NODES: Final = ("worker:0", "worker:1")
SIZES: Final = (256, 1 << 16, 1 << 18)
"""The elements of the messages: 1 KiB, 256 KiB and 1 MiB of float32."""
TRIPS: Final = 40
UNTIMED: Final = 8
JOIN_SECONDS: Final = 60.0
"""After this time without the other process, it has failed."""
OTHERS: Final = 2 << 20
"""The elements of other memory that is changed before each message."""


def time_messages(node: str, endpoints: dict[str, str], job: str) -> dict[str, Any]:
    """Send messages to the other process and back; return the CPU times of this process.

    Returns:
        For `send` and for `receive`, the nanoseconds of each message by its bytes.
    """
    import jax

    change = jax.jit(lambda array: array + 1)
    channel = Session(
        node,
        endpoints,
        job,
        key=RunKey(bytes(32)),
        encrypt=False,
        join_timeout=JOIN_SECONDS,
    )
    channel.join()
    sizes = [*enumerate(SIZES)]
    edges = {
        2 * i + t: _edge(2 * i + t, t, numel) for i, numel in sizes for t in (0, 1)
    }
    exchange = Exchange(node, channel, edges, workers=2)
    times: dict[str, dict[int, list[int]]] = {"send": {}, "receive": {}}
    others = np.zeros(OTHERS, np.float32)
    for i, numel in sizes:
        array: Any = aligned.zeros((numel,), np.dtype(np.float32))
        for trip in range(TRIPS):
            exchange.new_step()
            for turn in range(2):
                at = Key(2 * i + turn, trip)
                if turn == NODES.index(node):
                    others += 1
                    array = jax.block_until_ready(change(array))
                    kind, start = "send", process_time_ns()
                    exchange.send(at, [array], 1)
                else:
                    kind, start = "receive", process_time_ns()
                    (array,) = exchange.receive(at, 1)
                spent = process_time_ns() - start
                if trip >= UNTIMED:
                    times[kind].setdefault(4 * numel, []).append(spent)
    channel.close()
    return times


def _edge(number: int, turn: int, numel: int) -> Edge:
    """Return an edge from one process to the other, there or back."""
    return Edge(
        id=number,
        sources=(NODES[turn],),
        targets=(NODES[1 - turn],),
        values=(EdgeValue("x", "y", "float32", (numel,), ("R", "R")),),
        nbytes=4 * numel,
    )


if __name__ == "__main__":
    own_node, addresses, job_name = sys.argv[1:]
    result = time_messages(own_node, json.loads(addresses), job_name)
    print(json.dumps(result), flush=True)
