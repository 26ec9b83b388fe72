"""Messages that arrive before the program asks for them, and those that follow others."""

from __future__ import annotations

import numpy as np
import pytest
from support.free_addresses import BreakingProxy, eventually, exchange_messages, port

from placer.channel.interface import Key
from placer.channel.pieces import PIECE

KEY = Key(1, 1)
VALUE = np.arange(3 * PIECE, dtype=np.uint32)
"""Twelve pieces: more than are sent before the receiver asks for them."""


def new_space():
    return np.zeros_like(VALUE)


def has_come(space):
    return bool(space[-1] == VALUE[-1])


@pytest.mark.parametrize("is_sent_first", [True, False])
def test_an_expected_message_comes_while_the_program_does_something_else(
    between, is_sent_first
):
    ends, space = between("a:0", "b:0"), new_space()
    if is_sent_first:
        ends["a:0"].send("b:0", KEY, [np.arange(3), VALUE])
    ends["b:0"].expect("a:0", KEY, [None, space])
    if not is_sent_first:
        ends["a:0"].send("b:0", KEY, [np.arange(3), VALUE])
    eventually(lambda: has_come(space))
    small, large = ends["b:0"].receive("a:0", KEY, out=[None, space])
    assert small.tolist() == [0, 1, 2]
    assert large is space
    assert np.array_equal(space, VALUE)


def test_an_expected_message_is_received_like_any_other(connect):
    ends, space = connect("a:0", "b:0"), new_space()
    ends["b:0"].expect("a:0", KEY, [space])
    ends["a:0"].send("b:0", KEY, [VALUE])
    (got,) = ends["b:0"].receive("a:0", KEY, out=[space])
    assert got is space
    assert np.array_equal(space, VALUE)
    exchange_messages(ends, 2)


def test_an_expected_message_can_be_received_in_pieces(connect):
    ends = connect("a:0", "b:0")
    ends["b:0"].expect("a:0", KEY, [None])
    ends["a:0"].send("b:0", KEY, [VALUE])
    parts = [view.copy() for _, _, view in ends["b:0"].pieces("a:0", KEY)]
    assert np.array_equal(np.concatenate(parts), VALUE)


def test_an_open_message_comes_as_it_is_written(tcp):
    ends, space = tcp("a:0", "b:0"), new_space()
    ends["b:0"].expect("a:0", KEY, [space])
    array, half = VALUE.copy(), VALUE.size // 2
    array[half:] = 0
    message = ends["a:0"].begin_send("b:0", KEY, [array])
    message.written(0, half)
    eventually(lambda: bool(space[half - 1] == VALUE[half - 1]))
    array[half:] = VALUE[half:]
    message.end()
    eventually(lambda: has_come(space))
    ends["b:0"].receive("a:0", KEY, out=[space])


def test_an_expected_message_comes_over_a_connection_that_breaks(tcp, addresses):
    with BreakingProxy(port(addresses["a:0"]), lose_after=5 * PIECE) as proxy:
        seen = {**addresses, "a:0": f"127.0.0.1:{proxy.port}"}
        ends = tcp("a:0", "b:0", addresses={"a:0": addresses, "b:0": seen}, beat=0.1)
        space = new_space()
        ends["a:0"].expect("b:0", KEY, [space])
        ends["b:0"].send("a:0", KEY, [VALUE])
        eventually(lambda: proxy.connections > 1, 30)
        eventually(lambda: has_come(space), 30)
        assert np.array_equal(ends["a:0"].receive("b:0", KEY, out=[space])[0], VALUE)
        # Without the proxy there is no way back: the acknowledgement must have come.
        eventually(lambda: ends["b:0"].links["a:0"].is_delivered, 30)


def test_a_message_that_follows_another_does_not_wait_for_room(connect, spawn):
    ends = connect("a:0", "b:0", bound=1000)
    block = np.zeros(900, np.uint8)
    ends["a:0"].send("b:0", Key(1, 1), [block])
    for edge in (2, 3):
        ends["a:0"].send("b:0", Key(edge, 1), [block], follows=True)
    waiting = spawn(ends["a:0"].send, "b:0", Key(1, 2), [block])
    eventually(lambda: ends["a:0"].waiting() == ("b:0",))
    for edge in (1, 2):
        ends["b:0"].receive("a:0", Key(edge, 1))
    assert not waiting.done()  # both count
    ends["b:0"].receive("a:0", Key(3, 1))
    waiting.result(10)
