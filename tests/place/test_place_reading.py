"""Place strings are parsed and printed, and mistakes are reported at their position."""

from __future__ import annotations

import subprocess
import sys

import pytest

from placer.errors import PlaceError, Span
from placer.place import Place
from placer.place.ids import MAX_ID
from placer.place.read import MAX_LENGTH

READ = [
    ("/node:worker/gpu:0-7", Place("worker", None, "gpu", tuple(range(8)))),
    ("/node:ps/cpu", Place("ps", None, "cpu")),
    ("/node:worker:1/gpu:2", Place("worker", (1,), "gpu", (2,))),
    ("/node:worker:0,2-3", Place("worker", (0, 2, 3))),
    ("/node:worker:*/cpu:*", Place("worker", "*", "cpu", "*")),
    ("/gpu:1", Place(device="gpu", device_ids=(1,))),
    ("/node:worker", Place("worker")),
    ("/node:node/nodes", Place("node", None, "nodes")),
    ("/node:a_1/b_2:0", Place("a_1", None, "b_2", (0,))),
    (f"/gpu:{MAX_ID}", Place(device="gpu", device_ids=(MAX_ID,))),
]

PRINTED = [
    ("/gpu:0,1,2,5", "/gpu:0-2,5"),
    ("/gpu:3-3", "/gpu:3"),
    ("/gpu:5,0-2,4", "/gpu:0-2,4-5"),
    ("/cpu/node:worker:1", "/node:worker:1/cpu"),
    ("/job:ps/task:0/device:CPU:0", "/node:ps:0/cpu:0"),
    ("/job:ps/replica:0/task:1/device:GPU:2", "/node:ps:1/gpu:2"),
    ("/job:worker/replica:0", "/node:worker"),
    ("/job:worker/task:*/device:GPU:*", "/node:worker:*/gpu:*"),
    ("/device:XLA_GPU:0", "/xla_gpu:0"),
    ("/GPU:0", "/gpu:0"),
]

# text, first and last column from 1, part of the message, part of the hint
WRONG = [
    ("/nod:worker", 1, 5, "unknown part '/nod:'", "did you mean '/node:'?"),
    ("/nodes:worker/cpu", 1, 7, "unknown part '/nodes:'", "did you mean '/node:'?"),
    ("/cpu/jobs:ps", 5, 10, "unknown part '/jobs:'", "did you mean '/job:'?"),
    ("/Node:worker", 1, 5, "unknown part '/Node'", "did you mean '/node:'?"),
    ("/xyzzy:worker", 1, 7, "unknown part '/xyzzy:'", "write for example"),
    ("/node", 1, 5, "'/node' must be followed by ':' and a name", "write for"),
    ("/node/cpu", 1, 5, "'/node' must be followed by ':' and a name", "write for"),
    ("/node:", 6, 6, "the name of the node is missing", "write for example"),
    ("/node:/cpu", 6, 6, "the name of the node is missing", "write for example"),
    ("/node:0", 7, 7, "'0' is not a valid name of a node", "a name is"),
    ("/node:Worker/cpu", 7, 12, "'Worker' is not a valid name of a node", "'worker'?"),
    ("/node:wOrker", 7, 12, "'wOrker' is not a valid name of a node", "'worker'?"),
    ("/node:worker-1", 13, 13, "unexpected '-'", "write for example"),
    (
        "/node:worker/Gpu",
        14,
        16,
        "'Gpu' is not a valid name of a device kind",
        "'gpu'?",
    ),
    ("/0gpu", 2, 5, "'0gpu' is not a valid name of a device kind", "a name is"),
    ("/node:worker/", 13, 13, "a place cannot end with '/'", "'/node:worker'?"),
    ("/", 1, 1, "a place cannot end with '/'", "write for example"),
    ("//cpu", 1, 1, "a part is missing after '/'", "write for example"),
    ("/node:worker//cpu", 13, 13, "a part is missing after '/'", "write for"),
    ("worker:0", 1, 1, "a place starts with '/'", "'/node:worker:0'?"),
    ("gpu:0", 1, 1, "a place starts with '/'", "did you mean '/gpu:0'?"),
    ("node:worker", 1, 1, "a place starts with '/'", "'/node:worker'?"),
    (":0", 1, 1, "a place starts with '/'", "write for example"),
    ("/gpu:", 5, 5, "an id is missing after ':'", "ids are"),
    ("/node:worker:/cpu", 13, 13, "an id is missing after ':'", "ids are"),
    ("/gpu:0,", 7, 7, "an id is missing after ','", "ids are"),
    ("/gpu:0,,1", 7, 7, "an id is missing after ','", "ids are"),
    ("/gpu:,1", 5, 5, "an id is missing after ':'", "ids are"),
    ("/gpu:0-", 7, 7, "the end of the range is missing after '-'", "ids are"),
    ("/gpu:-1", 6, 6, "an id cannot be negative", "ids are"),
    ("/gpu:0--1", 8, 8, "an id cannot be negative", "ids are"),
    ("/gpu:all", 6, 8, "'all' is not an id", "ids are"),
    ("/gpu:1x", 6, 7, "'1x' is not an id", "ids are"),
    ("/gpu:07", 6, 7, "an id cannot have leading zeros", "did you mean '7'?"),
    ("/gpu:*,1", 7, 7, "'*' means all ids and cannot be combined with other ids", None),
    ("/gpu:1,*", 8, 8, "'*' means all ids and cannot be combined with other ids", None),
    ("/node:worker:0-1-2", 17, 17, "unexpected '-'", "write for example"),
    ("/node:worker:2:3/cpu", 15, 15, "unexpected ':'", "write for example"),
    (
        "/node:ps:0/gpu:7-0",
        16,
        18,
        "the range 7-0 is descending",
        "did you mean '0-7'?",
    ),
    ("/gpu:1,1", 8, 8, "id 1 is given twice", None),
    ("/gpu:0-3,2-5", 10, 12, "ids 2-3 are given twice", None),
    ("/gpu:0-999999999", 8, 16, "the id is too large; 99999 is the largest", None),
    ("/gpu:" + "9" * 900, 6, 905, "the id is too large; 99999 is the largest", None),
    ("/node:worker/node:ps", 19, 20, "the node is given twice", "one node"),
    ("/job:worker/node:worker", 18, 23, "the node is given twice", "one node"),
    ("/cpu/gpu:1", 6, 8, "the device is given twice", "one device"),
    ("/gpu:0/gpu:1", 8, 10, "the device is given twice", "/gpu:0,2-3"),
    ("/worker/cpu", 2, 7, "'worker' is read as a device", "'/node:worker/cpu'?"),
    ("/gpu:0/ps:1", 8, 9, "'ps' is read as a device", "'/gpu:0/node:ps:1'?"),
    ("/device:ps/cpu", 9, 10, "'ps' is read as a device", "'/node:ps/cpu'?"),
    ("/a/b", 4, 4, "the device is given twice", "one device"),
    ("/task:0", 1, 6, "'/task:' is allowed only once, after '/job:NAME'", "as in"),
    (
        "/node:worker/task:0",
        13,
        18,
        "'/task:' is allowed only once, after '/job:NAME'",
        "as in",
    ),
    ("/job:ps/replica:", 8, 16, "the only replica is 0: '/replica:0'", None),
    ("/job:ps/replica:1", 8, 17, "the only replica is 0: '/replica:0'", None),
    ("/job:ps/replica:01", 17, 18, "the only replica is 0: '/replica:0'", None),
    ("/job:ps/task:0-1", 15, 15, "unexpected '-'", "a task is one number or *"),
    (
        "/node:worker /cpu",
        13,
        13,
        "a place cannot contain whitespace",
        "'/node:worker/cpu'?",
    ),
    (" /cpu", 1, 1, "a place cannot contain whitespace", "did you mean '/cpu'?"),
    ("/cpu\n", 5, 5, "a place cannot contain whitespace", "did you mean '/cpu'?"),
    ("/gpu:\N{FULLWIDTH DIGIT ONE}", 6, 6, "a place cannot contain", "write"),
    ("/gpu:\N{ARABIC-INDIC DIGIT ONE}", 6, 6, "a place cannot contain", "write"),
    ("/gp\0u", 4, 4, r"a place cannot contain '\x00'", "write for example"),
    ("/node:worker:(1)", 14, 14, "a place cannot contain '('", "write for"),
]


@pytest.mark.parametrize(("text", "place"), READ)
def test_a_place_is_parsed_to_its_fields_and_printed_unchanged(
    text: str, place: Place
) -> None:
    assert Place.parse(text) == place
    assert str(place) == text


@pytest.mark.parametrize(("text", "printed"), PRINTED)
def test_other_spellings_are_printed_in_one_form(text: str, printed: str) -> None:
    assert str(Place.parse(text)) == printed


@pytest.mark.parametrize(("text", "first", "last", "message", "hint"), WRONG)
def test_a_mistake_points_at_its_column_and_has_a_hint(
    text: str, first: int, last: int, message: str, hint: str | None
) -> None:
    with pytest.raises(PlaceError) as caught:
        Place.parse(text)
    error = caught.value
    assert error.span is not None
    assert (error.span.file, error.span.line) == ("<place>", 1)
    columns = (error.span.column, error.span.column + error.span.length - 1)
    assert columns == (first, last)
    assert message in error.message
    assert (error.hint is None) if hint is None else (hint in (error.hint or ""))


def test_the_whole_message_of_a_mistake() -> None:
    with pytest.raises(PlaceError) as caught:
        Place.parse("/node:worker/gpu:3-1")
    assert str(caught.value) == (
        "<place>:1:18: the range 3-1 is descending\n"
        "  1 | /node:worker/gpu:3-1\n"
        "    |                  ^^^\n"
        "  hint: did you mean '1-3'?"
    )


def test_the_empty_string_is_a_mistake_but_the_empty_place_prints_it() -> None:
    with pytest.raises(PlaceError, match="the place is empty"):
        Place.parse("")
    assert str(Place()) == ""


def test_a_long_place_is_refused_and_not_printed_whole() -> None:
    listed = ",".join(str(i) for i in range(0, 2 * MAX_LENGTH, 2))
    with pytest.raises(PlaceError, match="characters, more than") as caught:
        Place.parse(f"/gpu:{listed}")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("quote", ["", '"', "'"])
def test_in_a_file_the_caret_is_inside_the_string(quote: str) -> None:
    line = f"  place: {quote}/nod:worker{quote}  # where"
    written = len("/nod:worker") + 2 * len(quote)
    span = Span("model.yaml", 7, line.index(":") + 3, written, line)
    with pytest.raises(PlaceError) as caught:
        Place.parse("/nod:worker", span=span)
    start = line.index("/nod") + 1
    assert caught.value.span == Span("model.yaml", 7, start, len("/nod:"), line)
    assert caught.value.hint == "did you mean '/node:'?"


def test_an_error_in_a_string_with_escapes_points_at_all_of_it() -> None:
    line = r'place: "/nod\u003aworker"'
    span = Span("model.yaml", 1, 8, len(line) - 7, line)
    with pytest.raises(PlaceError) as caught:
        Place.parse("/nod:worker", span=span)
    assert caught.value.span == span


@pytest.mark.parametrize(
    "fields",
    [
        ("Worker",),
        ("wor ker",),
        ("worker\n",),
        ("",),
        (None, (0,)),
        ("worker", ()),
        ("worker", (1, 0)),
        ("worker", (1, 1)),
        ("worker", (-1, 0)),
        ("worker", (0, MAX_ID + 1)),
        ("worker", [0, 1]),
        ("worker", None, None, "*"),
        ("worker", None, "node"),
        ("worker", None, "GPU"),
    ],
)
def test_a_place_can_only_have_fields_that_a_string_can_express(
    fields: tuple[object, ...],
) -> None:
    with pytest.raises(PlaceError):
        Place(*fields)  # type: ignore[arg-type]  # the test passes wrong fields


def test_importing_places_imports_neither_lark_nor_numpy() -> None:
    heavy = ("lark", "numpy", "jax", "yaml")
    check = f"import sys, placer.place; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
