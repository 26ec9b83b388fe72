"""The functions of `placer.layers`, and the entries that they record."""

from __future__ import annotations

from typing import Any

import pytest
from support.builds import program

from placer import Program, layers
from placer.errors import SpecError


def recorded(new_program: Program) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = new_program.tree().value["graph"]
    return entries


def test_attributes_with_default_values_are_left_out() -> None:
    with program() as new_program:
        x = layers.data("x", "float32[batch, 8, 4]")
        layers.fc(x, 8, activation="none", bias=True)
        layers.conv1d(x, 8, 3, strides=2, padding=[[2, 0]])
        layers.scale(x, factor=1)
    assert recorded(new_program) == [
        {"name": "fc_0", "op": "fc", "in": "x", "size": 8},
        {
            "name": "conv1d_0",
            "op": "conv1d",
            "in": "x",
            "filters": 8,
            "kernel_size": 3,
            "strides": 2,
            "padding": [[2, 0]],
        },
        {"name": "scale_0", "op": "scale", "in": "x", "factor": 1},
    ]


def test_a_bool_is_not_the_number_that_it_equals() -> None:
    with program():
        x = layers.data("x", "float32[batch, 8, 4]")
        with pytest.raises(SpecError) as caught:
            layers.conv1d(x, 8, 3, strides=True)
    assert caught.value.message == (
        "'strides' must be a whole number or a list, not true"
    )


def test_an_op_with_several_results_returns_all_of_them() -> None:
    with program() as new_program:
        x = layers.data("x", "float32[batch, 8, 4]")
        length = layers.data("length", "int32[batch]")
        sequence, last, cell = layers.lstm(x, 16, lengths=length, name="memory")
        one, two = layers.split(last, 2, out=["one", "two"])
        values, indices = layers.top_k(last, 3)
    assert [v.name for v in (sequence, last, cell)] == [
        "memory.sequence",
        "memory.last",
        "memory.cell",
    ]
    assert sequence.shape == ("batch", 8, 16)
    assert (one.name, two.shape) == ("one", ("batch", 8))
    assert (values.dtype, indices.dtype) == ("float32", "int32")
    assert last.parameter("w_input").name == "memory.w_input"
    assert one.op == "split_0"
    assert recorded(new_program)[0]["in"] == ["x", "length"]
    assert recorded(new_program)[1]["out"] == ["one", "two"]


def test_an_operand_can_be_a_list_of_values() -> None:
    with program() as new_program:
        x = layers.data("x", "float32[batch, 4]")
        joined = layers.concat([x, x, x], axis=1)
        layers.einsum([joined, x], "bi,bj->bij")
        with pytest.raises(SpecError) as caught:
            layers.concat([x, 1])  # type: ignore[list-item]
    assert joined.shape == ("batch", 12)
    assert recorded(new_program)[0]["in"] == ["x", "x", "x"]
    assert caught.value.message == (
        "'xs' of concat must be a value of the program, not 1"
    )


def test_optional_operands_are_passed_by_name() -> None:
    with program() as new_program:
        x = layers.data("x", "float32[batch, 6, 8]")
        mask = layers.data("mask", "bool[batch, 6]")
        layers.attention(x, x, x, heads=2)
        layers.multi_head_attention(x, key=x, mask=mask, heads=2)
    assert recorded(new_program)[1]["in"] == ["x", "x", "mask"]


def test_a_parameter_without_a_layer() -> None:
    with program() as new_program:
        x = layers.data("x", "float32[batch, 4]")
        w = layers.parameter([4, 2], {"normal": 0.1})
        assert layers.matmul(x, w).shape == ("batch", 2)
    assert recorded(new_program)[0] == {
        "name": "parameter_0",
        "op": "parameter",
        "shape": [4, 2],
        "init": {"normal": 0.1},
    }


@pytest.mark.parametrize(
    ("keywords", "type_"),
    [
        ({"shape": [12]}, "float32[batch, 12]"),
        ({"shape": [None, 1], "dtype": "int64"}, "int64[batch, 1]"),
        ({"shape": [-1, 4], "type": "float16"}, "float16[batch, 4]"),
        ({"shape": ["batch"], "dtype": "bool"}, "bool[batch]"),
        ({"shape": [], "dtype": "int32"}, "int32[batch]"),
        ({"type": "int8[batch, 3]"}, "int8[batch, 3]"),
    ],
)
def test_data_accepts_a_type_or_a_shape(keywords: dict[str, Any], type_: str) -> None:
    with program() as new_program:
        layers.data("x", **keywords)
    assert new_program.tree().value["inputs"] == {"x": type_}


def test_keywords_of_fluid_are_accepted() -> None:
    with program() as new_program:
        x = layers.data(name="x", shape=[4])
        layers.fc(input=x, size=8, act="relu")  # type: ignore[call-arg]
        layers.fc(x, 8, act=None)  # type: ignore[call-arg]
        ids = layers.data("ids", "int64[batch]")
        layers.embedding(input=ids, size=[10, 4], is_sparse=False)  # type: ignore[call-arg]
        with pytest.raises(SpecError) as caught:
            layers.fc(x=x, input=x, size=8)  # type: ignore[call-arg]
    assert [op.get("activation") for op in recorded(new_program)] == [
        "relu",
        None,
        None,
    ]
    assert caught.value.message == "fc has both 'input' and 'x'"


def test_a_negative_padding_index_of_fluid_counts_from_the_end_of_the_table() -> None:
    with program() as new_program:
        ids = layers.data("ids", "int64[batch, 3]")
        for index in (2, -1, None):
            layers.embedding(ids, [10, 4], padding_idx=index)  # type: ignore[call-arg]
        layers.embedding(ids, size=(10, 4), padding_idx=-10)  # type: ignore[call-arg]
        layers.embedding(ids, [10, 4], padding=-1)
        with pytest.raises(SpecError) as caught:
            layers.embedding(ids, [10, 4], padding_idx=-11)  # type: ignore[call-arg]
        with pytest.raises(SpecError) as no_end:
            layers.sparse_embedding(ids, [0, 4], padding_idx=-1)
    paddings = [op.get("padding") for op in recorded(new_program)]
    assert paddings == [2, 9, None, 0, -1]
    assert caught.value.message == "a table of 10 rows has no row -11"
    assert (
        no_end.value.message
        == "a table for any keys has no end, so it cannot count -1 from the end"
    )


def test_weights_come_before_the_table_of_an_embedding() -> None:
    with program() as new_program:
        ids = layers.data("ids", "int32[batch, 3]")
        x = layers.data("x", "float32[batch, 3]")
        y = layers.embedding(ids, [10, 4], weights=x, combiner="mean", padding=0)
    assert str(y.type) == "float32[batch, 4]"
    (op,) = recorded(new_program)
    assert (op["in"], op["combiner"], op["padding"]) == (["ids", "x"], "mean", 0)


def test_a_cast_to_64_bits_is_narrowed_like_inputs() -> None:
    with program() as new_program:
        ids = layers.data("ids", "int64[batch]")
        assert layers.cast(ids, dtype="int64").dtype == "int32"
        with pytest.raises(SpecError) as caught:
            layers.cast(layers.data("x", "float32[batch]"), "int64")  # type: ignore[arg-type]
    assert recorded(new_program)[0]["dtype"] == "int32"
    assert caught.value.message.startswith(
        "op 'cast_1' (cast) cannot have dtype: int64"
    )


def test_cross_entropy_uses_probabilities() -> None:
    with program() as new_program:
        p = layers.softmax(layers.data("x", "float32[batch, 4]"))
        label = layers.data("label", "int32[batch, 1]")
        loss = layers.cross_entropy(input=p, label=label, name="loss")
    assert (loss.name, loss.shape) == ("loss", ())
    kinds = [op["op"] for op in recorded(new_program)]
    assert kinds == ["softmax", "squeeze", "clip", "log", "softmax_cross_entropy"]


def test_mean_is_a_loss_and_the_metric_has_another_name() -> None:
    with program() as new_program:
        x = layers.data("x", "float32[batch, 4]")
        layers.mean(x)
        layers.mean_metric(x)
    assert [op["op"] for op in recorded(new_program)] == ["reduce_mean", "mean"]
