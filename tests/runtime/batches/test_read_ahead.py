"""Values that a thread computes ahead of their use."""

from __future__ import annotations

import threading

import pytest

from placer.runtime.batches import read_ahead
from placer.runtime.batches.read_ahead import AHEAD, ReadAhead

LAST = 20


def following(position):
    epoch, step = position
    return (epoch, step + 1) if step < LAST else None


class Source:
    """Returns the step of a position, and notes which were asked for, in which thread."""

    def __init__(self, wrong=-1):
        self.steps, self.threads, self.wrong = [], set(), wrong
        self.changed = threading.Condition()

    def __call__(self, position):
        with self.changed:
            self.steps.append(position[1])
            self.threads.add(threading.current_thread())
            self.changed.notify_all()
        if position[1] == self.wrong:
            raise ValueError(f"step {position[1]}")
        return position[1]

    def wait_for(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.steps) >= count, 60)


@pytest.fixture
def opened():
    """A function that returns the values of a source, which are closed after the test."""
    open_values = []

    def open_source(source):
        open_values.append(ReadAhead(source, following))
        return open_values[-1]

    yield open_source
    for values in open_values:
        values.close()


def test_a_second_thread_waits_for_one_that_hangs(opened, monkeypatch):
    """They would read with one reader at the same time."""
    monkeypatch.setattr(read_ahead, "END_LIMIT", 0.01)
    hangs, second, goes_on = (threading.Event() for _ in range(3))
    order, main, join = [], threading.current_thread(), threading.Thread.join

    def noted_join(thread, timeout=None):
        if threading.current_thread() is not main:
            second.set()  # it waits
        join(thread, timeout)

    def read(position):
        order.append(position)
        if position == (1, 5):
            hangs.set()
            goes_on.wait(60)
            order.append("end")
        second.set()  # it reads
        return position[1]

    monkeypatch.setattr(threading.Thread, "join", noted_join)
    values = opened(read)
    values.begin((1, 5))
    assert hangs.wait(60)
    values.begin((1, 7))
    assert second.wait(60)
    goes_on.set()
    assert values.take((1, 7)) == 7
    assert order[:3] == [(1, 5), "end", (1, 7)]


def test_values_are_computed_in_order_in_another_thread(opened):
    source = Source()
    values = opened(source)
    assert [values.take((1, step)) for step in range(LAST + 1)] == [*range(LAST + 1)]
    assert source.steps == [*range(LAST + 1)]
    assert threading.current_thread() not in source.threads
    assert len(source.threads) == 1


def test_values_can_be_computed_before_the_first_is_needed(opened):
    source = Source()
    values = opened(source)
    values.begin((1, 5))
    source.wait_for(AHEAD)
    assert [values.take((1, step)) for step in (5, 6)] == [5, 6]
    assert source.steps.count(5) == 1
    assert len(source.threads) == 1


def test_at_most_so_many_values_wait(opened):
    source = Source()
    values = opened(source)
    for step in range(3):
        assert values.take((1, step)) == step
        source.wait_for(step + 1 + AHEAD)
        assert len(source.steps) == step + 1 + AHEAD


def test_a_value_can_be_taken_again(opened):
    source = Source()
    values = opened(source)
    assert [values.take((1, 3)) for _ in range(3)] == [3, 3, 3]
    assert source.steps.count(3) == 1


def test_positions_may_be_left_out(opened):
    source = Source()
    values = opened(source)
    assert [values.take((1, step)) for step in (0, 1, 5, 12)] == [0, 1, 5, 12]
    assert len(source.threads) == 1


def test_an_earlier_position_starts_again(opened):
    source = Source()
    values = opened(source)
    assert [values.take((1, step)) for step in (7, 8, 2, 3)] == [7, 8, 2, 3]
    assert len(source.threads) == 2


def test_after_the_last_position_it_starts_again(opened):
    values = opened(Source())
    taken = [values.take((1, step)) for step in (LAST - 1, LAST, 0, 1)]
    assert taken == [LAST - 1, LAST, 0, 1]


def test_an_error_is_raised_at_its_position(opened):
    values = opened(Source(wrong=2))
    assert [values.take((1, step)) for step in range(2)] == [0, 1]
    for _ in range(2):
        with pytest.raises(ValueError, match="step 2"):
            values.take((1, 2))


def test_closing_ends_the_thread(opened):
    source = Source()
    values = opened(source)
    values.take((1, 0))
    source.wait_for(1 + AHEAD)
    values.close()
    assert not any(thread.is_alive() for thread in source.threads)
