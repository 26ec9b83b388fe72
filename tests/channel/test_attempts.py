"""Attempts of a run: who may connect to whom after failures and restarts."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from support.free_addresses import eventually, exchange_messages, free_addresses
from support.raw_node import RawNode

from placer.channel.frames import Hello
from placer.channel.incarnations import Incarnations
from placer.channel.interface import Aborted, Cause
from placer.channel.session import Session


@pytest.fixture
def opened(
    make: Any, transport: str, addresses: dict[str, str]
) -> Iterator[tuple[Any, Any]]:
    """Functions that open a session of a:0, and connect as b:0; closed at the end."""
    with ExitStack() as sessions:

        def session(**options: Any) -> Session:
            session: Session = make("a:0", addresses, "test job", **options)
            session.continues = True
            sessions.callback(session.close)
            return session

        key = make.keywords.get("key")
        yield session, lambda: RawNode(transport, addresses, key)


def answer(node: RawNode, **fields: Any) -> Hello:
    """Say HELLO; return the one that answers it."""
    with node:
        node.send(node.hello(node.welcome(), **fields))
        hello = node.read()
    assert isinstance(hello, Hello)
    return hello


def test_a_larger_attempt_ends_the_present_one(opened):
    session, connect = opened
    a = session(attempt=2)
    hello = answer(connect(), attempt=5)
    assert (hello.refusal, hello.identity.attempt) == ("attempt 5 has begun", 2)
    assert str(a.aborted) == "b:0: seen from a:0: attempt 5 has begun"
    assert answer(connect(), attempt=4).refusal == "attempt 4 has begun"
    assert a.newer_attempt == 5


def test_a_smaller_attempt_is_refused_and_learns_the_present_one(opened):
    session, connect = opened
    a = session(attempt=5)
    hello = answer(connect(), attempt=2)
    assert (hello.refusal, hello.identity.attempt) == ("attempt 5 has begun", 5)
    assert (a.aborted, a.newer_attempt) == (None, 0)
    with connect() as node:
        node.join(attempt=5)
        a.join()


def test_an_older_process_of_a_node_is_refused_in_every_attempt(opened):
    session, connect = opened
    incarnations = Incarnations(own=3)
    first = session(incarnations=incarnations)
    with connect() as node:
        assert node.join(incarnation=8).known == 0
        first.join()
    first.abort(Cause("a:0", "", "failed"))
    first.close()
    second = session(incarnations=incarnations, attempt=2)
    hello = answer(connect(), incarnation=7, attempt=3)
    assert hello.refusal.startswith("another process is this node; it runs at ")
    assert (hello.known, hello.incarnation) == (8, 3)
    assert (second.aborted, second.newer_attempt) == (None, 0)


def test_a_process_whose_node_has_moved_is_refused_before_the_next_one_comes(opened):
    """Its machine was cut off, and returns early."""
    session, connect = opened
    incarnations = Incarnations(own=3)
    first = session(incarnations=incarnations)
    with connect() as node:
        node.join(incarnation=8)
        first.join()
        first.move("b:0", "10.0.0.9:4711")
        assert first.aborted is None
        incarnations.retire("b:0", "10.0.0.9:4711")
        first.move("b:0", "10.0.0.9:4711", replaced=True)
        assert str(first.aborted) == "b:0: seen from a:0: moved to 10.0.0.9:4711"
    first.close()
    second = session(incarnations=incarnations, attempt=2)
    hello = answer(connect(), incarnation=8, attempt=2)
    assert hello.refusal.endswith("; it runs at 10.0.0.9:4711")
    assert hello.known == 9  # so the process ends
    with connect() as node:
        node.join(incarnation=10, attempt=2)
        second.join()


def test_a_process_that_was_replaced_ends(opened):
    session, connect = opened
    a = session(incarnations=Incarnations(own=3))
    with connect() as node:
        node.join()
        a.join()
        with connect() as other:
            hello = answer(other, known=4)
        assert hello.refusal == "another process is this node"
        assert a.is_replaced
        assert str(a.aborted) == "a:0: seen from b:0: another process is this node"


def test_a_new_process_whose_clock_is_behind_takes_a_larger_number(opened):
    session, connect = opened
    a = session(incarnations=Incarnations(own=3))
    with connect() as node:
        assert node.join(known=8).incarnation > 8
        a.join()
    assert not a.is_replaced


def test_processes_go_on_in_the_next_attempt(make, spawn):
    """Sessions close and open within milliseconds, at the same addresses."""
    addresses = free_addresses(["a:0", "b:0", "c:0"])
    incarnations = {node: Incarnations() for node in addresses}
    for attempt in range(1, 6):
        sessions = {
            node: make(
                node,
                addresses,
                "job",
                attempt=attempt,
                incarnations=incarnations[node],
                deadline=10.0,
                join_timeout=10.0,
            )
            for node in addresses
        }
        for session in sessions.values():
            session.continues = True
        for joining in [spawn(session.join) for session in sessions.values()]:
            joining.result(10)
        exchange_messages({n: sessions[n] for n in ("a:0", "b:0")}, attempt)
        _fail(sessions.values(), Cause("c:0", f"step {attempt}", "failed"))
        for closing in [spawn(session.close) for session in sessions.values()]:
            closing.result(10)


def _fail(sessions: Collection[Session], cause: Cause) -> None:
    """Let the last session fail; wait until all know the cause."""
    [*sessions][-1].abort(cause)
    eventually(lambda: all(session.aborted == cause for session in sessions))


@pytest.mark.parametrize("is_final", [False, True])
def test_only_a_final_failure_waits_for_absent_peers(make, monkeypatch, is_final):
    waited = []
    a = make("a:0", free_addresses(["a:0", "b:0"]), "job")
    a.continues = True
    monkeypatch.setattr(a.mailbox, "wait_until", lambda *_, **__: waited.append(1))
    a.abort(Cause("a:0", "", "failed", is_final=is_final))
    a.close()
    assert bool(waited) == is_final


def test_a_failure_in_a_new_attempt_names_who_has_begun_it(make, spawn):
    """A node that has not noticed a failure learns of the next attempt."""
    addresses = free_addresses(["a:0", "b:0"])
    late, early = (
        make("a:0", addresses, "job"),
        make("b:0", addresses, "job", attempt=2),
    )
    late.continues = early.continues = True
    with pytest.raises(Aborted, match="b:0: seen from a:0: attempt 2 has begun"):
        late.join()
    late.close()
    again = make("a:0", addresses, "job", attempt=late.newer_attempt)
    joining = spawn(early.join)
    again.join()
    joining.result(10)
    assert (late.newer_attempt, early.aborted) == (2, None)
    exchange_messages({"a:0": again, "b:0": early}, 1)
    for closing in [spawn(each.close) for each in (again, early)]:
        closing.result(10)
