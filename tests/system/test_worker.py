"""A worker: order, bound, first error, and its ends."""

import threading

import pytest

from placer.system.worker import Worker


class Gate:
    """Handles items once it is open; `entered` is set when the first one is handled."""

    def __init__(self, wrong=None):
        self.handled, self.wrong = [], wrong
        self.entered, self.open = threading.Event(), threading.Event()

    def __call__(self, item):
        self.entered.set()
        assert self.open.wait(60)
        if item == self.wrong:
            raise ValueError(f"wrong {item}")
        self.handled.append(item)


def test_items_are_handled_in_order_and_the_context_waits_for_all():
    gate = Gate()
    gate.open.set()
    with Worker(gate, "placer test", bound=2) as worker:
        for item in range(100):
            worker.put(item)
        worker.wait_until_idle()
        assert worker.is_idle
        assert gate.handled == [*range(100)]
        worker.put(100)
    assert gate.handled == [*range(101)]
    assert worker.join()
    assert not worker.offer(101)


def test_a_producer_waits_for_room_unless_it_must_not_wait():
    gate = Gate()
    worker = Worker(gate, "placer test", bound=2)
    for item in range(2):
        worker.put(item)
    with worker.changed:  # nothing makes room meanwhile
        assert worker.offer(2, waits=False)
    producer = threading.Thread(target=worker.put, args=(3,), daemon=True)
    producer.start()
    worker.start()
    assert gate.entered.wait(60)
    assert producer.is_alive()
    worker.discard(lambda item: item == 2)
    gate.open.set()
    producer.join(60)
    assert worker.close(60)
    assert gate.handled == [0, 1, 3]


def test_the_first_error_is_raised_where_the_owner_waits_next():
    gate = Gate(wrong=1)
    ended = []
    worker = Worker(gate, "placer test", bound=4, at_end=lambda: ended.append(True))
    worker.start()
    for item in range(4):
        worker.put(item)
    blocked = []

    def put():
        with pytest.raises(ValueError, match="wrong 1"):
            worker.put(4)
        blocked.append(True)

    producer = threading.Thread(target=put, daemon=True)
    producer.start()
    gate.open.set()
    producer.join(60)
    assert worker.join(60)
    assert blocked == ended == [True]
    assert gate.handled == [0]
    assert not worker.offer(5)
    for call in (worker.check, worker.wait_until_idle, worker.close):
        with pytest.raises(ValueError, match="wrong 1"):
            call()


def test_items_that_wait_are_dropped_after_a_failure_of_the_owner():
    gate = Gate()
    worker = Worker(gate, "placer test")

    def fail():
        with worker:
            worker.put(0)
            assert gate.entered.wait(60)
            worker.put(1)
            threading.Timer(0, gate.open.set).start()
            with worker.changed:
                raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert gate.handled[:1] == [0]
    assert worker.is_idle
    assert worker.join(0)


def test_what_is_dropped_is_returned_and_a_join_has_a_limit():
    gate = Gate()
    worker = Worker(gate, "placer test")
    worker.start()
    worker.put(0)
    assert gate.entered.wait(60)
    worker.put(1)
    assert worker.drop() == [1]
    assert not worker.join(0)
    gate.open.set()
    assert worker.join(60)
    assert gate.handled == [0]
