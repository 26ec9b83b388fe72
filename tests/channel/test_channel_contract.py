"""The behaviour of every channel, over each transport."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from support.free_addresses import eventually, receive_any
from support.marks import slow_but

from placer.channel.interface import Aborted, Cause, Key
from placer.errors import RunError

RNG = np.random.default_rng(0)


def same(got: np.ndarray, sent: np.ndarray) -> bool:
    """Equal dtype, shape and bytes (so that NaNs and signed zeros count)."""
    return (
        got.dtype == sent.dtype
        and got.shape == sent.shape
        and got.tobytes() == sent.tobytes()
    )


@pytest.mark.parametrize(
    "dtype",
    [
        *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32"),
        *("int64", "uint64", "float16", "float32", "float64", ml_dtypes.bfloat16),
    ],
)
def test_arrays_of_every_dtype_arrive_exactly(connect, dtype):
    channels = connect("a:0", "b:0")
    kind = np.dtype(dtype)
    raw = RNG.integers(0, 2 if kind == np.bool_ else 256, 7 * 5 * 8, dtype=np.uint8)
    square = raw.view(kind)[:35].reshape(7, 5)
    sent = [
        square,
        square.T,
        square[::2, 1:4],
        np.asfortranarray(square),
        np.array(square[3, 2]),
        np.empty((0,), kind),
        np.empty((3, 0, 2), kind),
    ]
    channels["a:0"].send("b:0", Key(1, 1), sent)
    got = channels["b:0"].receive("a:0", Key(1, 1))
    assert len(got) == len(sent)
    assert all(same(g, s) for g, s in zip(got, sent, strict=True))


def test_message_without_arrays(connect):
    channels = connect("a:0", "b:0")
    channels["a:0"].send("b:0", Key(-1, 0), [])
    assert channels["b:0"].receive("a:0", Key(-1, 0)) == []


def test_message_with_empty_arrays_only(connect):
    channels = connect("a:0", "b:0")
    sent = [np.empty((0,)), np.empty((3, 0, 2), ml_dtypes.bfloat16)]
    channels["a:0"].send("b:0", Key(1, 1), sent)
    got = channels["b:0"].receive("a:0", Key(1, 1))
    assert all(same(g, s) for g, s in zip(got, sent, strict=True))
    channels["a:0"].send("b:0", Key(1, 2), sent)
    assert list(channels["b:0"].pieces("a:0", Key(1, 2))) == []


def test_small_and_large_arrays_share_a_message(connect):
    channels = connect("a:0", "b:0")
    sizes = [3, 200_000, 0, 5, 7, 40_000, 2_500_001, 1, 90_000, 11]
    sent = [RNG.integers(0, 256, n, dtype=np.uint8) for n in sizes]
    channels["a:0"].send("b:0", Key(1, 1), sent)
    got = channels["b:0"].receive("a:0", Key(1, 1))
    assert all(same(g, s) for g, s in zip(got, sent, strict=True))
    assert channels["a:0"].bytes_sent == sum(sizes)
    assert channels["b:0"].mailbox.bytes_received == sum(sizes)


def test_message_of_64_mib_arrives_with_and_without_out(connect):
    channels = connect("a:0", "b:0")
    sent = np.arange(8 << 20, dtype=np.int64)
    channels["a:0"].send("b:0", Key(1, 1), [sent])
    assert np.array_equal(channels["b:0"].receive("a:0", Key(1, 1))[0], sent)
    out = np.zeros_like(sent)
    channels["a:0"].send("b:0", Key(1, 2), [sent])
    assert channels["b:0"].receive("a:0", Key(1, 2), out=[out])[0] is out
    assert np.array_equal(out, sent)


def test_out_is_filled_when_receive_waits_before_send(connect, spawn):
    channels = connect("a:0", "b:0")
    out = [np.zeros(300_000), None, np.zeros((2, 2), np.float32)]
    got = spawn(channels["b:0"].receive, "a:0", Key(1, 1), out=out)
    eventually(lambda: channels["b:0"].waiting() == ("a:0",))
    sent = [RNG.random(300_000), np.arange(3), np.ones((2, 2), np.float32)]
    channels["a:0"].send("b:0", Key(1, 1), sent)
    arrays = got.result(10)
    assert arrays[0] is out[0]
    assert arrays[2] is out[2]
    assert all(same(g, s) for g, s in zip(arrays, sent, strict=True))


def test_out_of_another_dtype_is_an_error(connect):
    channels = connect("a:0", "b:0")
    channels["a:0"].send("b:0", Key(1, 1), [np.ones(3)])
    with pytest.raises(RunError, match=r"array 0 is float64\[3\].* float32\[3\]"):
        channels["b:0"].receive("a:0", Key(1, 1), out=[np.ones(3, np.float32)])


def test_messages_are_addressed_by_source_edge_step_and_microbatch(connect):
    channels = connect("a:0", "b:0", "c:0")
    keys = [Key(e, s, m) for e in (-2, 3) for s in (1, 2) for m in (0, 1)]
    for source in ("a:0", "c:0"):
        for i, key in enumerate(keys):
            channels[source].send("b:0", key, [np.array([i, ord(source[0])])])
    for i, key in reversed(list(enumerate(keys))):
        for source in ("c:0", "a:0"):
            (got,) = channels["b:0"].receive(source, key)
            assert got.tolist() == [i, ord(source[0])]


def test_messages_of_one_key_arrive_in_order(connect):
    channels = connect("a:0", "b:0")
    for i in range(5):
        channels["a:0"].send("b:0", Key(1, 1), [np.array(i)])
    got = [int(channels["b:0"].receive("a:0", Key(1, 1))[0]) for _ in range(5)]
    assert got == [0, 1, 2, 3, 4]


def test_sender_waits_until_the_receiver_has_received(connect, spawn):
    channels = connect("a:0", "b:0", bound=1000)
    block = np.zeros(400, np.uint8)
    for step in (1, 2):
        channels["a:0"].send("b:0", Key(1, step), [block])
    third = spawn(channels["a:0"].send, "b:0", Key(1, 3), [block])
    eventually(lambda: channels["a:0"].waiting() == ("b:0",))
    assert not third.done()
    channels["b:0"].receive("a:0", Key(1, 1))
    third.result(10)
    assert channels["a:0"].waiting() == ()
    for step in (2, 3):
        channels["b:0"].receive("a:0", Key(1, step))


def test_empty_messages_are_bounded(connect, spawn):
    channels = connect("a:0", "b:0", bound=640)
    for step in range(10):
        channels["a:0"].send("b:0", Key(1, step), [])
    more = spawn(channels["a:0"].send, "b:0", Key(1, 10), [])
    eventually(lambda: channels["a:0"].waiting() == ("b:0",))
    assert not more.done()
    channels["b:0"].receive("a:0", Key(1, 0))
    more.result(10)


def test_message_over_the_bound_is_sent_alone(connect, spawn):
    channels = connect("a:0", "b:0", bound=1 << 20)
    big = np.zeros(3 << 20, np.uint8)
    channels["a:0"].send("b:0", Key(1, 1), [big])
    second = spawn(channels["a:0"].send, "b:0", Key(1, 2), [big])
    eventually(lambda: channels["a:0"].waiting() == ("b:0",))
    channels["b:0"].receive("a:0", Key(1, 1))
    second.result(10)
    assert channels["b:0"].receive("a:0", Key(1, 2))[0].nbytes == big.nbytes


def test_sender_of_a_message_over_the_bound_does_not_wait_for_a_heartbeat(
    connect, spawn
):
    channels = connect("a:0", "b:0", bound=1 << 20, beat=3.5, deadline=3.0)
    channels["a:0"].send("b:0", Key(1, 1), [np.zeros(10)])
    channels["b:0"].receive("a:0", Key(1, 1))
    channels["a:0"].send("b:0", Key(1, 2), [np.zeros(2 << 20, np.uint8)])
    assert channels["b:0"].receive("a:0", Key(1, 2))[0].nbytes == 2 << 20


def test_sender_behind_other_messages_does_not_wait_for_a_heartbeat(between, spawn):
    # The first two messages are still on the way when the third waits for room.
    channels = between("a:0", "b:0", beat=60.0, lost_after=600.0, deadline=20.0)
    sizes = [12 << 20, 15 << 20, 50 << 20]
    arrays = [np.ones(size, np.uint8) for size in sizes]

    def send_all():
        for step in range(3):
            for edge, array in enumerate(arrays):
                channels["a:0"].send("b:0", Key(edge, step), [array])

    sending = spawn(send_all)
    for step in range(3):
        for edge, array in enumerate(arrays):
            out = np.empty_like(array)
            channels["b:0"].receive("a:0", Key(edge, step), out=[out])
    sending.result(20)


def test_two_nodes_send_to_each_other_before_they_receive(connect, spawn):
    channels = connect("a:0", "b:0", bound=4 << 20, deadline=10)
    block = np.arange(3 << 20, dtype=np.uint8)

    def exchange(me: str, other: str) -> np.ndarray:
        channels[me].send(other, Key(1, 1), [block])
        return channels[me].receive(other, Key(1, 1))[0]

    first, second = spawn(exchange, "a:0", "b:0"), spawn(exchange, "b:0", "a:0")
    assert same(first.result(20), block)
    assert same(second.result(20), block)


def test_receiving_the_last_message_first_does_not_deadlock_on_the_bound(
    connect, spawn
):
    channels = connect("a:0", "b:0", bound=1000, deadline=10)

    def send_all() -> None:
        for step in range(8):
            channels["a:0"].send("b:0", Key(1, step), [np.full(800, step, np.uint8)])

    sending = spawn(send_all)
    for step in reversed(range(8)):
        assert channels["b:0"].receive("a:0", Key(1, step))[0][0] == step
    sending.result(10)


def test_cycle_of_three_nodes_does_not_deadlock_on_the_bound(connect, spawn):
    channels = connect("a:0", "b:0", "c:0", bound=1000, beat=0.05, deadline=10)
    block = np.zeros(800, np.uint8)

    def first() -> None:
        for step in (1, 2):
            channels["a:0"].send("b:0", Key(1, step), [block])
        channels["a:0"].send("c:0", Key(1, 3), [block])

    def third() -> None:
        channels["c:0"].receive("a:0", Key(1, 3))
        channels["c:0"].send("b:0", Key(1, 4), [block])

    ends = [spawn(first), spawn(third)]
    channels["b:0"].receive("c:0", Key(1, 4))
    for step in (1, 2):
        channels["b:0"].receive("a:0", Key(1, step))
    for end in ends:
        end.result(10)


def test_receive_past_the_deadline_names_the_source(connect):
    channels = connect("a:0", "b:0", deadline=0.2)
    with pytest.raises(
        RunError, match=r"^b:0 waited 0.2 s for edge 3, step 12 from a:0\n"
    ):
        channels["b:0"].receive("a:0", Key(3, 12))
    assert channels["b:0"].waiting() == ()


def test_send_past_the_deadline_names_the_receiver(connect):
    channels = connect("a:0", "b:0", bound=100, deadline=0.2)
    channels["a:0"].send("b:0", Key(3, 1), [np.zeros(90, np.uint8)])
    with pytest.raises(
        RunError,
        match=r"^a:0 waited 0.2 s for b:0 to receive .* edge 3, step 2, microbatch 1\n",
    ):
        channels["a:0"].send("b:0", Key(3, 2, 1), [np.zeros(90, np.uint8)])


def test_abort_raises_its_cause_in_every_waiting_and_later_call(connect, spawn):
    channels = connect("a:0", "b:0", "c:0", bound=100)
    channels["a:0"].send("b:0", Key(1, 1), [np.zeros(90, np.uint8)])
    stuck_send = spawn(channels["a:0"].send, "b:0", Key(1, 2), [np.zeros(90)])
    stuck_receive = spawn(channels["b:0"].receive, "c:0", Key(1, 1))
    eventually(lambda: channels["a:0"].waiting() == ("b:0",))
    eventually(lambda: channels["b:0"].waiting() == ("c:0",))
    cause = Cause("c:0", "step 12, op 'h1'", "ValueError: é" + "x" * 50)
    channels["c:0"].abort(cause)
    channels["c:0"].abort(Cause("c:0", "later", "another"))
    for stuck in (stuck_send, stuck_receive):
        with pytest.raises(Aborted) as raised:
            stuck.result(10)
        assert raised.value.cause == cause
        assert str(raised.value) == f"c:0: step 12, op 'h1': {cause.what}"
    for channel in channels.values():
        eventually(lambda each=channel: each.aborted == cause)
        with pytest.raises(Aborted):
            channel.receive("b:0" if channel.node == "a:0" else "a:0", Key(1, 9))
        with pytest.raises(Aborted):
            channel.send("b:0" if channel.node == "a:0" else "a:0", Key(1, 9), [])


def test_on_abort_is_called_on_other_nodes_only(connect):
    channels = connect("a:0", "b:0")
    causes = {node: [] for node in channels}
    for node, channel in channels.items():
        channel.on_abort = causes[node].append
    cause = Cause("a:0", "step 1", "failed")
    channels["a:0"].abort(cause)
    eventually(lambda: bool(causes["b:0"]))
    assert causes == {"a:0": [], "b:0": [cause]}


@pytest.mark.parametrize("close_first", [True, False])
def test_waiting_for_a_closed_node_fails_at_once(connect, spawn, close_first):
    channels = connect("a:0", "b:0")
    channels["a:0"].send("b:0", Key(1, 1), [np.arange(5)])
    if close_first:
        channels["a:0"].close()
        waiting = spawn(channels["b:0"].receive, "a:0", Key(1, 2))
    else:
        waiting = spawn(channels["b:0"].receive, "a:0", Key(1, 2))
        eventually(lambda: channels["b:0"].waiting() == ("a:0",))
        channels["a:0"].close()
    with pytest.raises(RunError, match=r"edge 1, step 2 from a:0, which has ended"):
        waiting.result(10)
    assert channels["b:0"].receive("a:0", Key(1, 1))[0].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(RunError, match=r"a:0 has ended its run"):
        channels["b:0"].send("a:0", Key(1, 1), [])
    channels["a:0"].close()
    with pytest.raises(RunError, match="channel is closed"):
        channels["a:0"].send("b:0", Key(1, 3), [])
    with pytest.raises(RunError, match="channel is closed"):
        channels["a:0"].receive("b:0", Key(1, 3))


def test_invalid_messages_are_refused_by_send(connect):
    channels = connect("a:0", "b:0", max_message=1000)
    a = channels["a:0"]
    with pytest.raises(RunError, match="1001 bytes is over the maximum of 1000"):
        a.send("b:0", Key(1, 1), [np.zeros(1001, np.uint8)])
    with pytest.raises(RunError, match="dtype object"):
        a.send("b:0", Key(1, 1), [np.array([{}])])
    with pytest.raises(RunError, match="dtype >i4"):
        a.send("b:0", Key(1, 1), [np.zeros(2, ">i4")])
    with pytest.raises(RunError, match="is a list"):
        a.send("b:0", Key(1, 1), [[1, 2]])
    with pytest.raises(RunError, match="no peer 'b:1'"):
        a.send("b:1", Key(1, 1), [])
    with pytest.raises(RunError, match="no peer 'a:0'"):
        a.receive("a:0", Key(1, 1))
    assert a.bytes_sent == 0


def test_many_threads_use_one_channel(connect, spawn):
    channels = connect("a:0", "b:0", bound=4096)

    def send(edge: int) -> None:
        for step in range(50):
            channels["a:0"].send("b:0", Key(edge, step), [np.full(100, edge)])

    def receive(edge: int) -> int:
        arrays = [channels["b:0"].receive("a:0", Key(edge, s))[0] for s in range(50)]
        return sum(int(array.sum()) for array in arrays)

    sends = [spawn(send, edge) for edge in range(4)]
    sums = [spawn(receive, edge) for edge in range(4)]
    for sent in sends:
        sent.result(20)
    assert [total.result(20) for total in sums] == [0, 5000, 10000, 15000]


# Messages from whoever comes first.

SOURCES = ("b:0", "c:0", "d:0")


def test_a_message_is_received_from_whoever_comes_first(connect, spawn):
    channels = connect("a:0", *SOURCES, beat=3.5)
    waiting = spawn(receive_any, channels["a:0"], SOURCES, Key(1, 1))
    eventually(lambda: channels["a:0"].waiting() == SOURCES)
    large = np.arange(3 << 20, dtype=np.uint8)
    channels["c:0"].send("a:0", Key(1, 2), [np.array(0)])  # another key
    channels["c:0"].send("a:0", Key(1, 1), [large])
    source, (got,) = waiting.result(3)  # before a heartbeat
    assert source == "c:0"
    assert same(got, large)
    assert channels["a:0"].waiting() == ()
    channels["b:0"].send("a:0", Key(1, 1), [])
    assert receive_any(channels["a:0"], SOURCES, Key(1, 1)) == ("b:0", [])
    assert channels["a:0"].receive("c:0", Key(1, 2))[0] == 0


def test_a_source_of_many_messages_does_not_hold_up_the_others(memory):
    channels = memory("a:0", *SOURCES)
    for step, source in enumerate(["b:0", "b:0", "b:0", "c:0", "d:0", "c:0"]):
        channels[source].send("a:0", Key(1, 1), [np.array(step)])
    got = [receive_any(channels["a:0"], SOURCES, Key(1, 1)) for _ in range(6)]
    order = [(source, int(arrays[0])) for source, arrays in got]
    turns = [("b:0", 0), ("c:0", 3), ("d:0", 4), ("b:0", 1), ("c:0", 5), ("b:0", 2)]
    assert order == turns


def test_messages_of_three_senders_are_all_received_by_several_threads(connect, spawn):
    channels = connect("a:0", *SOURCES, bound=2 << 20, deadline=20)
    sizes = (10, 70_000, 1_500_000)

    def send(source: str) -> None:
        for step in range(30):
            array = np.full(sizes[step % 3], step, np.uint8)
            channels[source].send("a:0", Key(1, 1), [array])

    def receive() -> list[tuple[str, int]]:
        got = [receive_any(channels["a:0"], SOURCES, Key(1, 1)) for _ in range(45)]
        assert all((arrays[0] == arrays[0][0]).all() for _, arrays in got)
        return [(source, int(arrays[0][0])) for source, arrays in got]

    sending = [spawn(send, source) for source in SOURCES]
    receiving = [spawn(receive) for _ in range(2)]
    got = [each for received in receiving for each in received.result(30)]
    for each in sending:
        each.result(10)
    assert sorted(got) == sorted((s, step) for s in SOURCES for step in range(30))


def test_messages_of_several_nodes_do_not_wait_for_a_tick(between, spawn):
    """More frames at once than the channel's thread handles before it looks at others."""
    channels = between("a:0", *SOURCES, lost_after=600.0, deadline=20)
    for channel in channels.values():
        channel._tick = 600.0
    for step in range(300):
        for source in SOURCES:
            channels[source].send("a:0", Key(1, step), [np.arange(step)])
    for step in range(300):
        got = {receive_any(channels["a:0"], SOURCES, Key(1, step))[0] for _ in SOURCES}
        assert got == set(SOURCES)
    for channel in channels.values():
        channel._tick = 0.1
        channel._wake()


def test_receiving_from_nodes_that_have_all_ended_is_an_error(connect, spawn):
    channels = connect("a:0", *SOURCES, deadline=20)
    channels["b:0"].close()
    waiting = spawn(receive_any, channels["a:0"], SOURCES[:2], Key(3, 1))
    eventually(lambda: channels["a:0"].waiting() == SOURCES[:2])
    channels["c:0"].close()
    with pytest.raises(RunError, match="from b:0 or c:0, which has ended its run"):
        waiting.result(10)


def test_an_abort_ends_a_wait_for_several_nodes(connect, spawn):
    channels = connect("a:0", *SOURCES)
    waiting = spawn(receive_any, channels["a:0"], SOURCES, Key(1, 1))
    eventually(lambda: channels["a:0"].waiting() == SOURCES)
    channels["d:0"].abort(Cause("d:0", "step 1", "failed"))
    with pytest.raises(Aborted, match="d:0: step 1: failed"):
        waiting.result(10)


# Memory of share().


def test_shared_memory_is_zeroed_and_aligned_and_is_received_exactly(
    connect,
):
    channels = connect("a:0", "b:0")
    memory = channels["a:0"].share(3 << 20)
    assert memory.dtype == np.uint8
    assert memory.shape == (3 << 20,)
    assert memory.ctypes.data % 64 == 0
    assert not memory.any()
    memory[...] = RNG.integers(0, 256, memory.size, dtype=np.uint8)
    table = memory[: 1 << 20].view(np.float32).reshape(-1, 64)
    sent = [table, memory[64:1000], np.arange(9), table[:0], memory[1 << 20 :]]
    channels["a:0"].send("b:0", Key(1, 1), sent)
    got = channels["b:0"].receive("a:0", Key(1, 1))
    assert all(same(g, s) for g, s in zip(got, sent, strict=True))
    assert channels["a:0"].bytes_sent == sum(array.nbytes for array in sent)
    assert channels["b:0"].mailbox.bytes_received == sum(array.nbytes for array in sent)


def test_shared_memory_is_copied_into_out(connect):
    channels = connect("a:0", "b:0")
    memory = channels["a:0"].share(2 << 20)
    memory[...] = 7
    out = [np.zeros(1 << 20, np.uint8), None]
    channels["a:0"].send("b:0", Key(1, 1), [memory[: 1 << 20], memory[1 << 20 :]])
    got = channels["b:0"].receive("a:0", Key(1, 1), out=out)
    assert got[0] is out[0]
    memory[...] = 8
    assert (got[0] == 7).all()


def test_shared_memory_can_be_rewritten_after_the_receivers_have_finished(connect):
    channels = connect("a:0", "b:0", "c:0")
    memory = channels["a:0"].share(1 << 20)
    for step in range(3):
        memory[...] = step
        for peer in ("b:0", "c:0"):
            channels["a:0"].send(peer, Key(1, step), [memory])
        for peer in ("b:0", "c:0"):
            (got,) = channels[peer].receive("a:0", Key(1, step))
            assert (got == step).all()
            channels[peer].send("a:0", Key(2, step), [])
        for peer in ("b:0", "c:0"):
            channels["a:0"].receive(peer, Key(2, step))


def test_non_contiguous_array_of_shared_memory_is_copied(connect):
    channels = connect("a:0", "b:0")
    memory = channels["a:0"].share(1 << 20).reshape(1024, 1024)
    memory[...] = 3
    channels["a:0"].send("b:0", Key(1, 1), [memory[:, ::2], memory.T])
    got = channels["b:0"].receive("a:0", Key(1, 1))
    memory[...] = 4
    assert all((array == 3).all() for array in got)


# Pieces.


def assemble(pieces, sent: list[np.ndarray]) -> list[np.ndarray]:
    """Join pieces into arrays; check that they come in order and without gaps."""
    got = [np.zeros(array.size, array.dtype) for array in sent]
    at = [0] * len(sent)
    last = 0
    for index, first, view in pieces:
        assert index >= last
        assert first == at[index]
        assert view.ndim == 1
        assert view.size > 0
        got[index][first : first + view.size] = view
        at[index] += view.size
        last = index
    assert at == [array.size for array in sent]
    return [g.reshape(s.shape) for g, s in zip(got, sent, strict=True)]


@pytest.mark.parametrize("sizes", [[], [0], [5, 0, 7], [70_000, 3], [3, 12_000_000, 5]])
@pytest.mark.parametrize("dtype", ["uint8", "bool", "float64", ml_dtypes.bfloat16])
def test_pieces_are_all_elements_in_order(connect, spawn, sizes, dtype):
    channels = connect("a:0", "b:0")
    kind = np.dtype(dtype)
    sent = [
        RNG.integers(0, 2, n // kind.itemsize * kind.itemsize, np.uint8).view(kind)
        for n in sizes
    ]
    sent.append(np.array(1.0).astype(kind))
    sending = spawn(channels["a:0"].send, "b:0", Key(1, 1), sent)
    got = assemble(channels["b:0"].pieces("a:0", Key(1, 1)), sent)
    assert all(same(g, s) for g, s in zip(got, sent, strict=True))
    sending.result(10)


def test_pieces_of_shared_memory_and_other_arrays_in_one_message(connect):
    channels = connect("a:0", "b:0")
    memory = channels["a:0"].share(5 << 20)
    memory[...] = RNG.integers(0, 256, memory.size, dtype=np.uint8)
    plain = RNG.random(400_000)
    for sent in ([memory, plain], [plain[:5], memory, plain[5:9]]):
        channels["a:0"].send("b:0", Key(1, 1), sent)
        got = assemble(channels["b:0"].pieces("a:0", Key(1, 1)), sent)
        assert all(same(g, s) for g, s in zip(got, sent, strict=True))


def test_pieces_of_several_sources_are_split_alike(connect):
    """One source sends an array from shared memory, the others do not."""
    channels = connect("ps:0", "worker:0", "worker:1", "worker:2")
    sizes = (100, 3_000_000, 17, 1_000_001, 5)
    gradients = {
        f"worker:{w}": [np.full(n, 10**w, np.float32) for n in sizes] for w in range(3)
    }
    memory = channels["worker:2"].share(12_000_000).view(np.float32)
    memory[...] = 100
    gradients["worker:2"][1] = memory
    for worker, arrays in gradients.items():
        channels[worker].send("ps:0", Key(1, 1), arrays)
    sums = [np.zeros(n, np.float32) for n in sizes]
    iterators = [channels["ps:0"].pieces(worker, Key(1, 1)) for worker in gradients]
    for parts in zip(*iterators, strict=True):
        assert len({(index, first, view.size) for index, first, view in parts}) == 1
        for index, first, view in parts:
            sums[index][first : first + view.size] += view
    assert all((array == 111).all() for array in sums)


def test_pieces_count_as_received_at_their_end(connect, spawn):
    channels = connect("a:0", "b:0", bound=2 << 20, beat=3.5)
    sent = [np.zeros(1 << 20, np.uint8), np.zeros(1 << 20, np.uint8)]
    channels["a:0"].send("b:0", Key(1, 1), sent)
    second = spawn(channels["a:0"].send, "b:0", Key(1, 2), sent)
    pieces = channels["b:0"].pieces("a:0", Key(1, 1))
    next(pieces)
    eventually(lambda: channels["a:0"].waiting() == ("b:0",))
    assert len(list(pieces)) >= 1
    second.result(3)


@pytest.mark.parametrize("count", [1, 3])
def test_closing_pieces_early_discards_the_rest(connect, spawn, count):
    channels = connect("a:0", "b:0", bound=1 << 20, beat=3.5)
    sent = [np.full(4 << 20, i, np.uint8) for i in range(5)]
    for step in range(4):
        sending = spawn(channels["a:0"].send, "b:0", Key(1, step), sent)
        pieces = channels["b:0"].pieces("a:0", Key(1, step))
        for _ in range(count):
            next(pieces)
        pieces.close()
        sending.result(10)
    channels["a:0"].send("b:0", Key(1, 9), [np.arange(3)])
    assert channels["b:0"].receive("a:0", Key(1, 9))[0].tolist() == [0, 1, 2]


def test_unused_pieces_iterator_does_not_consume_the_message(connect):
    channels = connect("a:0", "b:0")
    channels["a:0"].send("b:0", Key(1, 1), [np.arange(3)])
    channels["b:0"].pieces("a:0", Key(1, 1)).close()
    assert channels["b:0"].receive("a:0", Key(1, 1))[0].tolist() == [0, 1, 2]


def test_later_message_can_be_received_between_two_pieces(connect, spawn):
    channels = connect("a:0", "b:0", deadline=10)
    first = [np.arange(6 << 20, dtype=np.uint32), np.arange(5)]
    second = [np.arange(5 << 20, dtype=np.uint32)]

    def send() -> None:
        channels["a:0"].send("b:0", Key(1, 1), first)
        channels["a:0"].send("b:0", Key(1, 2), second)

    sending = spawn(send)
    pieces = channels["b:0"].pieces("a:0", Key(1, 1))
    index, start, view = next(pieces)
    first_piece = view.copy()
    got = channels["b:0"].receive("a:0", Key(1, 2))
    assert same(got[0], second[0])
    assert same(view, first_piece)
    rest = assemble(iter([(index, start, first_piece), *copies(pieces)]), first)
    assert all(same(g, s) for g, s in zip(rest, first, strict=True))
    sending.result(10)


def copies(pieces):
    return [(index, first, view.copy()) for index, first, view in pieces]


def test_pieces_wait_like_receive(connect, spawn):
    channels = connect("a:0", "b:0", deadline=0.2)
    with pytest.raises(RunError, match=r"^b:0 waited 0.2 s for edge 3, step 1 from"):
        next(channels["b:0"].pieces("a:0", Key(3, 1)))
    waiting = spawn(lambda: next(channels["b:0"].pieces("a:0", Key(3, 2))))
    cause = Cause("a:0", "step 2", "failed")
    channels["a:0"].abort(cause)
    with pytest.raises(RunError, match=r"^(a:0: step 2: failed|b:0 waited)"):
        waiting.result(10)
    with pytest.raises(Aborted):
        next(channels["b:0"].pieces("a:0", Key(3, 3)))


# Load.


def test_large_messages_can_be_received_in_any_order(connect, spawn):
    channels = connect("a:0", "b:0")
    blocks = [RNG.integers(0, 256, 5 << 20, dtype=np.uint8) for _ in range(6)]

    def send_all() -> None:
        for step, block in enumerate(blocks):
            channels["a:0"].send("b:0", Key(1, step), [block])

    sending = spawn(send_all)
    for step in (5, 0, 3, 1, 4, 2):
        assert same(channels["b:0"].receive("a:0", Key(1, step))[0], blocks[step])
    sending.result(10)


def test_both_directions_at_once_with_more_than_any_buffer_holds(connect, spawn):
    channels = connect("a:0", "b:0", deadline=20)
    block = np.arange(24 << 20, dtype=np.uint8)

    def exchange(me: str, other: str) -> bool:
        for step in range(2):
            channels[me].send(other, Key(1, step), [block])
        return all(
            same(channels[me].receive(other, Key(1, step))[0], block)
            for step in range(2)
        )

    first, second = spawn(exchange, "a:0", "b:0"), spawn(exchange, "b:0", "a:0")
    assert first.result(30)
    assert second.result(30)


def test_many_small_messages_wait_for_their_receiver(connect, spawn):
    """More than a socket buffer holds, from several threads, before any receive."""
    channels = connect("a:0", "b:0")

    def send(edge: int) -> None:
        for step in range(400):
            array = np.full(3000, step, np.int16)
            channels["a:0"].send("b:0", Key(edge, step), [array])

    for sent in [spawn(send, edge) for edge in range(3)]:
        sent.result(20)
    for step in range(400):
        for edge in range(3):
            (got,) = channels["b:0"].receive("a:0", Key(edge, step))
            assert (got == step).all()


def test_maximum_number_of_arrays(connect):
    channels = connect("a:0", "b:0")
    sent = [np.full((1,) * (i % 30) + (i % 3,), i, np.int16) for i in range(16384)]
    channels["a:0"].send("b:0", Key(1, 1), sent)
    got = channels["b:0"].receive("a:0", Key(1, 1))
    assert all(same(g, s) for g, s in zip(got, sent, strict=True))


MIXED = [0, 7, 3000, 65_536, 65_537, 200_000, 1 << 20, 3_000_001, 9 << 20]
"""Bytes of arrays, below and above every limit of a transport."""


@pytest.mark.parametrize("seed", slow_but([0], range(3)))
def test_random_messages_arrive_exactly(connect, spawn, seed):
    """Three nodes, several threads, in any order, whole or in pieces, with and without
    `out`."""
    nodes = ("a:0", "b:0", "c:0")
    channels = connect(*nodes, bound=12 << 20, beat=0.05, deadline=30)
    memory = {node: channels[node].share(1 << 20) for node in nodes}
    for node in nodes:
        memory[node][...] = ord(node[0])

    def arrays_of(source: str, edge: int, step: int) -> list[np.ndarray]:
        draw = np.random.default_rng([seed, ord(source[0]), edge, step])
        sizes = draw.choice(MIXED, draw.integers(0, 4))
        arrays = [
            np.full(n, (edge + step + i) % 251, "u1") for i, n in enumerate(sizes)
        ]
        return [*arrays, memory[source][step * 64 :]] if draw.integers(2) else arrays

    def send(me: str, other: str, edge: int) -> None:
        for step in range(12):
            channels[me].send(other, Key(edge, step), arrays_of(me, edge, step))

    def receive(me: str, other: str, edge: int) -> int:
        draw = np.random.default_rng([seed, edge])
        for step in draw.permutation(12).tolist():
            sent = arrays_of(other, edge, step)
            if draw.integers(3) == 0:
                got = assemble(channels[me].pieces(other, Key(edge, step)), sent)
            else:
                out = [np.zeros_like(a) if draw.integers(2) else None for a in sent]
                got = channels[me].receive(other, Key(edge, step), out=out)
            assert all(same(g, s) for g, s in zip(got, sent, strict=True))
        return 12

    pairs = [(me, other) for me in nodes for other in nodes if me != other]
    edges = [(me, other, edge) for me, other in pairs for edge in range(2)]
    sending = [spawn(send, me, other, edge) for me, other, edge in edges]
    receiving = [spawn(receive, other, me, edge) for me, other, edge in edges]
    assert [each.result(60) for each in receiving] == [12] * len(edges)
    for each in sending:
        each.result(60)


# Behaviour of single transports.


def test_memory_passes_arrays_without_a_copy_and_read_only(memory):
    channels = memory("a:0", "b:0")
    sent = np.arange(10)
    channels["a:0"].send("b:0", Key(1, 1), [sent])
    (got,) = channels["b:0"].receive("a:0", Key(1, 1))
    assert np.shares_memory(got, sent)
    assert not got.flags.writeable
    assert sent.flags.writeable


@pytest.mark.parametrize("sizes", [(1, 3, 1000), (1, 3, 1000, 30_000, 400_000)])
def test_between_processes_arrays_are_aligned(between, sizes):
    channels = between("a:0", "b:0")
    sent = [np.ones(n, np.float32) for n in sizes]
    channels["a:0"].send("b:0", Key(1, 1), sent)
    got = channels["b:0"].receive("a:0", Key(1, 1))
    assert [array.ctypes.data % 64 for array in got] == [0] * len(sizes)
    channels["a:0"].send("b:0", Key(1, 2), sent)
    for _, _, view in channels["b:0"].pieces("a:0", Key(1, 2)):
        assert view.ctypes.data % 64 == 0
