"""`placer.restore` puts the parameters of a run back into a model of a JAX library."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load

import placer
from placer.errors import DataError, PlacerError, SpecError
from placer.runtime.saving.parameter_files import save

NETS = """
from pathlib import Path

import equinox
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

import placer


def started(make):
    values = dict(np.load(Path(__file__).with_name("values.npz")))
    return placer.restore(make(), values, "net")


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(3)(linen.relu(linen.Dense(5)(x)))


def linen_():
    return Linen().init(jax.random.key(0), jnp.ones((1, 4)))


def apply_linen(variables, x):
    return Linen().apply(variables, x)


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(4, 5, rngs=rngs), nnx.Linear(5, 3, rngs=rngs)])
        self.norm = nnx.BatchNorm(5, use_running_average=True, rngs=rngs)


def nnx_():
    return Nnx(nnx.Rngs(0))


def apply_nnx(model, x):
    return model.layers[1](nnx.relu(model.norm(model.layers[0](x))))


def equinox_():
    return equinox.nn.MLP(4, 3, 5, 1, key=jax.random.key(0))


class Normed(nnx.Module):
    def __init__(self, size):
        self.norm = nnx.BatchNorm(size, rngs=nnx.Rngs(0))


def normed(size=4):
    return Normed(size)


def apply_normed(model, x):
    return model.norm(x)


def weights():
    return {"w": jnp.ones((4, 3))}


def stats():
    return {"mean": jnp.zeros(4)}


def apply_stats(p, stats, x):
    return (x - stats["mean"]) @ p["w"], {"mean": 0.9 * stats["mean"] + x.mean(0)}


def apply_equinox(model, x):
    return jax.vmap(model)(x)


def plain():
    return {"layers": [jnp.ones((4, 5)), jnp.ones((5, 3))], "2d": jnp.zeros(()), "new": jnp.ones(3)}


def apply_plain(p, x):
    return jnp.tanh(x @ p["layers"][0]) @ p["layers"][1] * p["new"] + p["2d"]


def two(down, up, x):
    return x @ up["kernel"] @ down["kernel"]


def up():
    return {"kernel": jnp.ones((4, 5))}


def down():
    return {"kernel": jnp.ones((5, 3))}
"""

PROGRAM = """
import jax.numpy as jnp
import numpy as np
import nets
import placer
from placer import Program, layers, optimizer, place_guard


def build():
    program = Program(
        nodes={"worker": {"count": 1}},
        data={"train": {"source": "npz:rows.npz", "batch": 16}},
        epochs=1,
    )
    with program, place_guard("/node:worker"):
        x = layers.data("x", "float32[batch, 4]")
        y = CALL
        loss = layers.mean(layers.square(y), name="loss")
        optimizer.SGD(0.1).minimize(loss)
    return program
"""

LIBRARIES = ("linen_", "nnx_", "equinox_", "plain")


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "nets.py").write_text(NETS)
    np.savez(tmp_path / "rows.npz", x=np.ones((16, 4), np.float32))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    module = importlib.import_module("nets")
    yield module
    sys.modules.pop("nets", None)


def compile_call(folder: Path, call: str) -> dict[str, np.ndarray]:
    """Compile a program with this call, and return its initial parameters by name."""
    (folder / "program.py").write_text(PROGRAM.replace("CALL", call))
    plan = placer.compile(f"{folder / 'program.py'}:build", folder / "build")
    stored = load((folder / "build" / "net.safetensors").read_bytes())
    assert {each.name for each in plan.parameters} == {*stored}
    return stored


def trace_of(library: str) -> str:
    return (
        f'placer.trace(nets.apply_{library.strip("_")}, nets.{library}, x, name="net")'
    )


def changed(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        name: random.normal(size=each.shape).astype(np.float32)
        for name, each in arrays.items()
    }


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_model_gets_the_parameters_that_a_trace_of_it_has(nets, library, tmp_path):
    initial = compile_call(tmp_path, trace_of(library))
    make, apply = getattr(nets, library), getattr(nets, f"apply_{library.strip('_')}")
    x = jax.random.normal(jax.random.key(1), (7, 4))
    same = placer.restore(make(), initial, "net")
    np.testing.assert_array_equal(apply(same, x), apply(make(), x))
    new = placer.restore(make(), changed(initial), "net")
    assert float(abs(apply(new, x) - apply(make(), x)).max()) > 0.01


def test_a_pytree_is_new_and_a_module_of_nnx_is_updated(nets, tmp_path):
    for library, in_place in (("linen_", False), ("equinox_", False), ("nnx_", True)):
        trained = changed(compile_call(tmp_path, trace_of(library)))
        model = getattr(nets, library)()
        before = [np.asarray(x) for x in jax.tree.leaves(model) if hasattr(x, "shape")]
        new = placer.restore(model, trained, "net")
        after = [np.asarray(x) for x in jax.tree.leaves(model) if hasattr(x, "shape")]
        same = all(map(np.array_equal, before, after))
        assert (new is model, same) == (in_place, not in_place)


def test_what_is_no_parameter_keeps_its_value(nets, tmp_path):
    trained = changed(compile_call(tmp_path, trace_of("nnx_")))
    model = nets.nnx_()
    model.norm.mean[...] = jnp.arange(5.0)
    restored = placer.restore(model, trained, "net")
    np.testing.assert_array_equal(restored.norm.mean[...], np.arange(5.0))
    np.testing.assert_array_equal(restored.norm.scale[...], trained["net.norm_scale"])


def test_state_is_restored_and_started(nets, tmp_path):
    call = 'placer.trace(nets.apply_normed, (nets.normed, {"size": 4}), x, name="net")'
    trained = changed(compile_call(tmp_path, call))
    assert {*trained} == {f"net.norm_{x}" for x in ("mean", "var", "scale", "bias")}
    model = placer.restore(nets.normed(), trained, "net")
    for name, value in trained.items():
        own = getattr(model.norm, name.removeprefix("net.norm_"))[...]
        np.testing.assert_array_equal(own, value)
    np.savez(tmp_path / "values.npz", **trained)
    init = 'init=nets.started(nets.normed), name="net"'
    stored = compile_call(tmp_path, call.replace('name="net"', init))
    for name, value in trained.items():
        np.testing.assert_array_equal(stored[name], value)


@pytest.mark.parametrize(
    ("init", "mean"),
    [
        ("{'p': {'w': 2 * np.ones((4, 3))}}", 0.0),
        ("{'p': {'w': 2 * np.ones((4, 3))}, 'stats': {'mean': 3 * np.ones(4)}}", 3.0),
    ],
)
def test_init_may_leave_out_an_argument_that_is_state(nets, init, mean, tmp_path):
    call = (
        "placer.trace(nets.apply_stats, nets.weights, nets.stats, x, name='net',"
        f" state='stats', init={init})"
    )
    stored = compile_call(tmp_path, call)
    assert {name: float(x.mean()) for name, x in stored.items()} == {
        "net.p_w": 2.0,
        "net.stats_mean": mean,
    }


def test_several_arguments_are_a_dict(nets, tmp_path):
    call = 'placer.trace(nets.two, nets.down, nets.up, x, name="net")'
    trained = changed(compile_call(tmp_path, call))
    assert {*trained} == {"net.down_kernel", "net.up_kernel"}
    models = placer.restore({"up": nets.up(), "down": nets.down()}, trained, "net")
    np.testing.assert_array_equal(models["up"]["kernel"], trained["net.up_kernel"])


def test_a_dict_of_nnx_modules_is_updated_in_place(nets):
    modules = {"a": nnx.Linear(2, 3, rngs=nnx.Rngs(0)), "b": [jnp.zeros(2)]}
    kernel, bias = np.ones((2, 3)), np.arange(3.0)
    trained = {"m.a_kernel": kernel, "m.a_bias": bias, "m.b_0": np.ones(2), "k.w": bias}
    new = placer.restore(modules, trained, "m")
    assert new["a"] is modules["a"]
    assert modules["a"].bias[...].tolist() == [0, 1, 2]
    assert (new["b"][0].tolist(), modules["b"][0].tolist()) == ([1, 1], [0, 0])


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_arrays_keep_the_dtypes_of_the_model(dtype):
    with jax.enable_x64(True):
        model = {"w": jnp.zeros(3, dtype), "v": np.zeros(2, dtype)}
    trained = {"m.w": np.arange(3.0), "m.v": np.arange(2, dtype=np.float32)}
    new = placer.restore(model, trained, "m")
    assert (str(new["w"].dtype), str(new["v"].dtype)) == (dtype, dtype)
    assert isinstance(new["w"], jax.Array)
    assert type(new["v"]) is np.ndarray
    assert new["w"].tolist() == [0, 1, 2]


def test_a_file_of_parameters_is_read(nets, tmp_path):
    trained = changed(compile_call(tmp_path, trace_of("linen_")))
    save(
        tmp_path / "params.safetensors", {**trained, "other.w": np.ones(3, np.float32)}
    )
    for path in (tmp_path / "params.safetensors", str(tmp_path / "params.safetensors")):
        new = placer.restore(nets.linen_(), path, "net")
        kernel = new["params"]["Dense_0"]["kernel"]
        np.testing.assert_array_equal(kernel, trained["net.params_Dense_0_kernel"])


def test_a_result_and_a_checkpoint_restore_the_same_model(nets, tmp_path):
    compile_call(tmp_path, trace_of("nnx_"))
    result = placer.launch(
        tmp_path / "build", in_process=True, checkpoint=tmp_path / "saved"
    )
    models = [
        placer.restore(nets.nnx_(), trained, "net")
        for trained in (result, result.params, tmp_path / "saved")
    ]
    for model in models:
        kernel = model.layers[0].kernel[...]
        np.testing.assert_array_equal(kernel, result.params["net.layers_0_kernel"])
        assert not np.array_equal(kernel, nets.nnx_().layers[0].kernel[...])
    assert result.state == {}


def test_the_state_of_a_result_is_a_part_of_its_parameters(nets, tmp_path):
    call = 'placer.trace(nets.apply_normed, (nets.normed, {"size": 4}), x, name="net")'
    compile_call(tmp_path, call)
    result = placer.launch(tmp_path / "build", in_process=True)
    assert {*result.state} == {"net.norm_mean", "net.norm_var"}
    for name, value in result.state.items():
        assert value is result.params[name]
        assert not np.array_equal(value, getattr(nets.normed().norm, name[9:])[...])


def test_all_parameters_that_do_not_fit_are_in_one_error():
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    before = np.asarray(model.kernel[...])
    trained = {"m.kernel": np.ones((3, 2)), "m.biass": np.ones(3), "m.gate": np.ones(1)}
    with pytest.raises(DataError) as caught:
        placer.restore(model, trained, "m")
    assert caught.value.message == (
        "the parameters do not fit the model: parameter m.bias is missing; parameter"
        " m.biass is not in the model; did you mean 'm.bias'?; parameter m.gate is not in"
        " the model; one of: m.bias; parameter m.kernel is [3, 2], the model has [2, 3]"
    )
    np.testing.assert_array_equal(model.kernel[...], before)


@pytest.mark.parametrize(
    ("model", "params", "name", "error", "message", "hint"),
    [
        (
            {"w": np.ones(2)},
            {"net.w": np.ones(2), "top.w": np.ones(2)},
            "nett",
            DataError,
            "no parameter is called 'nett.…'; there are parameters of 'net', 'top'",
            "did you mean 'net'?",
        ),
        (
            lambda: None,
            {"net.w": np.ones(2)},
            "net",
            PlacerError,
            "the model is the function '<lambda>'",
            "pass the model that it returns",
        ),
        (
            {"n": np.arange(2)},
            {"net.w": np.ones(2)},
            "net",
            PlacerError,
            "the model, dict, has no parameters",
            "a pytree with arrays of floats",
        ),
        (
            {"w": np.ones(2)},
            [np.ones(2)],
            "net",
            PlacerError,
            "'params' is a list, not a path or a dict of arrays",
            "pass result.params",
        ),
    ],
)
def test_other_mistakes_are_reported(model, params, name, error, message, hint):
    with pytest.raises(error) as caught:
        placer.restore(model, params, name)
    assert caught.value.message == message
    assert hint in str(caught.value.hint)


class Variable:
    """Has what placer uses of a variable of Keras."""

    def __init__(
        self, path: str, shape: tuple[int, ...], trainable: bool = True
    ) -> None:
        self.path, self.shape, self.dtype = path, shape, "float32"
        self.trainable, self.value = trainable, np.zeros(shape, np.float32)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.value

    def assign(self, value: Any) -> None:
        assert np.shape(value) == self.shape
        self.value = np.asarray(value, np.float32)


class Model:
    def __init__(self) -> None:
        self.trainable_variables = [
            Variable("sequential/dense/kernel", (4, 2)),
            Variable("sequential/dense/bias", (2,)),
        ]
        self.non_trainable_variables = [
            Variable("sequential/norm/mean", (2,), trainable=False),
            Variable("drop/seed_generator_state", (2,), trainable=False),
        ]
        self.variables = [*self.non_trainable_variables, *self.trainable_variables]


def test_a_keras_model_is_updated_in_place(monkeypatch):
    keras = SimpleNamespace(Variable=Variable, Model=Model)
    monkeypatch.setitem(sys.modules, "keras", keras)
    prefix = "m.sequential_dense"
    trained = {f"{prefix}_bias": np.arange(2), f"{prefix}_kernel": np.ones((4, 2))}
    model = Model()
    assert placer.restore(model, trained, "m") is model
    kernel, bias = model.trainable_variables
    assert (kernel.value.sum(), bias.value.tolist()) == (8, [0, 1])
    trained[f"{prefix}_1_bias"] = trained.pop(f"{prefix}_bias")
    with pytest.raises(DataError, match=f"{prefix}_bias is missing") as caught:
        placer.restore(model, trained, "m")
    assert "Dense(10, name='head')" in str(caught.value.hint)


def test_variables_of_keras_are_updated_in_place(monkeypatch):
    keras = SimpleNamespace(Variable=Variable, Model=Model)
    monkeypatch.setitem(sys.modules, "keras", keras)
    prefix = "m.sequential_dense"
    trained = {f"{prefix}_bias": np.arange(2), f"{prefix}_kernel": np.ones((4, 2))}
    variables = Model().trainable_variables
    assert placer.restore(variables, trained, "m")[1] is variables[1]
    assert variables[1].value.tolist() == [0, 1]


@pytest.mark.parametrize("split", [False, True])
def test_state_of_keras_is_updated_in_place(split, monkeypatch):
    keras = SimpleNamespace(Variable=Variable, Model=Model)
    monkeypatch.setitem(sys.modules, "keras", keras)
    prefix = "m.sequential"
    values = {
        f"{prefix}_dense_bias": np.arange(2),
        f"{prefix}_dense_kernel": np.ones((4, 2)),
        f"{prefix}_norm_mean": np.full(2, 7),
    }
    model = Model()
    arguments = {"state": model.non_trainable_variables, "w": model.trainable_variables}
    placer.restore(arguments if split else model, values, "m")
    mean, seeds = model.non_trainable_variables
    assert (mean.value.tolist(), seeds.value.tolist()) == ([7, 7], [0, 0])
    assert model.trainable_variables[1].value.tolist() == [0, 1]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_trace_starts_from_a_pytree(nets, library, tmp_path):
    values = changed(compile_call(tmp_path, trace_of(library)))
    np.savez(tmp_path / "values.npz", **values)
    init = f"init=nets.started(nets.{library})"
    stored = compile_call(tmp_path, trace_of(library).replace("name", f"{init}, name"))
    assert {*stored} == {*values}
    for name, value in values.items():
        np.testing.assert_array_equal(stored[name], value)


def test_a_pytree_also_starts_several_arguments_and_shapes(nets, tmp_path):
    struct = "{'kernel': __import__('jax').ShapeDtypeStruct((4, 5), 'float32')}"
    init = "{'down': {'kernel': np.ones((5, 3))}, 'up': nets.up()}"
    call = f"placer.trace(nets.two, nets.down, {struct}, x, init={init}, name='net')"
    stored = compile_call(tmp_path, call)
    assert all((value == 1).all() for value in stored.values())


@pytest.mark.parametrize(
    ("init", "message"),
    [
        (
            "{'layers': [np.ones((4, 5)), np.ones((3, 5))], '2d': np.ones(())}",
            "trace 'net': init does not fit the arguments: parameter net.layers_1 is"
            " [3, 5], the model has [5, 3]; parameter net.new_ is missing",
        ),
        (
            "{'layers': [__import__('jax').ShapeDtypeStruct((4, 5), 'float32')]}",
            "trace 'net': init.layers.0 has a shape but no values",
        ),
    ],
)
def test_a_pytree_that_does_not_fit_is_reported(nets, init, message, tmp_path):
    with pytest.raises(SpecError) as caught:
        compile_call(tmp_path, trace_of("plain").replace("name", f"init={init}, name"))
    assert caught.value.message == message


def test_importing_placer_does_not_import_the_compiler():
    code = (
        "import sys, placer; placer.__all__; "
        "print([m for m in sys.modules if m.startswith('placer.compiler') or m == 'jax'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "[]\n"
