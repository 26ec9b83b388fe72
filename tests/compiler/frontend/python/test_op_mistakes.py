"""Mistakes in Python code are reported at their line, and do not change the program."""

from __future__ import annotations

from typing import Any

import pytest
from support.builds import error_parts, program

from placer import layers, place_guard
from placer.errors import SpecError, SpecErrors


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


def shape_as_number() -> None:
    layers.data("x", shape=3)


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
        "'x' is a value of a different program",
        "layers.relu(x)",
        "put all ops of a program inside `with program:`",
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
        "no device 'gpu' on node 'ps', which declares cpu",
        "gpu",
        "declare it for its nodes: devices: {cpu: 1, gpu: 1}",
    ),
    (
        taken_name,
        "'x' is defined twice; the first definition is on line ",
        'layers.relu(x, name="x")',
        "give one of them another name",
    ),
    (
        bad_name,
        "'x y' cannot be a name",
        'layers.data("x y", "float32[batch, 4]")',
        "a name has at most 64 letters, digits and _, and does not start with a digit",
    ),
    (
        bad_type,
        "'float33' is not a dtype",
        'layers.data("x", "float33[batch, 4]")',
        "did you mean 'float32[batch, 4]'?",
    ),
    (
        no_type,
        "input 'x' has no type",
        'layers.data("x")',
        'write data("x", "float32[batch, 12]")',
    ),
    (
        shape_as_number,
        "the shape of input 'x' must be a list, not 3",
        'layers.data("x", shape=3)',
        "write [12] for rows of 12 numbers",
    ),
    (
        two_types,
        "input 'x' has both 'type' and 'dtype'",
        'layers.data("x", "float32", shape=[1], dtype="int32")',
        "they mean the same: pass one of them",
    ),
    (
        metric_as_operand,
        "op 'relu_0': 'right' is a metric, and a metric cannot be an operand",
        'layers.relu(layers.accuracy(x, label, name="right"))',
        "list it in train.metrics; to compute with it, use a loss or reduce_mean",
    ),
    (
        object_as_attribute,
        "a spec contains strings, numbers, lists and mappings, not <class 'object'>",
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
        "a key must be a string, not 3",
        'layers.call("m:f", x, out={3: "float32[]"})',
        None,
    ),
    (
        key_before_its_value,
        "the operands of multi_head_attention are positional: query, value would be read as query, key",
        "layers.multi_head_attention(x, value=x, heads=2)",
        "pass the preceding operands too",
    ),
    (
        number_in_matmul,
        "an operand must be a value of the program or a number, not the text 'w'",
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
def test_a_mistake_is_reported_at_its_line(
    mistake: Any, message: str, written: str, hint: str | None
) -> None:
    with pytest.raises(SpecError) as caught:
        mistake()
    if mistake in (bad_section, bad_nodes):  # the call is in builds.py
        assert caught.value.span is not None
        assert caught.value.span.text.strip().startswith("return Program(")
        assert (caught.value.message, caught.value.hint) == (message, hint)
        return
    text, at, shown_hint = error_parts(caught.value, __file__)
    if mistake is taken_name:
        assert text.startswith(message)
        text = message
    assert (text, at, shown_hint) == (message, written, hint)


def test_a_wrong_op_does_not_change_the_program() -> None:
    with program() as new_program:
        x = layers.data("x", "float32[batch, 4]")
        h = layers.fc(x, 4)
        before = new_program.tree().value
        for _ in range(2):
            with pytest.raises(SpecError):
                layers.fc(h, -1)
            with pytest.raises(SpecError):
                layers.multi_head_attention(x, value=x, heads=2)
            with pytest.raises(SpecError):
                layers.data("x", "float32[batch, 4]")
        assert new_program.tree().value == before
        assert layers.fc(h, 4).name == "fc_1"
        assert (
            new_program.unused_name("multi_head_attention") == "multi_head_attention_0"
        )


def test_the_caret_is_right_after_multibyte_characters() -> None:
    with program():
        x = layers.data("x", "float32[batch, 4]")
        with pytest.raises(SpecError) as caught:
            _ = "größe", layers.fc(x, 0)
    assert error_parts(caught.value, __file__)[1] == "layers.fc(x, 0)"


def test_mistakes_of_the_whole_program_are_reported_together() -> None:
    with program(epochs=0) as new_program:
        layers.relu(layers.data("x", "float32[batch, 4]"))
    with pytest.raises(SpecErrors) as caught:
        new_program.model()
    assert [error.message for error in caught.value.errors] == [
        "'minimize' is missing in train",
        "'optimizer' is missing in train",
        "'epochs' must be a whole number from 1 to 2147483647, not 0",
    ]


def test_a_list_that_contains_itself_is_refused() -> None:
    shape: list[Any] = []
    shape.append(shape)
    with program(), pytest.raises(SpecError, match="nested deeper than 32 levels"):
        layers.parameter(shape, "zeros")
