"""Guards: places that nest around ops, in one thread and one task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from support.builds import told

from placer.errors import PlaceError
from placer.place import Place
from placer.place.guard import Called, device_guard, merged, open_places, place_guard

FC = Called("fc", "h", ("x",), {"size": 8})


def here(op: Called = FC) -> str | None:
    """The place of an op that is made now."""
    place = merged(open_places(op))
    return None if place is None else str(place)


def test_without_a_guard_nothing_is_said() -> None:
    assert here() is None


def test_guards_nest_as_places_merge() -> None:
    with place_guard("/node:worker:1/gpu:2"):
        assert here() == "/node:worker:1/gpu:2"
        with place_guard("/cpu"):
            assert here() == "/node:worker:1/cpu"
        with place_guard("/node:ps"):
            assert here() == "/node:ps/gpu:2"
            with place_guard("/node:worker"):  # from the outside in: the id is gone
                assert here() == "/node:worker/gpu:2"
        with place_guard(Place.parse("/gpu:*")):
            assert here() == "/node:worker:1/gpu:*"
        assert here() == "/node:worker:1/gpu:2"
    assert here() is None


def test_a_guard_of_no_text_changes_nothing() -> None:
    with place_guard(""):
        assert here() is None
        with place_guard("/node:worker"), place_guard(""), place_guard(Place()):
            assert here() == "/node:worker"


def test_none_clears_what_is_open() -> None:
    with place_guard("/node:worker/gpu"), place_guard(None):
        assert here() is None
        with place_guard("/cpu"):
            assert here() == "/cpu"


def test_a_device_guard_says_the_device_alone() -> None:
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


def test_a_function_says_the_place_of_each_op() -> None:
    def by_size(op: Called) -> str | Place | None:
        if op.kind != "fc":
            return None
        return "/gpu:1" if op.attrs["size"] > 4 else Place.parse("/node:ps")

    small = Called("fc", "s", ("h",), {"size": 2})
    with place_guard("/node:worker/gpu:0"):
        with place_guard(by_size):
            assert here(FC) == "/node:worker/gpu:1"
            assert here(small) == "/node:ps/gpu:0"
            assert here(Called("relu", "r", ("h",))) == "/node:worker/gpu:0"
            with place_guard("/cpu"):
                assert here(small) == "/node:ps/cpu"
        assert here(small) == "/node:worker/gpu:0"


def test_a_guard_is_left_by_an_exception_too() -> None:
    with place_guard("/node:worker"):
        with pytest.raises(ZeroDivisionError), place_guard("/gpu:1"):
            _ = 1 / 0
        assert here() == "/node:worker"
    assert here() is None


def test_a_guard_is_opened_again_and_inside_of_itself() -> None:
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


def test_a_generator_that_is_closed_late_leaves_its_own_guard_alone() -> None:
    def opened() -> Iterator[None]:
        with place_guard("/node:worker:1"):
            yield

    with place_guard("/node:ps"):
        held = opened()
        next(held)
        with place_guard("/node:worker/gpu:1"):
            held.close()
            assert here() == "/node:worker/gpu:1"
        assert here() == "/node:ps"
    assert here() is None


def test_a_guard_is_of_one_thread() -> None:
    found: list[str | None] = []

    def other() -> None:
        found.append(here())
        with place_guard("/node:ps"):
            opened.set()
            left.wait()
            found.append(here())

    opened, left = threading.Event(), threading.Event()
    with place_guard("/node:worker"):
        thread = threading.Thread(target=other)
        thread.start()
        opened.wait()
        assert here() == "/node:worker"
        left.set()
        thread.join()
    assert found == [None, "/node:ps"]


def test_a_guard_is_of_one_task() -> None:
    async def build(place: str, mine: asyncio.Event, others: asyncio.Event) -> None:
        with place_guard(place):
            mine.set()
            await others.wait()  # the other one's guard is open now
            assert here() == place
        assert here() is None

    async def both() -> None:
        first, second = asyncio.Event(), asyncio.Event()
        await asyncio.gather(
            build("/node:worker", first, second), build("/node:ps", second, first)
        )

    asyncio.run(both())


def test_a_bad_place_points_into_the_callers_line() -> None:
    with pytest.raises(PlaceError) as caught:
        place_guard("/node:worker/gpu:3-1")
    assert told(caught.value, __file__) == (
        "the range 3-1 falls",
        "3-1",
        "did you mean '1-3'?",
    )


@pytest.mark.parametrize(
    "device", ["/gpu:0", "/node:worker", "node:worker:0", "job:ps", "", 1]
)
def test_a_device_guard_takes_devices_only(device: str) -> None:
    with pytest.raises(PlaceError) as caught:
        device_guard(device)
    assert caught.value.message == f"a device is a text such as gpu:0, not {device!r}"
    assert caught.value.hint == "place_guard takes places such as /node:worker/gpu:0"


def test_a_guard_takes_nothing_else() -> None:
    with pytest.raises(PlaceError) as caught:
        place_guard(3)  # type: ignore[arg-type]
    assert caught.value.message == "a guard takes a place or None, not 3"


def test_what_a_function_returns_is_held_to_be_a_place() -> None:
    with place_guard(lambda op: 7), pytest.raises(PlaceError) as caught:  # type: ignore[arg-type,return-value]
        here()
    assert caught.value.message == "a guard's function returns a place or None, not 7"
    span = caught.value.span
    assert span is not None
    assert "place_guard(lambda op: 7)" in span.text
    with place_guard(lambda op: "/gpu:x"), pytest.raises(PlaceError, match="not ids"):
        here()
