"""Messages that are sent while their arrays are still being written."""

from __future__ import annotations

import numpy as np
import pytest
from support.free_addresses import BreakingProxy, eventually, exchange_messages, port

from placer.channel.interface import Key
from placer.channel.pieces import PIECE

KEY = Key(1, 1)
SIZES = 3 * PIECE // 4, 5, 0, PIECE + 1000
"""The numbers of float32 in each array: about 7 pieces."""


def new_arrays():
    """Return arrays that are to be written, and the values that they get."""
    random = np.random.default_rng(3)
    values = [random.normal(size=size).astype(np.float32) for size in SIZES]
    return [np.zeros_like(value) for value in values], values


def write(message, arrays, values, at):
    """Write all values up to position `at`, and say so."""
    for i, (array, value) in enumerate(zip(arrays, values, strict=True)):
        count = min(max(at, 0), value.size)
        array[:count] = value[:count]
        if 0 < at <= value.size:
            message.written(i, count)
        at -= value.size


TOTAL = sum(SIZES)


@pytest.mark.parametrize("stops", [[], [TOTAL], [1, 1000, TOTAL // 3, TOTAL - 1]])
def test_a_message_has_what_was_written(connect, stops, spawn):
    ends = connect("a:0", "b:0")
    arrays, values = new_arrays()
    got = spawn(ends["b:0"].receive, "a:0", KEY)
    message = ends["a:0"].begin_send("b:0", KEY, arrays)
    for at in stops:
        write(message, arrays, values, at)
    for array, value in zip(arrays, values, strict=True):
        array[...] = value
    message.end()
    for array, value in zip(got.result(20), values, strict=True):
        assert np.array_equal(array, value)
    exchange_messages(ends, 2)


@pytest.mark.parametrize("transport", ["tcp", "tls"])
def test_what_is_written_leaves_before_the_rest_is(request, transport):
    ends = request.getfixturevalue(transport)("a:0", "b:0")
    arrays, values = new_arrays()
    message = ends["a:0"].begin_send("b:0", KEY, arrays)
    write(message, arrays, values, TOTAL // 2)
    pieces = ends["b:0"].pieces("a:0", KEY)
    count = 0
    while count < TOTAL // 2 - PIECE // 4:
        index, start, view = next(pieces)
        assert np.array_equal(view, values[index][start : start + view.size])
        count += view.size
    # Another message is not held up by the open one.
    ends["a:0"].send("b:0", Key(2, 1), [np.arange(300_000)])
    assert ends["b:0"].receive("a:0", Key(2, 1))[0][-1] == 299_999
    write(message, arrays, values, TOTAL)
    message.end()
    count += sum(view.size for _, _, view in pieces)
    assert count == TOTAL


def test_after_a_broken_connection_only_what_is_written_is_sent_again(
    tcp, spawn, addresses
):
    with BreakingProxy(port(addresses["a:0"]), lose_after=PIECE + 5000) as proxy:
        seen = {**addresses, "a:0": f"127.0.0.1:{proxy.port}"}
        ends = tcp("a:0", "b:0", addresses={"a:0": addresses, "b:0": seen}, beat=0.1)
        arrays, values = new_arrays()
        got = spawn(ends["a:0"].receive, "b:0", KEY)
        message = ends["b:0"].begin_send("a:0", KEY, arrays)
        for at in range(1000, TOTAL, TOTAL // 10):
            write(message, arrays, values, at)
        eventually(lambda: proxy.connections > 1, 30)
        assert not got.done()
        write(message, arrays, values, TOTAL)
        message.end()
        for array, value in zip(got.result(30), values, strict=True):
            assert np.array_equal(array, value)
        # Before the proxy ends, over which the acknowledgement comes.
        eventually(lambda: ends["b:0"].links["a:0"].is_delivered, 30)
