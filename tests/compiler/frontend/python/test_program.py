"""Programs: calls are recorded, and mistakes are reported at their line."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import numpy as np
import pytest
from support.builds import error_parts, program

from placer import Place, Program, default_program, layers, optimizer, place_guard
from placer.compiler.frontend.python.sections import SECTION_KEYS
from placer.compiler.frontend.schema import Train
from placer.errors import SpecError
from placer.plan.settings.run import ModelKeys


def test_a_value_has_a_name_a_shape_and_a_dtype() -> None:
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


def test_default_names_are_numbered_by_kind_and_skip_used_names() -> None:
    with program():
        x = layers.data("fc_1", "float32[batch, 4]")
        names = [layers.fc(x, 4).name, layers.relu(x).name, layers.fc(x, 4).name]
        names += [layers.fc(x, 4, name="fc_3").name, layers.fc(x, 4).name]
    assert names == ["fc_0", "relu_0", "fc_2", "fc_3", "fc_4"]


def test_operators_record_ops_and_numbers_become_constants() -> None:
    with program() as new_program:
        x = layers.data("x", "float32[batch, 4]")
        w = layers.parameter([4, 2], "zeros", name="w")
        last = (((x + x) - 1) * x / 2) @ w
        first = 1 - (2 / (3 * (4 + x)))
    assert last.shape == ("batch", 2)
    assert first.shape == ("batch", 4)
    written = [
        (op["op"], op.get("in", op.get("value")))
        for op in new_program.tree().value["graph"]
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


@pytest.mark.parametrize("operator", ["+", "-", "*", "/", "@"])
def test_an_array_is_not_an_operand_on_either_side(operator: str) -> None:
    array = np.ones((2, 4), np.float32)
    with program() as new_program:
        x = layers.data("x", "float32[batch, 4]")
        for text in (f"array {operator} x", f"x {operator} array"):
            with pytest.raises(SpecError, match="a value of the program or a number"):
                eval(text, {"array": array, "x": x})
    assert new_program.is_empty


def test_a_value_has_no_truth_value() -> None:
    with program():
        x = layers.data("x", "float32[batch, 4]")
        with pytest.raises(SpecError, match="'x' has no value while the program is"):
            bool(x)


def test_a_constant_has_the_dtype_of_the_other_operand() -> None:
    with program():
        x = layers.data("x", "bfloat16[batch]")
        assert (x + 1).dtype == "bfloat16"
    with program(precision="float64"):
        x = layers.data("x", "float32[batch]")
        assert (x + 1).dtype == "float64"


def test_parameters_are_accessed_by_their_key() -> None:
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
    assert error_parts(caught.value, __file__) == (
        message,
        'h.parameter("weight")',
        "one of: b, w",
    )


def test_an_op_is_recorded_by_the_innermost_program() -> None:
    with program(name="outer") as outer:
        x = layers.data("x", "float32[batch, 4]")
        with program(name="inner") as inner:
            layers.relu(layers.data("y", "float32[batch, 4]"))
        layers.relu(x)
    assert [op["in"] for op in outer.tree().value["graph"]] == ["x"]
    assert [op["in"] for op in inner.tree().value["graph"]] == ["y"]


def test_a_program_that_is_left_late_closes_only_itself() -> None:
    first, second = program(), program()
    first.__enter__()
    second.__enter__()
    first.__exit__()
    layers.data("x", "float32[batch, 4]")
    assert "x" in second.tree().entries["inputs"].value
    second.__exit__()


def test_an_exception_leaves_a_program() -> None:
    with program(name="outer") as outer:
        with pytest.raises(ZeroDivisionError), program():
            _ = 1 / 0
        layers.data("x", "float32[batch, 4]")
    assert list(outer.tree().value["inputs"]) == ["x"]


def test_each_thread_and_each_context_has_its_own_default_program() -> None:
    programs: list[Program] = []

    def use() -> None:
        programs.append(default_program())
        assert programs[-1] is default_program()

    for _ in range(2):
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    assert programs[0] is not programs[1]


def test_each_task_has_its_own_default_program() -> None:
    async def use() -> Program:
        return default_program()

    async def both() -> tuple[Program, Program]:
        first, second = await asyncio.gather(use(), use())
        return first, second

    first, second = asyncio.run(both())
    assert first is not second


def test_sections_can_be_set_after_the_ops() -> None:
    new_program = program(nodes=None)
    with new_program, place_guard("/node:worker:1"):
        loss = layers.reduce_mean(layers.data("x", "float32[batch]") * 1)
        optimizer.SGD(0.1)
    new_program.update(nodes={"worker": {"count": 2}}, metrics=[loss], epochs=3)
    assert new_program.tree().value["train"] == {
        "epochs": 3,
        "metrics": ["reduce_mean_0"],
    }
    with pytest.raises(SpecError) as caught:
        new_program.update(nodes={"worker": {"count": 1}})
    assert error_parts(caught.value, __file__) == (
        "no 'worker:1' in this cluster, which declares worker: 1",
        "worker:1",
        "valid ids of 'worker' are 0",
    )
    assert new_program.tree().value["nodes"] == {"worker": {"count": 2}}


def test_wrong_sections_change_nothing() -> None:
    new_program = program()
    before = new_program.tree().value
    with pytest.raises(SpecError, match="no section 'bogus'"):
        new_program.update(epochs=7, bogus=3)  # type: ignore[call-arg]
    assert new_program.tree().value == before


def test_a_place_and_numbers_of_other_libraries_are_accepted() -> None:
    np = pytest.importorskip("numpy")
    with program() as new_program:
        x = layers.data("x", "float32[batch, 4]")
        with place_guard(Place.parse("/node:worker")):
            layers.scale(layers.fc(x, np.int64(8)), np.float32(0.5))
    assert new_program.tree().value["graph"][0]["ops"] == [
        {"name": "fc_0", "op": "fc", "in": "x", "size": 8},
        {"name": "scale_0", "op": "scale", "in": "fc_0", "factor": 0.5},
    ]


def test_building_a_program_imports_neither_jax_nor_numpy() -> None:
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


def test_a_program_has_every_setting_of_a_run():
    others = {
        "minimize",
        "optimizer",
        "backward",
    }  # the program has functions for these
    keys = {*Train.__struct_fields__, *ModelKeys.__struct_fields__} - others
    assert keys <= {*SECTION_KEYS}
