"""`placer.trace(batch="replica")`: the number of parts, its spec, and mistakes in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placer.compiler.driver import compile_in_memory
from placer.compiler.frontend.python.program import Program
from placer.compiler.frontend.python.read import run_builder
from placer.compiler.frontend.python.yaml_text import to_yaml
from placer.errors import PlacerError, SpecError
from placer.exporting.export import export

MODEL = """
import jax
import jax.numpy as jnp
import placer
from placer import Program, layers, optimizer, place_guard


def apply(params, x):
    h = x @ params["w"]
    mean = jax.lax.pmean(h.mean(0), "AXIS")
    scale = jnp.tanh(mean) + params["b"]
    return (h * scale - mean).sum(-1), scale.sum()


def params():
    return {"w": jnp.ones((3, 3)), "b": jnp.zeros(3)}


def build():
    program = Program(SECTIONS)
    with program:
        with place_guard("PLACE"):
            x = layers.data("x", "float32[batch, 3]")
            y, _ = placer.trace(apply, params, x, name="net", ARGUMENTS)
            loss = layers.mean(y)
        optimizer.SGD(0.1).minimize(loss)
    return program
"""
SECTIONS = (
    'nodes={"worker": {"count": 4}},'
    ' data={"train": {"source": "npz:rows.npz", "batch": 8}}'
)
REPLICA = 'batch="replica"'


def build(
    folder: Path,
    arguments: str = REPLICA,
    place: str = "/node:worker",
    sections: str = SECTIONS,
    axis: str = "batch",
) -> Program:
    text = MODEL.replace("ARGUMENTS", arguments).replace("PLACE", place)
    text = text.replace("SECTIONS", sections).replace("AXIS", axis)
    (folder / "model.py").write_text(text)
    np.savez(folder / "rows.npz", x=np.ones((16, 3), np.float32))
    return run_builder(f"{folder / 'model.py'}:build")


@pytest.mark.parametrize(
    ("place", "arguments", "parts"),
    [
        ("/node:worker", REPLICA, 4),
        ("/node:worker:0-1", REPLICA, 2),
        ("/node:worker", f"{REPLICA}, parts=8", 8),
    ],
)
def test_each_node_of_the_place_computes_a_part(
    place: str, arguments: str, parts: int, tmp_path: Path
) -> None:
    text = to_yaml(build(tmp_path, arguments, place))
    assert "batch: replica" in text
    assert f"parts: {parts}\n" in text
    assert "axis" not in text


def test_the_axis_has_another_name(tmp_path: Path) -> None:
    text = to_yaml(build(tmp_path, f'{REPLICA}, axis="parts"', axis="parts"))
    assert "axis: parts\n" in text


@pytest.mark.parametrize(
    ("arguments", "sections", "message", "hint"),
    [
        ("parts=2", SECTIONS, "parts needs batch='replica'", "as well"),
        (f"{REPLICA}, parts=True", SECTIONS, "parts must be a whole number", "parts=2"),
        (REPLICA, "", "the program has no nodes yet", "pass nodes to Program"),
        (f'{REPLICA}, axis="rows"', SECTIONS, "unbound axis name: batch", ""),
    ],
)
def test_mistakes_in_a_call(
    arguments: str, sections: str, message: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(PlacerError, match=message) as caught:
        build(tmp_path, arguments, sections=sections)
    assert hint in (caught.value.hint or "")
    assert caught.value.span is not None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    parts: 4\n", "", r"op 'net' \(trace\) has batch: replica, but no 'parts'"),
        ("    parts: 4\n", "    parts: 0\n", "parts"),
        ("        batch: whole\n", "", "region 1 of model:apply has batch: replica, but needs batch: whole"),
    ],
)  # fmt: skip
def test_mistakes_in_a_spec(old: str, new: str, message: str, tmp_path: Path) -> None:
    program = build(tmp_path)
    text = to_yaml(program)
    assert old in text
    for name, content in program.files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "model.yaml").write_text(text.replace(old, new, 1))
    with pytest.raises(SpecError, match=message):
        compile_in_memory(tmp_path / "model.yaml")


BACKWARD = """
@jax.custom_vjp
def halved(x):
    return x / 2


def halved_slope(_, slope):
    return (jax.lax.psum(slope, "batch") / 2,)


halved.defvjp(lambda x: (halved(x), None), halved_slope)


def apply("""


def test_a_reduction_in_a_backward_pass_only_is_an_error(tmp_path: Path) -> None:
    build(tmp_path)
    assert MODEL.count("x @ ") == MODEL.count("def apply(") == 1
    text = (tmp_path / "model.py").read_text().replace("\ndef apply(", BACKWARD)
    (tmp_path / "model.py").write_text(text.replace("x @ ", "halved(x) @ "))
    program = run_builder(f"{tmp_path / 'model.py'}:build")
    with pytest.raises(
        SpecError,
        match=r"reduces over the axis 'batch' in the derivative of .* \(model.py:14\)",
    ) as caught:
        compile_in_memory(program)
    assert "Python loop" in (caught.value.hint or "")


def test_a_function_with_parts_in_evaluation_is_not_exported(tmp_path: Path) -> None:
    build(tmp_path)
    values = {"net.w": np.ones((3, 3), "f4"), "net.b": np.zeros(3, "f4")}
    with pytest.raises(PlacerError, match="'net' reduces over the parts of a batch"):
        export(
            f"{tmp_path}/model.py:build",
            tmp_path / "out",
            params=values,
            outputs=["net.out0"],
        )
