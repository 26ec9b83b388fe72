"""Guards: nested places of ops, in one thread and one task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from support.builds import error_parts

from placer.errors import PlaceError
from placer.place import Place
from placer.place.guard import (
    OpCall,
    device_guard,
    merge_entries,
    place_guard,
    places_around,
)

FC = OpCall("fc", "h", ("x",), {"size": 8})


def here(op: OpCall = FC) -> str | None:
    """Return the place of an op that is called now."""
    place = merge_entries(places_around(op))
    return None if place is None else str(place)


def test_an_op_outside_of_guards_has_no_place() -> None:
    assert here() is None


def test_guards_nest_as_places_merge() -> None:
    with place_guard("/node:worker:1/gpu:2"):
        assert here() == "/node:worker:1/gpu:2"
        with place_guard("/cpu"):
            assert here() == "/node:worker:1/cpu"
        with place_guard("/node:ps"):
            assert here() == "/node:ps/gpu:2"
            with place_guard(
                "/node:worker"
            ):  # merges from the outside in, so the id is dropped
                assert here() == "/node:worker/gpu:2"
        with place_guard(Place.parse("/gpu:*")):
            assert here() == "/node:worker:1/gpu:*"
        assert here() == "/node:worker:1/gpu:2"
    assert here() is None


def test_an_empty_guard_changes_nothing() -> None:
    with place_guard(""):
        assert here() is None
        with place_guard("/node:worker"), place_guard(""), place_guard(Place()):
            assert here() == "/node:worker"


def test_none_clears_the_open_guards() -> None:
    with place_guard("/node:worker/gpu"), place_guard(None):
        assert here() is None
        with place_guard("/cpu"):
            assert here() == "/cpu"


def test_a_device_guard_sets_only_the_device() -> None:
    with place_guard("/node:worker:1"):
        with device_guard("gpu:0"):
            assert here() == "/node:worker:1/gpu:0"
            with device_guard(None):
                assert here() == "/node:worker:1"
        with device_guard("cpu"):
            assert here() == "/node:worker:1/cpu"
    with device_guard("gpu"):
        assert here() == "/gpu"
        with device_guard(None):
            assert here() is None
    with device_guard(None):
        assert here() is None


def test_a_function_returns_the_place_of_each_op() -> None:
    def by_size(op: OpCall) -> str | Place | None:
        if op.kind != "fc":
            return None
        return "/gpu:1" if op.attrs["size"] > 4 else Place.parse("/node:ps")

    small = OpCall("fc", "s", ("h",), {"size": 2})
    with place_guard("/node:worker/gpu:0"):
        with place_guard(by_size):
            assert here(FC) == "/node:worker/gpu:1"
            assert here(small) == "/node:ps/gpu:0"
            assert here(OpCall("relu", "r", ("h",))) == "/node:worker/gpu:0"
            with place_guard("/cpu"):
                assert here(small) == "/node:ps/cpu"
        assert here(small) == "/node:worker/gpu:0"


def test_an_exception_closes_a_guard() -> None:
    with place_guard("/node:worker"):
        with pytest.raises(ZeroDivisionError), place_guard("/gpu:1"):
            _ = 1 / 0
        assert here() == "/node:worker"
    assert here() is None


def test_a_guard_can_be_entered_again_and_inside_itself() -> None:
    guard = place_guard("/node:worker:1")
    for _ in range(2):
        with guard, place_guard("/node:ps"), guard:
            assert here() == "/node:worker:1"
        assert here() is None


def test_a_guard_decorates_a_function() -> None:
    @place_guard("/node:worker:1")
    def inside() -> str | None:
        return here()

    assert [inside(), inside(), here()] == ["/node:worker:1"] * 2 + [None]


def test_a_generator_that_is_closed_late_closes_only_its_own_guard() -> None:
    def opened() -> Iterator[None]:
        with place_guard("/node:worker:1"):
            yield

    with place_guard("/node:ps"):
        generator = opened()
        next(generator)
        with place_guard("/node:worker/gpu:1"):
            generator.close()
            assert here() == "/node:worker/gpu:1"
        assert here() == "/node:ps"
    assert here() is None


def test_a_guard_belongs_to_one_thread() -> None:
    places: list[str | None] = []

    def other() -> None:
        places.append(here())
        with place_guard("/node:ps"):
            opened.set()
            left.wait()
            places.append(here())

    opened, left = threading.Event(), threading.Event()
    with place_guard("/node:worker"):
        thread = threading.Thread(target=other)
        thread.start()
        opened.wait()
        assert here() == "/node:worker"
        left.set()
        thread.join()
    assert places == [None, "/node:ps"]


def test_a_guard_belongs_to_one_task() -> None:
    async def build(place: str, mine: asyncio.Event, others: asyncio.Event) -> None:
        with place_guard(place):
            mine.set()
            await others.wait()  # the guard of the other task is open now
            assert here() == place
        assert here() is None

    async def both() -> None:
        first, second = asyncio.Event(), asyncio.Event()
        await asyncio.gather(
            build("/node:worker", first, second), build("/node:ps", second, first)
        )

    asyncio.run(both())


def test_an_invalid_place_points_into_the_line_of_the_caller() -> None:
    with pytest.raises(PlaceError) as caught:
        place_guard("/node:worker/gpu:3-1")
    assert error_parts(caught.value, __file__) == (
        "the range 3-1 is descending",
        "3-1",
        "did you mean '1-3'?",
    )


@pytest.mark.parametrize(
    "device", ["/gpu:0", "/node:worker", "node:worker:0", "job:ps", "", 1]
)
def test_a_device_guard_accepts_only_devices(device: str) -> None:
    with pytest.raises(PlaceError) as caught:
        device_guard(device)
    assert (
        caught.value.message
        == f"a device must be a string such as gpu:0, not {device!r}"
    )
    assert caught.value.hint == "use place_guard for places such as /node:worker/gpu:0"


def test_a_guard_accepts_no_other_values() -> None:
    with pytest.raises(PlaceError) as caught:
        place_guard(3)  # type: ignore[arg-type]
    assert caught.value.message == "a guard needs a place or None, not 3"


def test_a_function_must_return_a_place() -> None:
    with place_guard(lambda op: 7), pytest.raises(PlaceError) as caught:  # type: ignore[arg-type,return-value]
        here()
    assert (
        caught.value.message == "a guard's function must return a place or None, not 7"
    )
    span = caught.value.span
    assert span is not None
    assert "place_guard(lambda op: 7)" in span.text
    with place_guard(lambda op: "/gpu:x"), pytest.raises(PlaceError, match="not ids"):
        here()
