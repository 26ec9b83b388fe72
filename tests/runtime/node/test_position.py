"""The position of a node: which rows it is at, and which messages."""

import pytest

from placer.channel.interface import Key
from placer.place.layouts.partition import RowShard
from placer.plan.plan import Edge
from placer.runtime.node.position import Position

SECOND_OF_TWO = RowShard((1,), 2)


def edge(*, once: bool) -> Edge:
    return Edge(3, ("a:0",), ("b:0",), (), 0, once)


def test_the_rows_of_a_short_batch_are_divided_evenly() -> None:
    position = Position(parts=3)
    position.enter_step(1, 1, 0, count=7)
    found = []
    for position.microbatch in (0, 1, 2, None):
        found.append((position.row_range, position.rows))
    assert found == [((0, 3), 3), ((3, 5), 2), ((5, 7), 2), ((0, 7), 7)]


def test_the_rows_of_a_node_are_those_of_the_microbatch_or_of_the_step() -> None:
    position = Position(parts=2)
    position.enter_step(1, 1, 0, count=8)
    assert position.own_ranges(SECOND_OF_TWO) == [(4, 8)]
    position.microbatch = 1
    assert position.own_ranges(SECOND_OF_TWO) == [(6, 8)]
    assert position.own_rows(SECOND_OF_TWO) == 4


@pytest.mark.parametrize("once", [False, True])
def test_a_message_has_the_microbatch_or_the_batch_of_an_evaluation(once: bool) -> None:
    position = Position(parts=3)
    position.enter_step(5, 2, 4, count=6)
    keys = []
    for position.microbatch in (None, 0, 2):
        keys.append(position.key(edge(once=once)))
    position.microbatch = None
    position.enter_evaluation(5)
    position.enter_batch(7, 6)
    keys.append(position.key(edge(once=once)))
    parts = (0, 0, 0, 0) if once else (0, 0, 2, 7)
    assert keys == [Key(3, 5, part) for part in parts]


def test_a_step_after_an_evaluation_continues_the_training() -> None:
    position = Position(last_step=6)
    position.enter_step(5, 2, 4, count=6)
    assert (position.where, position.is_last) == ("step 5", False)
    position.enter_evaluation(5)
    position.enter_batch(1, 3)
    assert position.where == "evaluation after step 5"
    assert (position.epoch, position.batch, position.count) == (1, 1, 3)
    position.enter_step(6, 2, 5, count=6)
    assert not position.evaluation
    assert (position.epoch, position.batch, position.count) == (2, 5, 6)
    assert position.is_last
