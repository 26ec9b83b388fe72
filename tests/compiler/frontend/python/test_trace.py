"""`placer.trace`: the ops that it records, and the errors that it reports."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save_file
from support.builds import build_files

import placer
from placer.command.cli import commands
from placer.compiler.frontend.python.program import Program
from placer.compiler.frontend.python.read import run_builder
from placer.compiler.frontend.python.yaml_text import to_yaml
from placer.compiler.graph.graph import Op
from placer.errors import PlacerError

HEAD = """\
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import placer
from placer import Program, device_guard, layers, optimizer, place_guard


@jax.tree_util.register_dataclass
@dataclass
class Model:
    w: object
    inner: dict


def model():
    return Model(jnp.ones((4, 4)), {"a.b": [jnp.zeros(4)], "count": jnp.arange(2)})


def empty():
    return Model(jnp.ones((4, 4)), {"bias": jnp.zeros(0)})


def waves():
    return Model(jnp.ones((4, 4)), {"a.b": [jnp.zeros(4) * 1j], "count": jnp.arange(2)})


ready = model()


def sized(n):
    return model()


def configured(sizes, bias=None):
    assert isinstance(sizes, tuple)
    return Model(jnp.ones(sizes), {"a.b": [jnp.full(4, bias["a.b"][0])], "count": [0, 1]})


def apply(model, x):
    with place_guard("/cpu"):
        h = jnp.tanh(x @ model.w + model.inner["a.b"][0])
    return h * model.inner["count"][1]


def eights():
    return Model(jnp.ones((4, 4)), [jnp.ones(4, jnp.float8_e4m3fn), jnp.arange(2)])


def two(models, x):
    (model,) = models
    with place_guard("/cpu"):
        h = jnp.tanh(x @ model.w)
    with place_guard("/node:worker:1"):
        return h * model.inner[0].astype(x.dtype) * model.inner[1][1]


def paired(both, x):
    return apply(both[0], x) * both[1]["scale"]


def dense(params, x, scale=1.0):
    return x @ params["w"] * scale


def bare(w, x):
    return x @ w


def turning(w, x):
    return jnp.abs(jnp.exp(1j * x) @ w)


def pair(a, b, x):
    return {"first": x @ a["w"], "rest": (x @ b["w"], x)}


def centred(x):
    return x - x.mean(0)


def summed(x):
    with place_guard("/node:worker:1"):
        s = jnp.sin(x)
        y = s.sum()
    with place_guard("/node:worker:0"):
        return s * y


def merged(w, x):
    with place_guard("/node:worker:0/cpu"):
        y = x.reshape(-1, 2)
    with place_guard("/node:worker:1/cpu"):
        return y.reshape(-1, 4) @ w


def turned(x):
    with place_guard("/node:worker:0/cpu"):
        y = x.T
    with place_guard("/node:worker:1/cpu"):
        return y.T


def keyed(x):
    with place_guard("/node:worker:0/cpu"):
        key = jax.random.key(x.astype(int).sum())
    with place_guard("/node:worker:1/cpu"):
        return x + jax.random.normal(key, (4,))


def counted(x):
    return jnp.sin(x) if len(x) < 20 else jnp.sin(x.T) @ x.T


def same(x):
    return x


def forgotten(x):
    jnp.sin(x)


def texts(x):
    return jnp.sin(x), "a"


def numbers(x):
    return {"y": jnp.sin(x), "n": 3}


def decided(model, x):
    return jnp.sin(x) if x[0, 0] > 0 else x


def prints(w, x):
    with place_guard("/node:worker:1"):
        y = x @ w
    jax.debug.print("{}", 3)
    return y


def nowhere(w, x):
    with place_guard("/node:worker:7"):
        return x @ w


def cleared(w, x):
    with place_guard(None), place_guard("/node:ps"):
        y = jnp.sin(x)
    with place_guard("/gpu:1"), device_guard(None):
        return y @ w


W = np.eye(4, dtype="float32")


def switched(scales, x, training):
    for scale in scales:
        x = x * scale
    return 2 * x if training else x


def build():
    with Program(
        nodes={"worker": {"count": 2}, "ps": {"count": 1}},
        data={"train": {"source": "npz:rows.npz", "batch": 8}},
    ) as program:
        x = layers.data("x", "float32[batch, 4]")
        with place_guard("/node:worker"):
            y = CALL
            loss = layers.reduce_mean(layers.relu(y), name="loss")
        with place_guard("/node:ps"):
            optimizer.SGD(0.1).minimize(loss)
    return program
"""


def build_program(folder: Path, call: str, first: str = "") -> Program:
    """Build a program with this call of `trace`; `first` is the first line of its file."""
    np.savez(folder / "rows.npz", x=np.ones((16, 4), np.float32))
    text = f"{first}\n{HEAD}" if first else HEAD
    (folder / "model.py").write_text(text.replace("CALL", call))
    return run_builder(f"{folder / 'model.py'}:build")


def calls(program: Program) -> list[Op]:
    return [op for op in program.model().graph.ops if op.kind == "call"]


def parameters(program: Program) -> dict[str, str]:
    graph = program.model().graph
    return {op.name: str(op.result.type) for op in graph.of_kind("parameter")}


def test_a_model_is_a_name_of_the_file(tmp_path: Path) -> None:
    program = build_program(tmp_path, 'placer.trace(apply, model, x, name="net")')
    assert parameters(program) == {
        "net.w": "float32[4, 4]",
        "net.inner_a_b_0": "float32[4]",
    }
    (op,) = calls(program)
    assert op.name == "net"
    assert str(op.place) == "/node:worker/cpu"
    assert op.attrs["args"] == '[{"make": "model"}, {"in": "float32[batch, 4]"}]'
    again = build_program(tmp_path, 'placer.trace(apply, ready, x, name="net")')
    assert parameters(again) == parameters(program)


def test_arrays_that_are_never_trained_are_listed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = "placer.trace(two, [eights], x, name='net')"
    program = build_program(tmp_path, call)
    assert parameters(program) == {"net.p0_w": "float32[4, 4]"}
    spec, out = f"{tmp_path / 'model.py'}:build", f"{tmp_path / 'build'}"
    commands.main(["compile", spec, "--out", out], standalone_mode=False)
    line = "never trained in 'net': models.0.inner.0 float8_e4m3fn[4], models.0.inner.1 int32[2]"
    assert capsys.readouterr().out.count(line) == 1
    commands.main(["explain", out], standalone_mode=False)
    assert capsys.readouterr().out.count(line) == 1


def test_explain_accepts_the_name_of_a_function_and_shortens_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scales = "[np.full(4, 2.0, np.float32) for _ in range(40)]"
    build_program(tmp_path, f"placer.trace(switched, {scales}, x, name='net')")
    spec = f"{tmp_path / 'model.py'}:build"
    commands.main(["explain", spec, "net"], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "net: 1 op: net.training",
        "%net.training: float32[batch, 4] and 1 more result = call(%net.p0.copy, %x,"
        " %net.p1.copy, %net.p2.copy, %net.p3.copy, %net.p4.copy, 36 more inputs)"
        " model:switched @/node:worker/cpu",
    ]


@pytest.mark.parametrize(("length", "is_refused"), [(1024, False), (1025, True)])
def test_yaml_has_no_keys_that_are_longer_than_its_own(
    tmp_path: Path, length: int, is_refused: bool
) -> None:
    call = f'placer.trace(dense, {{"w": W, "n" * {length}: W + 1}}, x)'
    program = build_program(tmp_path, call)
    if not is_refused:
        assert "n" * length in to_yaml(program)
        return
    with pytest.raises(PlacerError, match=r"has 1,025 characters, and a key of YAML"):
        to_yaml(program)


def test_a_model_has_a_configuration(tmp_path: Path) -> None:
    call = (
        'placer.trace(apply, (configured, {"sizes": (4, 4), "bias": {"a.b": [1.5]}}),'
        ' x, name="net")'
    )
    program = build_program(tmp_path, call)
    assert parameters(program) == {
        "net.w": "float32[4, 4]",
        "net.inner_a_b_0": "float32[4]",
    }
    begun = load(program.files["net.safetensors"])
    np.testing.assert_array_equal(begun["net.inner_a_b_0"], np.full(4, 1.5))
    (op,) = calls(program)
    assert op.attrs["args"].startswith(
        '[{"make": {"fn": "configured", "with": {"sizes": {"tuple": [{"value": 4},'
    )


def test_another_configuration_is_another_build(tmp_path: Path) -> None:
    digests = []
    for bias in ("1.5", "2.5"):
        call = f"placer.trace(apply, (configured, {{'sizes': (4, 4), 'bias': {{'a.b': [{bias}]}}}}), x)"
        program = build_program(tmp_path, call)
        digests.append(placer.compile(program, tmp_path / bias).digest)
    assert digests[0] != digests[1]


def test_a_function_without_arguments_beside_a_dict_is_no_configuration(
    tmp_path: Path,
) -> None:
    call = "placer.trace(paired, (model, {'scale': 2.0}), x)"
    assert [*parameters(build_program(tmp_path, call))] == [
        "trace_0.p0_w",
        "trace_0.p0_inner_a_b_0",
    ]


def test_arrays_in_dicts_are_parameters(tmp_path: Path) -> None:
    arguments = '{"w": W}, x, 0.5'
    program = build_program(tmp_path, f"placer.trace(dense, {arguments})")
    assert parameters(program) == {"trace_0.w": "float32[4, 4]"}
    (op,) = calls(program)
    assert op.attrs["args"] == (
        '[{"dict": {"w": {"param": "float32[4, 4]"}}}, {"in": "float32[batch, 4]"},'
        ' {"value": 0.5}]'
    )


def test_an_array_has_the_name_of_its_argument(tmp_path: Path) -> None:
    assert [*parameters(build_program(tmp_path, "placer.trace(bare, W, x)"))] == [
        "trace_0.w"
    ]


def test_with_several_arguments_names_start_with_the_argument(tmp_path: Path) -> None:
    call = 'placer.trace(pair, {"w": W}, {"w": W + 1}, x, name="p")["first"]'
    program = build_program(tmp_path, call)
    assert [*parameters(program)] == ["p.a_w", "p.b_w"]
    (op,) = calls(program)
    assert [value.name for value in op.results] == ["p.out0", "p.out1"]


def test_a_function_returns_its_pytree(tmp_path: Path) -> None:
    call = (
        "(lambda result: layers.add(result['rest'][1], result['first']))"
        '(placer.trace(pair, {"w": W}, {"w": W + 1}, x))'
    )
    program = build_program(tmp_path, call)
    (add,) = program.model().graph.of_kind("add")
    assert add.operands == ("x", "trace_0.out0")


def test_a_parameter_of_another_op_is_an_input(tmp_path: Path) -> None:
    call = "placer.trace(bare, layers.fc(x, 4, name='h').parameter('w'), x, name='y')"
    program = build_program(tmp_path, call)
    (op,) = calls(program)
    assert op.operands[:2] == ("x", "h.w")


def test_guards_inside_merge_into_those_around(tmp_path: Path) -> None:
    program = build_program(tmp_path, "placer.trace(cleared, W, x)")
    assert [str(op.place) for op in calls(program)] == ["/node:ps", "/node:worker"]


def test_a_guard_function_is_called_with_each_region(tmp_path: Path) -> None:
    asked = "place_guard(lambda op: '/node:worker:1' if op.kind == 'call' else None)"
    np.savez(tmp_path / "rows.npz", x=np.ones((16, 4), np.float32))
    text = HEAD.replace("CALL", "placer.trace(bare, W, x)")
    text = text.replace('place_guard("/node:worker"):', f"{asked}:")
    (tmp_path / "model.py").write_text(text)
    (op,) = calls(run_builder(f"{tmp_path / 'model.py'}:build"))
    assert str(op.place) == "/node:worker:1"


def test_a_shape_is_initialized_by_init(tmp_path: Path) -> None:
    struct = "jax.ShapeDtypeStruct((4, 4), jnp.float32)"
    call = f'placer.trace(bare, {struct}, x, init="xavier_uniform")'
    (op,) = build_program(tmp_path, call).model().graph.of_kind("parameter")
    assert op.attrs["init"] == "xavier_uniform"


@pytest.mark.parametrize(
    "call",
    [
        'placer.trace(apply, model, x, name="net")',
        'placer.trace(dense, {"w": W}, x, 0.5, batch="rows")',
        'placer.trace(dense, {"w": W, "never_used_" * 9: W + 1}, x)',
        'placer.trace(apply, (configured, {"sizes": (4, 4), "bias": {"a.b": [1.5]}}), x)',
    ],
)
def test_yaml_is_equivalent(tmp_path: Path, call: str) -> None:
    program = build_program(tmp_path, call)
    placer.compile(program, tmp_path / "python")
    spec, out = f"{tmp_path / 'model.py'}:build", tmp_path / "again.yaml"
    commands.main(["to-yaml", spec, "--out", str(out)], standalone_mode=False)
    assert out.read_text() == to_yaml(program)
    placer.compile(tmp_path / "again.yaml", tmp_path / "yaml")
    assert build_files(tmp_path / "yaml") == build_files(tmp_path / "python")


@pytest.mark.parametrize(
    ("call", "batch"),
    [
        ("placer.trace(bare, W, x)", "rows"),
        ("placer.trace(centred, x) @ layers.parameter([4, 4], 'ones')", None),
        ("placer.trace(bare, W, x, batch='whole')", None),
        (
            "placer.trace(centred, x, batch='rows') @ layers.parameter([4, 4], 'ones')",
            "rows",
        ),
    ],
)
def test_rows_are_the_default_if_they_are_proven(
    tmp_path: Path, call: str, batch: str | None
) -> None:
    (op,) = calls(build_program(tmp_path, call))
    assert op.attrs.get("batch") == batch


@pytest.mark.parametrize("rows", [8, 4], ids=["the batch", "the local rows"])
@pytest.mark.parametrize("batch", ["", ", batch='rows'"])
def test_another_function_for_the_rows_of_the_model_is_refused(
    tmp_path: Path, rows: int, batch: str
) -> None:
    other = f"""
def other(w, x):
    return x @ w if len(x) != {rows} else x @ w - x.mean(0)


W = np"""
    np.savez(tmp_path / "rows.npz", x=np.ones((16, 4), np.float32))
    text = HEAD.replace("CALL", f"placer.trace(other, W, x{batch})")
    (tmp_path / "model.py").write_text(text.replace("\nW = np", other))
    with pytest.raises(
        PlacerError, match=f"but behaves differently for {rows}"
    ) as caught:
        placer.compile(f"{tmp_path / 'model.py'}:build", tmp_path / "build")
    assert 'batch="whole"' in str(caught.value.hint)


def test_a_number_of_numpy_is_a_number(tmp_path: Path) -> None:
    call = "placer.trace(dense, {'w': W}, x, np.float32(0.5))"
    program = build_program(tmp_path, call)
    assert [*parameters(program)] == ["trace_0.w"]
    (op,) = calls(program)
    assert op.attrs["args"].endswith('{"value": 0.5}]')


def test_a_duplicate_name_does_not_change_the_parameters_of_the_first_op(
    tmp_path: Path,
) -> None:
    call = "placer.trace(bare, W, x, name='t'), again(W, x)\n            y = y[0]"
    again = """
def again(w, x):
    try:
        placer.trace(bare, w * 2, x, name="t")
    except placer.SpecError as error:
        assert "defined twice" in str(error)
    else:
        raise AssertionError


W = np"""
    np.savez(tmp_path / "rows.npz", x=np.ones((16, 4), np.float32))
    text = HEAD.replace("CALL", call).replace("\nW = np", again)
    (tmp_path / "model.py").write_text(text)
    program = run_builder(f"{tmp_path / 'model.py'}:build")
    begun = load(program.files["t.safetensors"])["t.w"]
    np.testing.assert_array_equal(begun, np.eye(4, dtype=np.float32))


def test_a_file_with_the_same_name_beside_it_is_reported(tmp_path: Path) -> None:
    save_file({"v": np.ones((4, 4), np.float32)}, tmp_path / "net.safetensors")
    call = (
        "placer.trace(bare, W, x, name='net')\n            "
        "layers.parameter([4, 4], {'file': 'net.safetensors'}, name='v')"
    )
    with pytest.raises(PlacerError, match="safetensors has no tensor 'v'") as caught:
        build_program(tmp_path, call)
    assert caught.value.hint == (
        "placer.trace creates a file of this name: rename your file"
    )


def test_a_guard_function_gets_the_operands_of_a_region(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=np.ones((16, 4), np.float32))
    asked = "place_guard(lambda op: '/node:worker:1' if 'x' in op.inputs else None)"
    text = HEAD.replace("CALL", "placer.trace(bare, W, x)")
    text = text.replace('place_guard("/node:worker"):', f"{asked}:")
    (tmp_path / "model.py").write_text(text)
    (op,) = calls(run_builder(f"{tmp_path / 'model.py'}:build"))
    assert str(op.place) == "/node:worker:1"


def test_yaml_is_not_written_over_a_file_of_initial_values(tmp_path: Path) -> None:
    build_program(
        tmp_path, 'placer.trace(dense, {"w": W}, x, 0.5, batch="rows", name="net")'
    )
    out = tmp_path / "again.yaml"
    command = ["to-yaml", f"{tmp_path / 'model.py'}:build", "--out", str(out)]
    commands.main(command, standalone_mode=False)
    commands.main(command, standalone_mode=False)  # over its own
    (tmp_path / "net.safetensors").write_bytes(b"of somebody else")
    out.unlink()
    with pytest.raises(PlacerError, match="already exists, with different content"):
        commands.main(command, standalone_mode=False)
    assert (tmp_path / "net.safetensors").read_bytes() == b"of somebody else"
    assert not out.exists()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "placer.trace(apply, Model(W, {}), x)",
            "trace 'trace_0': model is Model, and model.py has no name for it, so a"
            " node cannot create it again",
        ),
        (
            "placer.trace(apply, sized, x)",
            "model is the function 'sized', which needs arguments",
        ),
        (
            "placer.trace(apply, (sized, {'m': 3}), x)",
            "model: 'sized' cannot be called: missing a required argument: 'n'",
        ),
        (
            "placer.trace(apply, (sized, {'n': [1, W]}), x)",
            "model.n.1 is ndarray, but the configuration of a model must be plain data",
        ),
        (
            "placer.trace(apply, (sized, {'a b': 3}), x)",
            "the configuration of model has the key 'a b', which cannot be the name of",
        ),
        (
            "placer.trace(lambda w, x: x @ w, W, x)",
            "'build.<locals>.<lambda>' cannot be imported from model.py",
        ),
        (
            "placer.trace(jax.jit(bare), W, x)",
            "a wrapper of 'bare' cannot be imported from model.py",
        ),
        (
            "placer.trace((bare, globals().update(bare=dense))[0], W, x)",
            "'bare' of model.py was replaced after its import",
        ),
        (
            "placer.trace((globals().update(bare=jax.jit(bare)), bare)[1], W, x)",
            "'bare' of model.py was replaced after its import",
        ),
        ("placer.trace(same, x)", "it computes nothing from its arguments"),
        ("placer.trace(forgotten, x)", "'forgotten' returns nothing"),
        ("placer.trace(texts, x)", "'texts' returns 'a', which is not an array"),
        ("placer.trace(numbers, x)", "'numbers' returns 3, which is not an array"),
        (
            "placer.trace(prints, W, x)",
            "the results of the region of 'debug_print' (model.py:LINE) are not used",
        ),
        (
            "placer.trace(bare, W, x, init='ones')",
            "init is for arrays without values, but all arrays have values",
        ),
        ("placer.trace(3, x)", "placer.trace needs a function, not int"),
        (
            "placer.trace(partial(dense, {'w': W}), x)",
            "placer.trace needs a function, not partial",
        ),
        ("placer.trace(jnp.dot, x, x)", "which is not in the same folder as"),
        (
            "placer.trace(bare, x)",
            "'bare' cannot be called with these arguments: missing a required",
        ),
        (
            "placer.trace(pair, {'w': W}, {'w': W}, x)['first']",
            "b.w and a.w are the same array, but would become two parameters",
        ),
        (
            "placer.trace(dense, {'w': W, 'a': {'b': W + 1}, 'a_b': W + 2}, x)",
            "the parameters at params.a.b and params.a_b would both be called 'a_b'",
        ),
        (
            "placer.trace(dense, {'w': W, '': W + 1, '-': W + 2}, x)",
            "the parameters at params[''] and params['-'] would both be called '_'",
        ),
        (
            "placer.trace(dense, {'w': W, 'a': {'b': W + 1}, 'a.b': W + 2}, x)",
            "the parameters at params.a.b and params['a.b'] would both be called 'a_b'",
        ),
        (
            "placer.trace(dense, {3: W}, x)",
            "params has the key 3; keys must be strings",
        ),
        (
            "placer.trace(bare, W * 1j, x)",
            "w is a complex array, but parameters must be real",
        ),
        (
            "placer.trace(apply, waves, x)",
            "model.inner['a.b'].0 is a complex array, but parameters must be real",
        ),
        (
            "placer.trace(dense, {'w': W, 'no': [W[:, :0]]}, x)",
            "params.no.0 is an empty array: its shape is (4, 0)",
        ),
        (
            "placer.trace(apply, empty, x)",
            "model.inner.bias is an empty array: its shape is (0,)",
        ),
        (
            "placer.trace(bare, np.arange(4), x)",
            "w is an array of int64, but a parameter must be an array of floats",
        ),
        (
            "placer.trace(bare, jax.ShapeDtypeStruct((4, 4), jnp.float32), x)",
            "w has a shape but no values",
        ),
        (
            "placer.trace(summed, x, batch='rows')",
            "with batch='rows' all values that leave a place must have rows, but the"
            " result of 'reduce_sum' (model.py:LINE) is float32[]",
        ),
        (
            "placer.trace(turned, x, batch='rows')",
            "with batch='rows' all values that leave a place must have rows, but the"
            " result of 'transpose' (model.py:LINE) is float32[4, batch]",
        ),
        (
            "placer.trace(merged, W, x)",
            "dimension 0 of the result of 'reshape' (model.py:LINE), which another place"
            " needs, changes with the batch but is not the batch: 28 for 14 rows",
        ),
        (
            "placer.trace(keyed, x)",
            "which another place needs, is key<fry>, which cannot be sent in a message",
        ),
    ],
)
def test_a_function_that_cannot_be_traced_is_reported_at_the_call(
    tmp_path: Path, call: str, message: str
) -> None:
    with pytest.raises(PlacerError) as caught:
        build_program(tmp_path, call)
    marks = {"summed": "s.sum()", "merged": "x.reshape", "prints": "jax.debug.print"}
    marks["turned"] = "y = x.T"
    inside = next((line(mark) for fn, mark in marks.items() if fn in call), 0)
    assert message.replace("LINE", str(inside)) in str(caught.value)
    assert caught.value.span is not None
    assert f"model.py:{line('= CALL')}:17" in str(caught.value.span)


def line(text: str, at: str = HEAD) -> int:
    return next(i for i, each in enumerate(at.splitlines(), 1) if text in each)


def test_the_memory_of_a_complex_residual_is_known(tmp_path: Path) -> None:
    program = build_program(tmp_path, "placer.trace(turning, W, x)")
    placer.compile(program, tmp_path / "build")
    graph = (tmp_path / "build" / "graph.txt").read_text()
    assert "uint8[batch, 4, 8]" in graph


def test_a_wrong_place_inside_is_reported_at_its_guard(tmp_path: Path) -> None:
    with pytest.raises(PlacerError) as caught:
        build_program(tmp_path, "placer.trace(nowhere, W, x)")
    assert caught.value.span is not None
    assert caught.value.span.line == line("/node:worker:7")


def test_an_error_of_the_function_is_reported_at_its_line(tmp_path: Path) -> None:
    with pytest.raises(PlacerError, match="dot_general requires") as caught:
        build_program(tmp_path, "placer.trace(bare, W[:3], x)")
    assert caught.value.span is not None
    assert caught.value.span.line == line("return x @ w")


def test_errors_of_jax_name_the_function(tmp_path: Path) -> None:
    with pytest.raises(PlacerError) as caught:
        build_program(tmp_path, "placer.trace(decided, model, x)")
    assert f"function decided at {tmp_path / 'model.py'}" in str(caught.value)
    assert caught.value.span is not None
    assert caught.value.span.line == line("if x[0, 0] > 0")


STATISTICS = """\
import jax
import numpy as np
from flax import nnx


class Model(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(4, use_running_average=True, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)


def model():
    return Model(nnx.Rngs(0))


def apply(model, x):
    return model.norm(x)


def dropping(model, x):
    x = model.norm(x)
    return x + jax.random.normal(jax.random.key(0), x.shape)


def evaluating(model, x, key):
    return x + jax.random.normal(key, x.shape)


def learning(model, x):
    return model.norm(x, use_running_average=False)


def scaling(model, x):
    model.norm.scale[...] = model.norm.scale * 2
    return model.norm(x)


numbers = np.random.default_rng(0)


def rolling(model, x):
    return model.norm(x) * numbers.normal()
"""


def test_values_that_flax_does_not_train_are_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "stats.py").write_text(STATISTICS)
    call = "placer.trace(stats.apply, stats.model, x, name='net')"
    program = build_program(tmp_path, call, "import stats")
    assert parameters(program) == {
        "net.norm_bias": "float32[4]",
        "net.norm_scale": "float32[4]",
    }


def test_variables_that_training_assigns_are_state(tmp_path: Path) -> None:
    (tmp_path / "stats.py").write_text(STATISTICS)
    call = "placer.trace(stats.learning, stats.model, x, name='net')"
    program = build_program(tmp_path, call, "import stats")
    graph = program.model().graph
    stores = [op.operands for op in graph.of_kind("store")]
    assert stores == [
        (f"net.norm_{name}", f"net.norm_{name}.new") for name in ("mean", "var")
    ]
    for name, _ in stores:
        assert graph.producers[name].attrs["state"]


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (
            "dropping",
            "trace 'net': 'random_bits' (stats.py:22) draws random numbers with a key that"
            " is the same in every step",
        ),
        (
            "evaluating",
            "trace 'net': 'random_bits' (stats.py:26) draws random numbers in evaluation",
        ),
        ("scaling", "trace 'net': model.norm.scale is changed (stats.py:34), and"),
        ("rolling", "trace 'net': its traces differ: it draws from np.random"),
    ],
)
def test_random_numbers_and_state_are_refused_at_the_call(
    tmp_path: Path, fn: str, message: str
) -> None:
    (tmp_path / "stats.py").write_text(STATISTICS)
    call = f"placer.trace(stats.{fn}, stats.model, x, name='net')"
    with pytest.raises(PlacerError) as caught:
        build_program(tmp_path, call, "import stats")
    assert caught.value.message.startswith(message)
    assert f"model.py:{line('= CALL') + 1}:17" in str(caught.value.span)


def test_a_function_that_differs_between_numbers_of_rows_is_reported(
    tmp_path: Path,
) -> None:
    with pytest.raises(PlacerError):
        build_program(tmp_path, "placer.trace(counted, x)")


def test_rows_are_checked_when_it_is_compiled(tmp_path: Path) -> None:
    call = "placer.trace(centred, x, batch='rows') @ layers.parameter([4, 4], 'ones')"
    program = build_program(tmp_path, call)
    with pytest.raises(PlacerError, match="returns different results for half"):
        placer.compile(program, tmp_path / "build")


def test_a_file_that_builds_while_it_is_imported_is_reported(tmp_path: Path) -> None:
    program = build_program(tmp_path, "placer.trace(bare, W, x)")
    file = tmp_path / "model.py"
    file.write_text(file.read_text() + "\n\nbuild()\n")
    with pytest.raises(PlacerError, match=r"importing model\.py .* builds the model"):
        placer.compile(program, tmp_path / "build")


STATE = """\
import equinox
import flax.linen
import jax
import jax.numpy as jnp
import optax
from flax import nnx


class Normed(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, x):
        return flax.linen.BatchNorm(use_running_average=True)(x)


def linen():
    return Normed().init(jax.random.key(0), jnp.ones((2, 4)))


def normed(variables, x):
    return Normed().apply(variables, x)


COLLECTION = linen()["batch_stats"]


def two(params, batch_stats, x):
    return Normed().apply({"params": params, "batch_stats": batch_stats}, x)


def alone(params, x):
    return Normed().apply({"params": params, "batch_stats": COLLECTION}, x)


def params():
    return linen()["params"]


def nested():
    return {"model": linen(), "w": jnp.ones((4, 4))}


def inner(net, x):
    return Normed().apply(net["model"], x) @ net["w"]


def tuned():
    return params(), optax.adam(0.1).init(params())


def first(both, x):
    return x * both[0]["BatchNorm_0"]["scale"]


def haiku():
    average = {"average": jnp.zeros(4), "hidden": jnp.zeros(4), "counter": 0}
    return {"w": jnp.zeros(4), "mean_ema": average}


def by_mean(net, x):
    return x - net["w"] - net["mean_ema"]["average"]


norm = nnx.BatchNorm(4, rngs=nnx.Rngs(0))


def bare_stats(net, x):
    return x * net["scale"] - net["mean"]


class Indexed(equinox.Module):
    w: jax.Array
    count: jax.Array
    norm: equinox.nn.BatchNorm

    def __init__(self):
        self.w, self.count = jnp.ones(4), jnp.arange(4)
        self.norm = equinox.nn.BatchNorm(4, axis_name="rows", mode="batch")


def index_model():
    return Indexed()


def indexed(model, x):
    return x * model.w * model.norm.weight + model.norm.bias
"""


def traced(folder: Path, call: str, parameters: str = "") -> Program:
    (folder / "state.py").write_text(STATE)
    program = f"Program(parameters=[{parameters}]," if parameters else "Program("
    text = f"import state\n{HEAD}".replace("with Program(", f"with {program}")
    np.savez(folder / "rows.npz", x=np.ones((16, 4), np.float32))
    (folder / "model.py").write_text(text.replace("CALL", call))
    return run_builder(f"{folder / 'model.py'}:build")


@pytest.mark.parametrize(
    ("call", "message", "pattern"),
    [
        (
            "state.first, state.tuned, x",
            "both.1.0 is the state of an optax optimizer",
            "net.p1_0_*",
        ),
        (
            "state.by_mean, state.haiku, x",
            "net.mean_ema is a moving average of Haiku",
            "net.mean_ema_*",
        ),
        (
            "state.bare_stats, {'scale': W[0], 'mean': state.norm.mean}, x",
            "net.mean is BatchStat, which its library does not train",
            "net.mean",
        ),
    ],
)
def test_state_is_not_trained_unless_it_is_kept_as_it_is(
    tmp_path: Path, call: str, message: str, pattern: str
) -> None:
    call = f"placer.trace({call}, name='net')"
    with pytest.raises(PlacerError) as caught:
        traced(tmp_path, call)
    error = caught.value
    assert error.message == f"trace 'net': {message}, but would be trained"
    rule = f'{{"match": "{pattern}", "trainable": False}}'
    assert rule in str(error.hint)
    graph = traced(tmp_path, call, rule).model().graph
    kept = {op.name for op in graph.of_kind("parameter") if "group" not in op.attrs}
    assert kept
    assert all(Path(name).match(pattern) for name in kept)


@pytest.mark.parametrize(
    ("call", "pattern"),
    [
        ("state.normed, state.linen, x", "net.batch_stats_*"),
        ("state.two, state.params, state.COLLECTION, x", "net.batch_stats_*"),
        ("state.inner, state.nested, x", "net.model_batch_stats_*"),
    ],
)
def test_a_collection_of_linen_is_never_trained(
    tmp_path: Path, call: str, pattern: str
) -> None:
    call = f"placer.trace({call}, name='net')"
    program = traced(tmp_path, call)
    graph = program.model().graph
    kept = {op.name for op in graph.of_kind("parameter") if "group" not in op.attrs}
    assert kept == {x for x in parameters(program) if Path(x).match(pattern)} != set()
    # An entry that trains all parameters contradicts it.
    with pytest.raises(PlacerError, match="would be trained") as caught:
        traced(tmp_path, call, '{"match": "*", "decay": False}')
    rule = f'{{"match": "{pattern}", "trainable": False}}'
    assert rule in str(caught.value.hint)
    traced(tmp_path, call, f'{rule}, {{"match": "*", "decay": False}}')


def test_state_that_is_not_in_an_argument_is_a_constant(tmp_path: Path) -> None:
    program = traced(tmp_path, "placer.trace(state.alone, state.params, x, name='net')")
    assert [*parameters(program)] == [
        "net.BatchNorm_0_bias",
        "net.BatchNorm_0_scale",
    ]
    # Equinox has initial statistics of a model that was created without its state.
    call = "placer.trace(state.indexed, state.index_model, x, name='net')"
    program = traced(tmp_path, call)
    assert [*parameters(program)] == ["net.w", "net.norm_weight", "net.norm_bias"]


KERAS = """\
import sys
import types

import numpy as np


class Variable:
    \"\"\"Has the attributes of a variable of Keras that placer reads.\"\"\"

    def __init__(self, path, shape, trainable=True):
        self.path, self.shape, self.dtype = path, shape, "float32"
        self.trainable = trainable

    def __array__(self, dtype=None, copy=None):
        return np.ones(self.shape, np.float32)


config = types.SimpleNamespace(backend=lambda: "jax")
sys.modules["keras"] = types.SimpleNamespace(Variable=Variable, config=config)


class Net:
    trainable_variables = [
        Variable("sequential/dense/kernel", (4, 4)),
        Variable("sequential/dense/bias", (4,)),
    ]
    moving = [
        Variable("sequential/norm/mean", (4,), trainable=False),
        Variable("sequential/norm_1/mean", (4,), trainable=False),
    ]


def net():
    return Net.trainable_variables


def apply(variables, x):
    return x @ variables[0] + variables[1]


def normed(variables, non_trainable_variables, x):
    return apply(variables, x) - sum(non_trainable_variables)
"""


@pytest.fixture
def keras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(sys.modules, "keras", None)  # what the file sets is undone
    (tmp_path / "net.py").write_text(KERAS)
    return tmp_path


@pytest.mark.parametrize("variables", ["net.net", "net.Net.trainable_variables"])
def test_a_variable_of_keras_has_the_name_of_its_path(
    keras: Path, variables: str
) -> None:
    call = f"placer.trace(net.apply, {variables}, x, name='net')"
    assert parameters(build_program(keras, call, "import net")) == {
        "net.sequential_dense_kernel": "float32[4, 4]",
        "net.sequential_dense_bias": "float32[4]",
    }


def test_keras_needs_the_backend_jax(keras: Path) -> None:
    (keras / "net.py").write_text(KERAS.replace('"jax"', '"torch"'))
    with pytest.raises(PlacerError, match="with the backend 'torch', but") as caught:
        build_program(keras, "placer.trace(net.apply, net.net, x)", "import net")
    assert "KERAS_BACKEND=jax" in str(caught.value.hint)


def test_equal_names_of_variables_are_reported_with_both_paths(keras: Path) -> None:
    twice = "[net.Variable('a/b', (4, 4)), net.Variable('a_b', (4,))]"
    call = f"placer.trace(net.apply, {twice}, x, name='net')"
    with pytest.raises(PlacerError) as caught:
        build_program(keras, call, "import net")
    assert caught.value.message == (
        "trace 'net': the parameters at variables.0 (a/b) and variables.1 (a_b) would"
        " both be called 'a_b'"
    )


def test_the_hint_names_all_variables_that_keras_does_not_train(keras: Path) -> None:
    variables = "net.Net.trainable_variables, net.Net.moving"
    call = f"placer.trace(net.normed, {variables}, x, name='net')"
    with pytest.raises(PlacerError) as caught:
        build_program(keras, call, "import net")
    mean = '"net.sequential_norm{}_mean", "trainable": False'
    for number in ("", "_1"):
        assert f'{{"match": {mean.format(number)}}}' in str(caught.value.hint)


STATED = """\
import jax.numpy as jnp
import numpy as np


def stats():
    return sized(4)


def sized(size):
    return {"mean": jnp.zeros(size), "count": jnp.zeros((), int)}


def alone(stats, x):
    return x + stats["mean"]


def other(stats, x):
    return x + stats["mean"], {"variance": stats["mean"] + 1}


def shaped(stats, x):
    return x + stats["mean"], {"mean": stats["mean"].sum()}


def counting(stats, x):
    return x + stats["mean"], {"count": stats["count"] * 0.5}


def wide(start):
    return {"count": np.full((), start, np.int64)}


def counted(stats, x):
    return x * stats["count"], {"count": stats["count"] + 1}


def good(stats, x):
    return x + stats["mean"], {"mean": 0.9 * stats["mean"] + 0.1}
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("stated.good, stated.stats, x, state='stat'", "'good' has no argument 'stat'"),
        ("stated.good, {'mean': W[0]}, x, state='stats'", "stats is dict, and"),
        ("stated.alone, stated.stats, x, state='stats'", "'alone' must return its"),
        (
            "stated.other, stated.stats, x, state='stats'",
            "'other' returns the state stats.variance, which its argument does not have",
        ),
        (
            "stated.shaped, stated.stats, x, state='stats'",
            "stats.mean is float32[4], but the function assigns float32[]",
        ),
        (
            "stated.counting, stated.stats, x, state='stats'",
            "stats.count is int32[], but the function assigns float32[]",
        ),
    ],
)
def test_a_wrong_state_is_reported_at_the_call(
    tmp_path: Path, arguments: str, message: str
) -> None:
    (tmp_path / "stated.py").write_text(STATED)
    call = f"placer.trace({arguments}, name='net')"
    with pytest.raises(PlacerError) as caught:
        build_program(tmp_path, call, "import stated")
    assert caught.value.message.startswith(f"trace 'net': {message}")


@pytest.mark.parametrize(
    ("stats", "made"),
    [
        ("stated.stats", '{"fn": "stats", "state": ["mean"]}'),
        (
            "(stated.sized, {'size': 4})",
            '{"fn": "sized", "with": {"size": {"value": 4}}, "state": ["mean"]}',
        ),
    ],
)
def test_an_argument_that_is_state_is_not_trained(
    tmp_path: Path, stats: str, made: str
) -> None:
    (tmp_path / "stated.py").write_text(STATED)
    call = f"placer.trace(stated.good, {stats}, x, state='stats', name='net')"
    call += " @ layers.parameter([4, 4], 'ones')"
    graph = build_program(tmp_path, call, "import stated").model().graph
    mean, _ = graph.of_kind("parameter")
    assert mean.name == "net.mean"
    assert mean.attrs["state"]
    assert "group" not in mean.attrs
    args = f'[{{"state": {{"make": {made}}}}}, {{"in": "float32[batch, 4]"}}]'
    assert {op.attrs["args"] for op in graph.of_kind("call")} == {args}
    assert [op.operands for op in graph.of_kind("store")] == [
        ("net.mean", "net.mean.new")
    ]


def test_a_state_may_have_a_long_name(tmp_path: Path) -> None:
    name = "average_" * 12
    (tmp_path / "stated.py").write_text(STATED.replace('"mean"', f'"{name}"'))
    call = "placer.trace(stated.good, stated.stats, x, state='stats', name='net')"
    call += " @ layers.parameter([4, 4], 'ones')"
    program = build_program(tmp_path, call, "import stated")
    plan = placer.compile(program, tmp_path / "build")
    (state,) = (each for each in plan.parameters if each.name == f"net.{name}")
    assert state.short_name is not None


@pytest.mark.parametrize(
    ("first", "start", "dtype"),
    [
        ("", 7, "int32"),
        ("", 2**40, None),
        ("precision='float64',", 2**40, "int64"),
    ],
)
def test_integers_of_state_have_32_bits_unless_the_program_has_64(
    first: str, start: int, dtype: str | None, tmp_path: Path
) -> None:
    (tmp_path / "stated.py").write_text(STATED)
    call = f"placer.trace(stated.counted, (stated.wide, {{'start': {start}}}), x, "
    call += "state='stats', name='net') @ layers.parameter([4, 4], 'ones')"
    np.savez(tmp_path / "rows.npz", x=np.ones((16, 4), np.float32))
    text = f"import stated\n{HEAD}".replace("with Program(", f"with Program({first}")
    (tmp_path / "model.py").write_text(text.replace("CALL", call))
    if dtype is None:
        with pytest.raises(PlacerError) as caught:
            run_builder(f"{tmp_path / 'model.py'}:build")
        message = "the initial values of 'net.count' are no values of int32"
        assert message in caught.value.message
        assert "precision='float64'" in str(caught.value.hint)
        return
    program = run_builder(f"{tmp_path / 'model.py'}:build")
    assert parameters(program)["net.count"] == f"{dtype}[]"
    assert load(program.files["net.safetensors"])["net.count"] == start
