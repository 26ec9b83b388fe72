"""The threads of placer and their locks are watched: mistakes are found."""

import threading

import pytest
from support.watched_threads import climbs, watched_threads

from placer.system.owned_threads import OwnedThreads


def test_locks_that_threads_take_in_two_orders_are_found():
    def run():
        with watched_threads() as order:
            first = OwnedThreads()
            second = OwnedThreads()
            with first.changed, second.changed, second.changed:
                pass
            assert not order.cycle()
            with second.changed, first.changed:
                second.changed.notify_all()

    with pytest.raises(pytest.fail.Exception, match="in more than one order"):
        run()


def test_a_lock_that_is_waited_for_is_not_held():
    with watched_threads() as order:
        first = OwnedThreads()
        second = OwnedThreads()
        with first.changed, second.changed:
            second.changed.wait(0)
            first.changed.notify_all()
        assert len(order.edges) == 1
        with second.changed:
            assert second.changed.wait_for(lambda: True)
        assert not order.held


@pytest.mark.parametrize(
    ("held", "taken", "is_wrong"),
    [
        ("placer.runtime.control.pace:1", "placer.channel.mailbox:1", False),
        ("placer.channel.mailbox:1", "placer.runtime.control.pace:1", True),
        ("placer.runtime.metrics.stream:1", "placer.runtime.control.pace:1", False),
        ("placer.runtime.control.pace:1", "placer.runtime.metrics.stream:1", True),
        ("placer.channel.mailbox:1", "placer.channel.session:1", False),
        ("placer.tables.dense:1", "placer.channel.session:1", False),
        (
            "placer.runtime.control.pace:1",
            "placer.runtime.callbacks.event_queue:1",
            False,
        ),
        ("placer.runtime.callbacks.event_queue:1", "placer.channel.mailbox:1", True),
    ],
)
def test_locks_are_taken_from_higher_packages_to_lower_ones(held, taken, is_wrong):
    assert climbs(held, taken) is is_wrong


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("placer pace", "no owner has joined"),
        ("placer orders", None),
        ("placer other of worker:0", "not in the table"),
        ("placer exchange with ps:0, ps:1", "no owner has joined"),
    ],
)
def test_threads_that_are_left_or_unknown_are_found(name, mistake):
    goes_on = threading.Event()
    threads = OwnedThreads()

    def run():
        with watched_threads():
            threads.begin(goes_on.wait, name)

    try:
        if mistake is None:
            run()
        else:
            with pytest.raises(AssertionError, match=mistake):
                run()
    finally:
        goes_on.set()
        threads.join(60)
