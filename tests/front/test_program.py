"""Programs: what is called is recorded, and a mistake is told at its line."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from builds import program

from placer import (
    Place,
    Program,
    default_program,
    layers,
    optimizer,
    place_guard,
)
from placer.errors import PlacerError, SpecError, SpecErrors

LINES = Path(__file__).read_text(encoding="utf-8").splitlines()


def told(error: PlacerError) -> tuple[str, str, str | None]:
    """An error's message, what its caret points at in this file, and its hint."""
    span = error.span
    assert span is not None
    assert span.file.endswith("test_program.py")
    assert span.text == LINES[span.line - 1]
    return error.message, span.text[span.column - 1 :][: span.length], error.hint


def test_a_value_says_its_name_its_shape_and_its_dtype() -> None:
    with program():
        image = layers.data("image", "float32[batch, 64]")
        ids = layers.data("ids", shape=[None, 3], dtype="int64")
        h = layers.fc(image, 128)
        loss = layers.reduce_mean(h, name="loss")
    assert (image.name, image.shape, image.dtype) == ("image", ("batch", 64), "float32")
    assert (ids.name, ids.shape, ids.dtype) == ("ids", ("batch", 3), "int32")
    assert (h.name, h.shape) == ("fc_0", ("batch", 128))
    assert (loss.name, loss.shape) == ("loss", ())
    assert repr(h) == "<Variable fc_0: float32[batch, 128]>"


def test_names_count_up_by_kind_and_leave_out_those_that_are_taken() -> None:
    with program():
        x = layers.data("fc_1", "float32[batch, 4]")
        names = [layers.fc(x, 4).name, layers.relu(x).name, layers.fc(x, 4).name]
        names += [layers.fc(x, 4, name="fc_3").name, layers.fc(x, 4).name]
    assert names == ["fc_0", "relu_0", "fc_2", "fc_3", "fc_4"]


def test_operators_make_ops_and_numbers_constants() -> None:
    with program() as made:
        x = layers.data("x", "float32[batch, 4]")
        w = layers.parameter([4, 2], "zeros", name="w")
        last = (((x + x) - 1) * x / 2) @ w
        first = 1 - (2 / (3 * (4 + x)))
    assert last.shape == ("batch", 2)
    assert first.shape == ("batch", 4)
    written = [
        (op["op"], op.get("in", op.get("value"))) for op in made.tree().value["graph"]
    ]
    assert written == [
        ("parameter", None),
        ("add", ["x", "x"]),
        ("constant", 1),
        ("sub", ["add_0", "constant_0"]),
        ("mul", ["sub_0", "x"]),
        ("constant", 2),
        ("div", ["mul_0", "constant_1"]),
        ("matmul", ["div_0", "w"]),
        ("constant", 4),
        ("add", ["constant_2", "x"]),
        ("constant", 3),
        ("mul", ["constant_3", "add_1"]),
        ("constant", 2),
        ("div", ["constant_4", "mul_1"]),
        ("constant", 1),
        ("sub", ["constant_5", "div_1"]),
    ]


def test_a_constant_has_the_dtype_of_what_stands_beside_it() -> None:
    with program():
        x = layers.data("x", "bfloat16[batch]")
        assert (x + 1).dtype == "bfloat16"
    with program(precision="float64"):
        x = layers.data("x", "float32[batch]")
        assert (x + 1).dtype == "float64"


def test_parameters_are_reached_by_what_their_op_calls_them() -> None:
    with program():
        x = layers.data("x", "float32[batch, 4]")
        h = layers.fc(x, 4, name="h")
        again = layers.fc(h, 4, params={"w": h.parameter("w")})
        norm = layers.batch_norm(again)
    assert h.parameter("w").shape == (4, 4)
    assert again.parameter("w").name == "h.w"
    assert again.parameter("b").name == "fc_0.b"
    assert norm.parameter("running_mean").name == "batch_norm_0.running_mean"
    with pytest.raises(SpecError) as caught:
        h.parameter("weight")
    message = "op 'h' has no parameter 'weight'"
    assert told(caught.value) == (message, 'h.parameter("weight")', "one of: b, w")


def test_an_op_goes_to_the_innermost_program() -> None:
    with program(name="outer") as outer:
        x = layers.data("x", "float32[batch, 4]")
        with program(name="inner") as inner:
            layers.relu(layers.data("y", "float32[batch, 4]"))
        layers.relu(x)
    assert [op["in"] for op in outer.tree().value["graph"]] == ["x"]
    assert [op["in"] for op in inner.tree().value["graph"]] == ["y"]


def test_a_program_is_left_by_an_exception_too() -> None:
    with program(name="outer") as outer:
        with pytest.raises(ZeroDivisionError), program():
            _ = 1 / 0
        layers.data("x", "float32[batch, 4]")
    assert list(outer.tree().value["inputs"]) == ["x"]


def test_each_thread_and_each_context_has_its_own_default_program() -> None:
    found: list[Program] = []

    def use() -> None:
        found.append(default_program())
        assert found[-1] is default_program()

    for _ in range(2):
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    assert found[0] is not found[1]


def test_each_task_has_its_own_default_program() -> None:
    async def use() -> Program:
        return default_program()

    async def both() -> tuple[Program, Program]:
        first, second = await asyncio.gather(use(), use())
        return first, second

    first, second = asyncio.run(both())
    assert first is not second


def test_sections_may_come_after_the_ops() -> None:
    made = program(nodes=None)
    with made, place_guard("/node:worker:1"):
        loss = layers.reduce_mean(layers.data("x", "float32[batch]") * 1)
        optimizer.SGD(0.1)
    made.update(nodes={"worker": {"count": 2}}, metrics=[loss], epochs=3)
    assert made.tree().value["train"] == {"epochs": 3, "metrics": ["reduce_mean_0"]}
    with pytest.raises(SpecError) as caught:
        made.update(nodes={"worker": {"count": 1}})
    assert told(caught.value) == (
        "no 'worker:1' in this cluster, which declares worker: 1",
        "worker:1",
        "ids of 'worker' are 0",
    )
    assert made.tree().value["nodes"] == {"worker": {"count": 2}}


def unknown_value() -> None:
    other = program()
    with other:
        x = layers.data("x", "float32[batch, 4]")
    with program():
        layers.relu(x)


def wrong_shape() -> None:
    with program():
        x = layers.data("x", "float32[batch, 4]")
        layers.matmul(x, x)


def wrong_attribute() -> None:
    with program():
        x = layers.data("x", "float32[batch, 4]")
        layers.fc(x, size="8")  # type: ignore[arg-type]


def wrong_choice() -> None:
    with program():
        x = layers.data("x", "float32[batch, 4]")
        layers.fc(x, 8, activation="rleu")  # type: ignore[arg-type]


def no_value() -> None:
    with program():
        layers.relu(3)  # type: ignore[arg-type]


def bad_place() -> None:
    with program():
        x = layers.data("x", "float32[batch, 4]")
        with place_guard("/node:wroker/cpu"):
            layers.relu(x)


def bad_device() -> None:
    with program():
        x = layers.data("x", "float32[batch, 4]")
        with place_guard("/node:ps"), place_guard("/gpu:0"):
            layers.relu(x)


def taken_name() -> None:
    with program():
        x = layers.data("x", "float32[batch, 4]")
        layers.relu(x, name="x")


def bad_name() -> None:
    with program():
        layers.data("x y", "float32[batch, 4]")


def bad_type() -> None:
    with program():
        layers.data("x", "float33[batch, 4]")


def no_type() -> None:
    with program():
        layers.data("x")


def two_types() -> None:
    with program():
        layers.data("x", "float32", shape=[1], dtype="int32")


def metric_as_operand() -> None:
    with program():
        x = layers.data("x", "float32[batch, 4]")
        label = layers.data("label", "int32[batch]")
        layers.relu(layers.accuracy(x, label, name="right"))


def object_as_attribute() -> None:
    with program():
        x = layers.data("x", "float32[batch, 4]")
        layers.reshape(x, shape=[object])  # type: ignore[list-item]


def not_finite() -> None:
    with program():
        x = layers.data("x", "float32[batch, 4]")
        layers.scale(x, factor=float("nan"))


def value_as_key() -> None:
    with program():
        x = layers.data("x", "float32[batch, 4]")
        layers.call("m:f", x, out={3: "float32[]"})  # type: ignore[dict-item]


def key_before_its_value() -> None:
    with program():
        x = layers.data("x", "float32[batch, 4, 8]")
        layers.multi_head_attention(x, value=x, heads=2)


def number_in_matmul() -> None:
    with program():
        x = layers.data("x", "float32[batch, 4]")
        x @ "w"  # type: ignore[operator]


def bad_section() -> None:
    program(node={"worker": {}})


def bad_nodes() -> None:
    program(nodes={"worker": {"cuont": 2}})


MISTAKES: list[tuple[Any, str, str, str | None]] = [
    (
        unknown_value,
        "'x' is a value of another program",
        "layers.relu(x)",
        "write `with program:` around the ops of one program",
    ),
    (
        wrong_shape,
        "op 'matmul_0': matmul contracts 4 of 'a' float32[batch, 4] with batch of 'b'"
        " float32[batch, 4]",
        "layers.matmul(x, x)",
        "transpose_a: true would fit",
    ),
    (
        wrong_attribute,
        "'size' must be a whole number, not the text '8'",
        'layers.fc(x, size="8")',
        None,
    ),
    (
        wrong_choice,
        "op 'fc_0' (fc) cannot have activation: rleu",
        'layers.fc(x, 8, activation="rleu")',
        "did you mean 'relu'?",
    ),
    (
        no_value,
        "'x' of relu must be a value of the program, not 3",
        "layers.relu(3)",
        None,
    ),
    (
        bad_place,
        "no node 'wroker' in this cluster, which declares worker: 2 {cpu: 1, gpu: 4},"
        " ps: 2",
        "wroker",
        "did you mean 'worker'?",
    ),
    (
        bad_device,
        "no device 'gpu' on node 'ps': declared are cpu",
        "gpu",
        "did you mean 'cpu'?",
    ),
    (
        taken_name,
        "'x' is defined twice; first on line ",
        'layers.relu(x, name="x")',
        None,
    ),
    (
        bad_name,
        "'x y' cannot be a name",
        'layers.data("x y", "float32[batch, 4]")',
        "a name is letters, digits and _, at most 64, and does not begin with a digit",
    ),
    (
        bad_type,
        "'float33' is not a dtype",
        'layers.data("x", "float33[batch, 4]")',
        "did you mean 'float32'?",
    ),
    (
        no_type,
        "the type of input 'x' is not said",
        'layers.data("x")',
        'write data("x", "float32[batch, 12]")',
    ),
    (
        two_types,
        "input 'x' is given both 'type' and 'dtype'",
        'layers.data("x", "float32", shape=[1], dtype="int32")',
        "they are the same",
    ),
    (
        metric_as_operand,
        "op 'relu_0': 'right' is a metric, which no op takes",
        'layers.relu(layers.accuracy(x, label, name="right"))',
        "name it in train.metrics; compute with what a loss or reduce_mean gives",
    ),
    (
        object_as_attribute,
        "a spec holds texts, numbers, lists and mappings, not <class 'object'>",
        "layers.reshape(x, shape=[object])",
        None,
    ),
    (
        not_finite,
        "nan is not a finite number",
        'layers.scale(x, factor=float("nan"))',
        None,
    ),
    (
        value_as_key,
        "a key must be a text, not 3",
        'layers.call("m:f", x, out={3: "float32[]"})',
        None,
    ),
    (
        key_before_its_value,
        "multi_head_attention takes its operands in order: query, value would be query,"
        " key",
        "layers.multi_head_attention(x, value=x, heads=2)",
        "give those before it too",
    ),
    (
        number_in_matmul,
        "an op takes values of the program and numbers, not 'w'",
        'x @ "w"',
        None,
    ),
    (
        bad_section,
        "a program has no section 'node'",
        "def program(**sections",
        "did you mean 'nodes'?",
    ),
    (
        bad_nodes,
        "unknown key 'cuont' in nodes.worker",
        "",
        "did you mean 'count'?",
    ),
]


@pytest.mark.parametrize(
    ("mistake", "message", "written", "hint"),
    MISTAKES,
    ids=[mistake[0].__name__ for mistake in MISTAKES],
)
def test_a_mistake_is_told_at_its_line(
    mistake: Any, message: str, written: str, hint: str | None
) -> None:
    with pytest.raises(SpecError) as caught:
        mistake()
    if mistake in (bad_section, bad_nodes):  # said in builds.py
        assert caught.value.span is not None
        assert caught.value.span.text.strip().startswith("return Program(")
        assert (caught.value.message, caught.value.hint) == (message, hint)
        return
    found, at, hinted = told(caught.value)
    if mistake is taken_name:
        assert found.startswith(message)
        found = message
    assert (found, at, hinted) == (message, written, hint)


def test_a_wrong_op_leaves_the_program_as_it_was() -> None:
    with program() as made:
        x = layers.data("x", "float32[batch, 4]")
        h = layers.fc(x, 4)
        before = made.tree().value
        for _ in range(2):
            with pytest.raises(SpecError):
                layers.fc(h, -1)
            with pytest.raises(SpecError):
                layers.multi_head_attention(x, value=x, heads=2)
            with pytest.raises(SpecError):
                layers.data("x", "float32[batch, 4]")
        assert made.tree().value == before
        assert layers.fc(h, 4).name == "fc_1"


def test_the_caret_is_right_after_letters_of_several_bytes() -> None:
    with program():
        x = layers.data("x", "float32[batch, 4]")
        with pytest.raises(SpecError) as caught:
            _ = "größe", layers.fc(x, 0)
    assert told(caught.value)[1] == "layers.fc(x, 0)"


def test_mistakes_of_the_whole_program_are_told_together() -> None:
    with program(epochs=0) as made:
        layers.relu(layers.data("x", "float32[batch, 4]"))
    with pytest.raises(SpecErrors) as caught:
        made.model()
    assert [error.message for error in caught.value.errors] == [
        "'minimize' is missing in train",
        "'optimizer' is missing in train",
        "'epochs' must be a whole number from 1 to 2147483647, not 0",
    ]


def test_a_place_and_numbers_of_other_libraries_are_taken() -> None:
    np = pytest.importorskip("numpy")
    with program() as made:
        x = layers.data("x", "float32[batch, 4]")
        with place_guard(Place.parse("/node:worker")):
            layers.scale(layers.fc(x, np.int64(8)), np.float32(0.5))
    assert made.tree().value["graph"][0]["ops"] == [
        {"name": "fc_0", "op": "fc", "in": "x", "size": 8},
        {"name": "scale_0", "op": "scale", "in": "fc_0", "factor": 0.5},
    ]


def test_a_list_in_itself_is_refused() -> None:
    shape: list[Any] = []
    shape.append(shape)
    with program(), pytest.raises(SpecError, match="nested deeper than 32 levels"):
        layers.parameter(shape, "zeros")


def test_building_a_program_brings_neither_jax_nor_numpy() -> None:
    code = """
import sys
import placer
from placer import Program, layers, optimizer, place_guard, append_backward
with Program(nodes={"worker": {}}, data={}) as program, place_guard("/node:worker"):
    loss = layers.reduce_mean(layers.fc(layers.data("x", "float32[batch, 4]"), 1))
    append_backward(loss)
    optimizer.Adam(0.1).minimize(loss)
program.tree()
print({'jax', 'numpy'} & set(sys.modules))
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "set()\n"
