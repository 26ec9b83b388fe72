"""Each exchange is declared once, with methods that a node has and words for people."""

from typing import get_args

import pytest

from placer.compiler.graph.structural_ops import KINDS
from placer.plan.exchanges import EXCHANGES, Answered, ExchangeName
from placer.runtime import Node
from placer.runtime.exchange.worker_messages import MessageKind


def test_the_names_in_plans_are_those_of_the_declarations():
    assert {*EXCHANGES} == {*get_args(ExchangeName)}
    assert {name for name, kind in KINDS.items() if kind.moves} == {*EXCHANGES}


def test_the_messages_that_are_answered_are_those_that_workers_send():
    assert [*get_args(Answered)] == [kind.name.lower() for kind in MessageKind]


@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=lambda each: each.name)
def test_a_node_has_the_methods_of_an_exchange(exchange):
    methods = {exchange.send, exchange.receive}
    if exchange.is_answer:
        methods.add(exchange.send_answer)
    if exchange.handling:
        methods.add(exchange.receive_message)
    assert [name for name in methods if not callable(getattr(Node, name, None))] == []


@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=lambda each: each.name)
def test_an_exchange_has_words_for_programs_and_reports(exchange):
    attrs = {"group": 0, "every": 4, "first": 2, "operands": "w"}
    assert exchange.words.format(**attrs)
    assert exchange.why.format(**attrs).startswith("inserted: ")
    assert exchange.message or not exchange.handling
    assert exchange.answer or not exchange.is_answer
