"""Places nest by field, and the inner one wins."""

from __future__ import annotations

import pytest

from placer.place import Place

MERGED = [
    # outer, inner, merged
    ("/node:worker/gpu", "/cpu", "/node:worker/cpu"),
    ("/node:worker", "/gpu:1", "/node:worker/gpu:1"),
    ("/gpu:1", "/node:worker", "/node:worker/gpu:1"),
    ("/node:worker:1/gpu:2", "/node:ps", "/node:ps/gpu:2"),  # a new name drops ids
    ("/node:worker:1/gpu:2", "/cpu", "/node:worker:1/cpu"),  # a new kind drops ids
    ("/node:worker:1/gpu:2", "/node:worker", "/node:worker:1/gpu:2"),
    ("/node:worker:1/gpu:2", "/gpu", "/node:worker:1/gpu:2"),
    ("/node:worker:1/gpu:2", "/node:worker:0", "/node:worker:0/gpu:2"),
    ("/node:worker:1/gpu:2", "/gpu:*", "/node:worker:1/gpu:*"),
    ("/node:worker:1/gpu:2", "/node:ps:3/cpu:0", "/node:ps:3/cpu:0"),
]


@pytest.mark.parametrize(("outer", "inner", "merged"), MERGED)
def test_the_inner_place_wins_field_by_field(
    outer: str, inner: str, merged: str
) -> None:
    place = Place.merge(Place.parse(outer), Place.parse(inner))
    assert place == Place.parse(merged)


def test_an_inner_none_clears() -> None:
    assert Place.merge(Place.parse("/node:worker:1/gpu:2"), None) == Place()
    assert Place.merge(None, None) == Place()


def test_an_outer_none_and_the_empty_place_change_nothing() -> None:
    place = Place.parse("/node:worker:1/gpu")
    assert Place.merge(None, place) == place
    assert Place.merge(Place(), place) == place
    assert Place.merge(place, Place()) == place


def test_nesting_goes_from_the_outside_in() -> None:
    """A name that is replaced and used again has lost its ids, so the order matters."""
    first, other, back = map(
        Place.parse, ("/node:worker:1", "/node:ps", "/node:worker")
    )
    inwards = Place.merge(Place.merge(first, other), back)
    outwards = Place.merge(first, Place.merge(other, back))
    assert str(inwards) == "/node:worker"
    assert str(outwards) == "/node:worker:1"


def test_threads_are_kept_so_that_a_cluster_refuses_them() -> None:
    inner = Place("worker", threads=(0,))
    assert Place.merge(Place("worker", (1,)), inner).threads == (0,)
    assert Place.merge(inner, Place(device="cpu")).threads == (0,)
