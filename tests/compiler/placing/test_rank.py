"""The order of placements whose predicted steps are close."""

from __future__ import annotations

from placer.compiler.placing.rank import Figures, rank


def test_within_10_percent_fewer_nodes_win_then_cuts_memory_bytes_and_names() -> None:
    best = Figures(1_000, 2, 1, 5, 5, ("a", "b"))
    equal = [
        Figures(1_100, 1, 0, 9, 9, ("z",)),
        Figures(1_090, 2, 0, 9, 9, ("z",)),
        Figures(1_080, 2, 1, 4, 9, ("z",)),
        Figures(1_070, 2, 1, 5, 4, ("z",)),
        best,
        Figures(1_000, 2, 1, 5, 5, ("a", "c")),
    ]
    assert rank(reversed(equal), lambda each: each) == equal


def test_a_longer_step_is_equal_to_the_best_of_its_own() -> None:
    first = Figures(1_000, 3, 0, 0, 0, ())
    others = [Figures(1_150, 1, 0, 0, 0, ()), Figures(1_101, 2, 0, 0, 0, ())]
    assert rank([*others, first], lambda each: each) == [first, *others]
