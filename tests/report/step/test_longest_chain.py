"""The longest chain of a step, on traces with a known answer."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn_traces import DrawnTrace

from placer.compiler.driver import compile_in_memory
from placer.report.step.critical_path import longest_chain
from placer.report.step.steps import median_step, steps_of
from placer.system.resources import find_file


@pytest.fixture(scope="module")
def synchronous():
    return compile_in_memory(find_file("specs/digits.yaml")).plan


@pytest.fixture(scope="module")
def asynchronous():
    return compile_in_memory(find_file("specs/digits_async.yaml")).plan


def chain_of(drawn, folder, plan):
    trace = drawn.read(folder, plan)
    step = median_step(steps_of(trace, plan))
    chain = longest_chain(trace, step)
    check_tiles(chain, step)
    return [
        (piece.node, piece.category, piece.name, round(1000 * piece.start, 3),
         round(1000 * piece.end, 3))
        for piece in chain
    ]  # fmt: skip


def check_tiles(chain, step):
    """The pieces fill the step without gaps and overlaps."""
    assert chain[0].start == 0
    assert chain[-1].end == step.duration / 1e9
    for piece, following in itertools.pairwise(chain):
        assert piece.start < piece.end == following.start
    assert chain[-1].start < chain[-1].end


def synchronous_step(drawn):
    """Worker 1 reads for longer; the server waits for it, and updates."""
    for node, end in (("worker:0", 58), ("worker:1", 60)):
        drawn.add(node, "step", "step 1", 0, end)
    drawn.add("ps:0", "step", "step 1", 0, 45)
    drawn.add("worker:0", "read", "read", 0, 2)
    drawn.add("worker:0", "compute", "forward_backward", 2, 12)
    drawn.add("worker:1", "read", "read", 1, 15)
    drawn.add("worker:1", "compute", "forward_backward", 15, 24)
    drawn.add("ps:0", "wait", "wait for worker:0", 1, 14)
    drawn.send("worker:0", "ps:0", "w.grad", (12, 13), (14, 15))
    drawn.add("ps:0", "wait", "wait for worker:1", 16, 28)
    drawn.send("worker:1", "ps:0", "w.grad", (24, 26), (28, 29))
    drawn.add("ps:0", "update", "update dense", 30, 40)
    for node, wait, sent in (("worker:0", 14, 41), ("worker:1", 27, 43)):
        drawn.add(node, "wait", "wait for ps:0", wait, sent + 4)
        drawn.send("ps:0", node, "w", (sent - 1, sent), (sent + 4, sent + 5))
    drawn.add("worker:1", "record", "record", 50, 60)
    return drawn


ANSWER = [
    ("worker:1", "other", "other", 0, 1),
    ("worker:1", "read", "read", 1, 15),
    ("worker:1", "compute", "forward_backward", 15, 24),
    ("worker:1", "send", "w.grad", 24, 26),
    ("ps:0", "message", "w.grad", 26, 28),
    ("ps:0", "receive", "w.grad", 28, 29),
    ("ps:0", "other", "other", 29, 30),
    ("ps:0", "update", "update dense", 30, 40),
    ("ps:0", "send", "w", 40, 41),
    ("ps:0", "other", "other", 41, 42),
    ("ps:0", "send", "w", 42, 43),
    ("worker:1", "message", "w", 43, 47),
    ("worker:1", "receive", "w", 47, 48),
    ("worker:1", "other", "other", 48, 50),
    ("worker:1", "record", "record", 50, 60),
]


def test_a_wait_leads_to_the_sender_of_its_message(tmp_path, synchronous):
    assert chain_of(synchronous_step(DrawnTrace()), tmp_path, synchronous) == ANSWER


def test_messages_name_their_ends_and_bytes(tmp_path, synchronous):
    trace = synchronous_step(DrawnTrace()).read(tmp_path, synchronous)
    (step,) = steps_of(trace, synchronous)
    moved = [piece for piece in longest_chain(trace, step) if piece.target]
    assert {(p.source, p.target, p.nbytes) for p in moved} == {
        ("worker:1", "ps:0", 1000),
        ("ps:0", "worker:1", 1000),
        ("ps:0", "worker:0", 1000),
    }


@pytest.mark.parametrize("shift", [-3.5, 3.5])
def test_clocks_that_are_wrong_leave_no_gap(tmp_path, synchronous, shift):
    shifts = {"worker:0": 100.0, "worker:1": 100.0, "ps:0": 100 + shift}
    drawn = synchronous_step(DrawnTrace(shift=shifts))
    found = chain_of(drawn, tmp_path, synchronous)
    assert ("worker:1", "read", "read", 1, 15) in found
    assert any(piece[2] == "update dense" for piece in found)


def test_a_late_receiver_is_the_cause_not_an_early_message(tmp_path, synchronous):
    drawn = DrawnTrace()
    drawn.add("worker:0", "step", "step 1", 0, 40)
    drawn.add("worker:1", "step", "step 1", 0, 8)
    drawn.add("worker:1", "compute", "forward", 0, 2)
    drawn.send("worker:1", "worker:0", "h", (2, 3), (31, 32))
    drawn.add("worker:0", "compute", "other_work", 0, 30)
    drawn.add("worker:0", "wait", "wait for worker:1", 30, 31)
    drawn.add("worker:0", "compute", "backward", 32, 40)
    assert chain_of(drawn, tmp_path, synchronous) == [
        ("worker:0", "compute", "other_work", 0, 30),
        ("worker:0", "message", "h", 30, 31),
        ("worker:0", "receive", "h", 31, 32),
        ("worker:0", "compute", "backward", 32, 40),
    ]


def test_a_slow_link_is_the_cause_although_the_receiver_worked(tmp_path, synchronous):
    drawn = DrawnTrace()
    drawn.add("worker:0", "step", "step 1", 0, 31)
    drawn.add("worker:1", "step", "step 1", 0, 4)
    drawn.add("worker:1", "compute", "forward", 0, 2)
    drawn.send("worker:1", "worker:0", "h", (2, 3), (29, 31))
    drawn.add("worker:0", "compute", "other_work", 0, 5)
    drawn.add("worker:0", "wait", "wait for worker:1", 5, 29)
    assert chain_of(drawn, tmp_path, synchronous) == [
        ("worker:1", "compute", "forward", 0, 2),
        ("worker:1", "send", "h", 2, 3),
        ("worker:0", "message", "h", 3, 29),
        ("worker:0", "receive", "h", 29, 31),
    ]


def test_the_rest_of_a_message_is_a_wait_for_its_sender(tmp_path, synchronous):
    drawn = DrawnTrace()
    drawn.add("worker:0", "step", "step 1", 0, 20)
    drawn.add("worker:1", "step", "step 1", 0, 15)
    drawn.add("worker:0", "wait", "wait for worker:1", 0, 4)
    drawn.send("worker:1", "worker:0", "h", (2, 15), (4, 20))
    drawn.add("worker:0", "wait", "wait for worker:1", 5, 18)
    assert chain_of(drawn, tmp_path, synchronous) == [
        ("worker:1", "other", "other", 0, 2),
        ("worker:1", "send", "h", 2, 15),
        ("worker:0", "message", "h", 15, 18),
        ("worker:0", "receive", "h", 18, 20),
    ]


def test_an_update_that_opens_a_message_sends_until_its_end(tmp_path, synchronous):
    drawn = DrawnTrace()
    drawn.add("worker:0", "step", "step 1", 0, 20)
    drawn.add("ps:0", "update", "update_from_edges dense", 0, 12)
    drawn.add("worker:0", "wait", "wait for ps:0", 0, 13)
    drawn.send("ps:0", "worker:0", "w", (1, 2), (13, 20))
    assert chain_of(drawn, tmp_path, synchronous) == [
        ("ps:0", "update", "update_from_edges dense", 0, 1),
        ("ps:0", "send", "w", 1, 2),
        ("ps:0", "update", "update_from_edges dense", 2, 12),
        ("worker:0", "message", "w", 12, 13),
        ("worker:0", "receive", "w", 13, 20),
    ]


def waiting_sender(receiver):
    """A worker waits until the server has room for a message."""
    drawn = DrawnTrace()
    drawn.add("worker:0", "step", "step 1", 0, 20)
    drawn.add("worker:0", "compute", "forward", 0, 2)
    drawn.send("worker:0", "ps:0", "w.grad", (2, 20), (21, 22))
    drawn.add("worker:0", "wait", "wait until ps:0 receives", 3, 18)
    drawn.add("ps:0", *receiver, 1, 19)
    return drawn


def test_a_wait_for_room_leads_to_the_work_of_the_receiver(tmp_path, synchronous):
    drawn = waiting_sender(("update", "update dense"))
    assert chain_of(drawn, tmp_path, synchronous) == [
        ("ps:0", "other", "other", 0, 1),
        ("ps:0", "update", "update dense", 1, 18),
        ("worker:0", "send", "w.grad", 18, 20),
    ]


def test_a_wait_for_room_of_a_waiting_receiver_is_the_link(tmp_path, synchronous):
    drawn = waiting_sender(("wait", "wait for worker:0"))
    assert chain_of(drawn, tmp_path, synchronous) == [
        ("worker:0", "compute", "forward", 0, 2),
        ("worker:0", "send", "w.grad", 2, 3),
        ("worker:0", "message", "w.grad", 3, 18),
        ("worker:0", "send", "w.grad", 18, 20),
    ]


def test_a_wait_for_an_own_thread_leads_to_it(tmp_path, asynchronous):
    program, exchange = ("worker:0", "program"), ("worker:0", "exchange with ps:0")
    service = ("ps:0", "service of ps:0")
    drawn = DrawnTrace()
    drawn.add("worker:0", "step", "step 1", 0, 30)
    drawn.add("worker:0", "receive", "pull", 0, 21)
    drawn.add("worker:0", "wait", "wait for exchange with ps:0", 1, 20)
    drawn.add("worker:0", "compute", "forward_backward", 21, 30)
    drawn.add(exchange, "wait", "wait for ps:0", 0, 16)
    drawn.send(service, exchange, "w", (13, 14), (16, 18))
    drawn.add(service, "update", "update_from dense", 2, 13)
    drawn.hand_over(exchange, program, 19, 20)
    assert chain_of(drawn, tmp_path, asynchronous) == [
        ("ps:0", "other", "other", 0, 2),
        ("ps:0", "update", "update_from dense", 2, 13),
        ("ps:0", "send", "w", 13, 14),
        ("worker:0", "message", "w", 14, 16),
        ("worker:0", "receive", "w", 16, 18),
        ("worker:0", "other", "other", 18, 19),
        ("worker:0", "wait", "wait for exchange with ps:0", 19, 20),
        ("worker:0", "receive", "pull", 20, 21),
        ("worker:0", "compute", "forward_backward", 21, 30),
    ]


def test_a_wait_without_a_known_cause_stays_a_wait(tmp_path, synchronous):
    drawn = DrawnTrace()
    drawn.add("worker:0", "step", "step 1", 0, 10)
    drawn.add("worker:0", "wait", "wait for ps:0", 2, 10)
    assert chain_of(drawn, tmp_path, synchronous) == [
        ("worker:0", "other", "other", 0, 2),
        ("worker:0", "wait", "wait for ps:0", 2, 10),
    ]


@st.composite
def drawn_traces(draw):
    """Draw threads that work, wait and send at any times, with arrows between any."""
    drawn = DrawnTrace()
    drawn.add("worker:0", "step", "step 1", 0, 100)
    places = [("worker:0", "program"), ("worker:1", "program"), ("ps:0", "service")]
    for place in places:
        times = sorted(draw(st.lists(st.integers(0, 110), max_size=12)))
        for start, end in itertools.pairwise(times):
            category = draw(st.sampled_from(("compute", "wait", "update", "")))
            if category:
                drawn.add(place, category, category, start, end)
    for _ in range(draw(st.integers(0, 8))):
        source, target = draw(st.permutations(places))[:2]
        sent, received = draw(st.integers(0, 110)), draw(st.integers(0, 110))
        if draw(st.booleans()):
            drawn.send(source, target, "v", (sent, sent + 1), (received, received + 1))
        else:
            drawn.hand_over(source, target, sent, received)
    return drawn


@settings(max_examples=50)
@given(drawn=drawn_traces())
def test_every_chain_fills_its_step(tmp_path_factory, synchronous, drawn):
    folder = tmp_path_factory.getbasetemp()
    assert chain_of(drawn, folder, synchronous)
