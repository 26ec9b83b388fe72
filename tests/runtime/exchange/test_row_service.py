"""What no worker sends a server about rows of sparse tables ends the run with an error."""

from __future__ import annotations

import numpy as np
import pytest

from placer.channel.in_process import memory_channels
from placer.channel.interface import Key
from placer.errors import RunError
from placer.plan.plan import Edge, EdgeValue, SparseTable
from placer.plan.settings.sparse.table import SparseTable as Settings
from placer.runtime.asynchronous.recorded_order import Order
from placer.runtime.asynchronous.service import Service
from placer.runtime.exchange.row_exchange import RowExchange
from placer.runtime.exchange.worker_messages import MessageKind, header

WORKER, SERVER = "worker:0", "ps:0"
ASK = [
    header(MessageKind.ASK, 0),
    np.array([7, 8], np.uint64),
    np.array([1, 2], np.uint32),
]
ROWS = np.zeros((2, 3), np.float64)


def pushed(*numbers: int) -> list[np.ndarray]:
    return [header(MessageKind.PUSH, *numbers), ROWS]


def serve(messages: list[list[np.ndarray]]) -> list[int]:
    """Let a server handle messages of a worker; return the edges of what it does."""

    def edge(number: int, kind: str, source: str, target: str) -> Edge:
        dtype, shape = ("key", ("keys",)) if number == 1 else ("float64", ("keys", 3))
        value = EdgeValue("v", "v", dtype, shape, ("R", "R"), table="emb")
        return Edge(number, (source,), (target,), (value,), 0, exchange=kind)

    edges = {
        1: edge(1, "ask_rows", WORKER, SERVER),
        2: edge(2, "give_rows", SERVER, WORKER),
        3: edge(3, "push_rows", WORKER, SERVER),
    }
    table = SparseTable(
        settings=Settings(name="emb", dim=3), dtype="float64", holders=(SERVER,)
    )
    channels = memory_channels([WORKER, SERVER], deadline=10)
    exchange = RowExchange(SERVER, channels[SERVER], edges, {"emb": table})
    sparse = [(edges[1], edges[2], edges[3])]
    service = Service(channels[SERVER], (), Order(), sparse, exchange.read_keys)
    for number, message in enumerate([*messages, [header(MessageKind.DRAIN, 1)]]):
        channels[WORKER].send(SERVER, Key(3, number + 1), message)
    done = []
    for message in service.messages():
        done.append(message.edge)
        if message.edge == 1:
            service.answer_rows(message, [ROWS])
    return done


def test_a_server_answers_and_updates() -> None:
    assert serve([ASK, pushed(1, 1, 0, 2, 4)]) == [1, 3]


@pytest.mark.parametrize(
    "messages",
    [
        [[]],
        [[header(9)]],
        [[np.zeros(3, np.int64)]],
        [pushed(1, 1, 0, 2, 4)],  # of rows that it has not asked for
        [ASK, pushed(1, 1, 5, 2, 4)],
        [ASK, pushed(1, 2, 0, 2, 4)],
        [ASK, pushed(1, 1, 0, 5, 4)],
        [ASK, pushed(1, 1, 0, 0, 0)],
        [ASK, pushed(1, 1, 0, 0, 4)],
        [ASK, ASK, ASK],
        [ASK[:2]],
        [[ASK[0], ASK[1], ASK[2].astype(np.int32)]],
        [[ASK[0], ASK[1].astype(np.int64), ASK[2]]],
    ],
)
def test_messages_that_no_worker_sends_are_errors(
    messages: list[list[np.ndarray]],
) -> None:
    with pytest.raises(RunError, match=r"worker:0.*(does not fit|are malformed)"):
        serve(messages)
