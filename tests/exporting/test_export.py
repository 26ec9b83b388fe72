"""Exporting builds; test_outputs_of_a_run.py compares what exported models compute."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.exported import check_exported, run_exported
from support.spec_models import SPECS, copy_spec, initial_parameters

import placer
from placer.errors import DataError, PlacerError
from placer.plan.plan import read_plan

NO_MEMORY = "{memory: 1KiB}"


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A build of digits, and its parameters."""
    folder = tmp_path_factory.mktemp("digits")
    plan = placer.compile(SPECS / "digits.yaml", folder / "build")
    save_file(initial_parameters(plan), folder / "params")
    return folder


def test_the_parameters_of_an_exported_model_are_those_that_outputs_need(
    digits, tmp_path
):
    # It is compiled first, with the outputs and for one process, without its servers.
    spec, servers = tmp_path / "spec.yaml", "ps: {count: 2"
    text = (SPECS / "digits.yaml").read_text()
    assert servers in text
    spec.write_text(text.replace(servers, f"{servers}, devices: {{cpu: {NO_MEMORY}}}"))
    wanted = load_file(digits / "params")  # a dict, as the `params` of a result
    model = placer.export(spec, tmp_path / "model", params=wanted, outputs=["h1"])
    parameters = load_file(model.folder / "params.safetensors")
    assert parameters.keys() == {"h1.w", "h1.b"}
    for name, array in parameters.items():
        np.testing.assert_array_equal(array, wanted[name])
    one = {"single_process": True, "in_process": True}
    rows = {"image": np.ones((3, 64), np.float32)}
    predicted = placer.predict(spec, rows, params=wanted, outputs=["h1"], **one)
    assert predicted["h1"].shape == (3, 128)
    assert model.outputs == ("h1",)
    assert "logits" not in (model.folder / "model.py").read_text()


def test_an_error_about_arrays_names_the_argument(digits, tmp_path):
    arrays = load_file(digits / "params")
    arrays["h1.w"][3, 5] = np.nan
    with pytest.raises(DataError, match=r"^'params': 'h1\.w' is not finite"):
        placer.export(digits / "build", tmp_path / "model", params=arrays)


def test_outputs_of_a_build_can_be_chosen(digits, tmp_path):
    build = tmp_path / "build"
    placer.compile(SPECS / "digits.yaml", build, outputs=["h1", "logits"])
    params = digits / "params"
    model = placer.export(build, tmp_path / "model", params=params, outputs=["h1"])
    assert model.outputs == ("h1",)
    with pytest.raises(PlacerError, match="'probability' is not an output"):
        placer.export(build, tmp_path / "no", params=params, outputs=["probability"])


def test_an_input_that_the_graph_does_not_use_is_not_exported(tmp_path):
    """Its column is read by no command, and not by the exported model."""
    np.savez(tmp_path / "rows.npz", x=np.ones((8, 2), np.float32))
    (tmp_path / "unused.yaml").write_text(UNUSED)
    build = tmp_path / "build"
    plan = placer.compile(tmp_path / "unused.yaml", build)
    save_file(initial_parameters(plan), tmp_path / "params")
    model = placer.export(build, tmp_path / "model", params=tmp_path / "params")
    assert model.arguments == ("x",)
    assert "elsewhere" not in (model.folder / "prepare.py").read_text()
    assert "elsewhere" not in (model.folder / "README.md").read_text()


UNUSED = """
nodes: {worker: {count: 1}}
inputs: {x: "float32[batch, 2]", unused: "float32[batch]"}
data:
  train:
    {source: "npz:rows.npz", batch: 8, columns: {x: x, unused: elsewhere}}
graph:
  - {name: y, op: fc, in: x, size: 1}
  - {name: loss, op: reduce_mean, in: y}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1}}
predict: {outputs: [y]}
"""


def test_stablehlo_files_for_fixed_batches(digits, tmp_path):
    params = digits / "params"
    model = placer.export(
        digits / "build", tmp_path / "model", params=params, batch=[1, 32]
    )
    files = {name for name in model.files if name.endswith(".stablehlo")}
    assert files == {"model_batch_1.stablehlo", "model_batch_32.stablehlo"}
    images = np.random.default_rng(0).uniform(0, 16, (32, 64)).astype("float32")
    got = run_exported(model.folder, {"image": images}, tmp_path)
    for size in (1, 32):
        lowered = got[f"model_batch_{size}.stablehlo:probability"]
        np.testing.assert_allclose(lowered, got["probability"][:size], rtol=1e-5)


WHOLE = """
name: halves
nodes: {worker: {count: 1}}
inputs: {x: "float32[batch, 4]"}
data: {train: {source: "npz:rows.npz", batch: 8}}
graph:
  - {name: y, op: call, fn: "halves:halves", in: x, out: "float32[batch, 4]",
     params: {w: {shape: [4, 4], init: xavier_uniform}}}
  - {name: loss, op: reduce_mean, in: y}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1}}
predict: {outputs: [y]}
"""
HALVES = """
import jax.numpy as jnp

def halves(params, state, x, rng, training):
    half = range(len(x) // 2)  # a Python loop over rows
    assert len(half) < 40, "too many"
    first = sum(x[i] for i in half) if len(half) else 0.0
    return (x + first) @ params["w"], state
"""


def test_an_op_that_needs_a_fixed_batch_is_named_and_exported_for_some(tmp_path):
    (tmp_path / "halves.yaml").write_text(WHOLE)
    (tmp_path / "halves.py").write_text(HALVES)
    np.savez(tmp_path / "rows.npz", x=np.ones((16, 4), "float32"))
    plan = placer.compile(tmp_path / "halves.yaml", tmp_path / "build")
    save_file(initial_parameters(plan), tmp_path / "params")
    model = placer.export(
        tmp_path / "build", tmp_path / "model", params=tmp_path / "params"
    )
    assert {"model_batch_1.stablehlo", "model_batch_8.stablehlo"} < {*model.files}
    (warning,) = model.warnings
    assert warning.startswith("`y = ops.outputs_of(…)` cannot be exported for a batch")
    assert "1 and 8" in warning
    assert "(halves.py:5: TypeError: " in warning
    assert "; write x.shape[0] instead of len(x))" in warning
    assert warning in (model.folder / "README.md").read_text()
    build, params = tmp_path / "build", tmp_path / "params"
    message = r"^`y = ops.outputs_of\(…\)` .* halves.py:6: AssertionError: too many"
    with pytest.raises(PlacerError, match=message):
        placer.export(build, tmp_path / "large", params=params, batch=[99])


LISTS = """
name: lists
nodes: {worker: {count: 1}}
inputs: {ids: "int32[batch, 3]", shares: "float32[batch, 3]"}
data: {train: {source: "npz:rows.npz", batch: 8}}
graph:
  - {name: bag, op: embedding, in: [ids, shares], size: [5, 2], combiner: sqrtn,
     padding: -1}
  - {name: middle, op: embedding, in: ids, combiner: mean, padding: -1, size: [5, 2],
     params: {table: bag.table}}
  - {name: all, op: concat, in: [bag, middle]}
  - {name: loss, op: reduce_mean, in: all}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1}}
predict: {outputs: [bag, middle]}
"""


def test_combiners_of_an_exported_model(tmp_path):
    (tmp_path / "lists.yaml").write_text(LISTS)
    plan = placer.compile(tmp_path / "lists.yaml", tmp_path / "build")
    parameters = initial_parameters(plan)
    save_file(parameters, tmp_path / "params")
    ids = np.array([[0, 1, -1], [4, 4, 2], [-1, 3, -1], [-1, -1, -1]], "int32")
    shares = np.arange(1, 13, dtype="float32").reshape(4, 3)
    rows = np.where(ids[..., None] == -1, 0, parameters["bag.table"][ids])
    used = np.where(ids == -1, 0, shares)[..., None]
    norm, number = np.sqrt((used**2).sum(1)), (used > 0).sum(1)
    wanted = {
        "bag": (rows * used).sum(1) / np.maximum(norm, 1),
        "middle": rows.sum(1) / np.maximum(number, 1).astype("float32"),
    }
    columns = {"ids": ids, "shares": shares}
    check_exported(
        tmp_path / "build", tmp_path / "params", columns, wanted, "float32", tmp_path
    )


def test_a_build_without_outputs_is_refused(digits, tmp_path):
    text = (SPECS / "digits.yaml").read_text()
    (tmp_path / "none.yaml").write_text(text[: text.index("predict:")])
    placer.compile(tmp_path / "none.yaml", tmp_path / "build")
    with pytest.raises(PlacerError, match="has no outputs to predict"):
        placer.export(tmp_path / "build", tmp_path / "model", params=digits / "params")
    assert not (tmp_path / "model").exists()


def test_parameters_of_another_model_are_refused_by_their_names(digits, tmp_path):
    parameters = load_file(digits / "params")
    parameters["h2.w"] = parameters.pop("h1.w")
    save_file(parameters, tmp_path / "params")
    with pytest.raises(DataError, match=r"h1\.w is missing; parameter h2\.w is not in"):
        placer.export(digits / "build", tmp_path / "m", params=tmp_path / "params")
    assert [path.name for path in tmp_path.iterdir()] == ["params"]


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("full", "contains files"),
        ("file", "it is not a folder"),
        ("no/folder", "does not exist"),
    ],
)
def test_only_a_new_or_an_empty_folder_is_written(out, message, digits, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("mine")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(PlacerError, match=message):
        placer.export(digits / "build", tmp_path / out, params=digits / "params")
    (tmp_path / "empty").mkdir()
    model = placer.export(
        digits / "build", tmp_path / "empty", params=digits / "params"
    )
    assert sorted(path.name for path in (tmp_path / "empty").iterdir()) == [
        *model.files
    ]


def test_an_export_changes_no_settings_of_jax(tmp_path):
    file = copy_spec("digits", tmp_path, "float64")
    plan = placer.compile(file, tmp_path / "build")
    save_file(initial_parameters(plan), tmp_path / "params")
    before = jax.config.values.copy()
    placer.export(tmp_path / "build", tmp_path / "model", params=tmp_path / "params")
    assert jax.config.values == before


def export_error(source, tmp_path):
    """Return the error of exporting a model that calls `halves` of this module."""
    (tmp_path / "halves.yaml").write_text(WHOLE)
    (tmp_path / "halves.py").write_text(source)
    np.savez(tmp_path / "rows.npz", x=np.ones((16, 4), "float32"))
    plan = placer.compile(tmp_path / "halves.yaml", tmp_path / "build")
    save_file(initial_parameters(plan), tmp_path / "params")
    with pytest.raises(PlacerError) as error:
        placer.export(tmp_path / "build", tmp_path / "m", params=tmp_path / "params")
    return str(error.value)


def test_a_module_that_needs_more_of_placer_than_guards_is_refused(tmp_path):
    error = export_error(
        "import placer\n\n"
        "def halves(params, state, x, rng, training):\n"
        "    with placer.place_guard(None):\n"
        "        return x @ params['w'], state\n",
        tmp_path,
    )
    assert "halves.py cannot be exported" in error
    assert "from placer import place_guard" in error


@pytest.mark.parametrize(
    ("before", "line"),
    [
        ("SCALE = np.ones(4)\nSCALE[2] = 3", 5),
        ("SCALE = 2\nSCALE *= 2", 5),
        ("SCALE = 2\nSCALE = SCALE * 2", 5),
        ("try:\n    SCALE = 2\nexcept ValueError:\n    SCALE = 3", 4),
        ("SCALE = []\nSCALE.append(2)", 5),
        ("def SCALE(): pass\n\ndel SCALE\nSCALE = 2", 6),
    ],
)
def test_a_name_that_a_module_changes_is_refused(before, line, tmp_path):
    error = export_error(
        "from placer import place_guard\n"
        "import numpy as np\n\n"
        f"{before}\n\n"
        "def halves(params, state, x, rng, training):\n"
        "    with place_guard(None):\n"
        "        return x @ params['w'] * np.sum(SCALE), state\n",
        tmp_path,
    )
    assert f"'halves.SCALE' cannot be exported: line {line} of halves changes" in error


def test_modules_with_the_names_of_exported_files_are_renamed(tmp_path):
    (tmp_path / "halves.yaml").write_text(WHOLE.replace("halves:halves", "ops:halves"))
    (tmp_path / "ops.py").write_text(
        "import params\nfrom params import twice\nimport math, msgspec.json\n\n"
        "def halves(p, state, x, rng, training):\n"
        "    return params.twice(x) @ p['w'] + twice(0), state\n"
    )
    (tmp_path / "params.py").write_text("def twice(x):\n    return 2 * x\n")
    x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
    np.savez(tmp_path / "rows.npz", x=x)
    placer.compile(tmp_path / "halves.yaml", tmp_path / "build")
    (tmp_path / "out").mkdir()
    params, columns = tmp_path / "params", {"x": x}
    save_file(initial_parameters(read_plan(tmp_path / "build")), params)
    wanted = placer.predict(tmp_path / "build", columns, params=params, in_process=True)
    out = tmp_path / "out"
    check_exported(tmp_path / "build", params, columns, wanted, "float32", out)
    readme = (out / "model" / "README.md").read_text()
    assert "it needs jax, numpy, safetensors and msgspec |" in readme


COUNTING = """
import jax.numpy as jnp
from flax import nnx

import placer
from placer import Program, layers, optimizer, place_guard


class Counting(nnx.Module):
    def __init__(self):
        self.steps = nnx.Variable(jnp.zeros((), jnp.int32))
        self.w = nnx.Param(jnp.ones(2))


def make():
    return Counting()


def state():
    return []  # as Keras for a model without state


def apply(model, state, x):
    model.steps[...] += 1
    return x @ model.w, state


def build():
    data = {"source": "npz:rows.npz", "batch": 8}
    program = Program(nodes={"worker": {"count": 1}}, data={"train": data})
    with program, place_guard("/node:worker"):
        x = layers.data("x", "float32[batch, 2]")
        y = placer.trace(apply, make, state, x, name="net", state="state")
        loss = layers.mean(y)
        optimizer.SGD(0.1).minimize(loss)
    return program
"""


def test_a_number_that_outputs_do_not_need_is_no_parameter_of_the_export(tmp_path):
    (tmp_path / "counting.py").write_text(COUNTING)
    np.savez(tmp_path / "rows.npz", x=np.ones((8, 2), np.float32))
    model = placer.export(
        f"{tmp_path}/counting.py:build",
        tmp_path / "model",
        params={"net.steps": np.int32(3), "net.w": np.float32([2, 3])},
        outputs=["net"],
    )
    assert load_file(model.folder / "params.safetensors").keys() == {"net.w"}
    text = (model.folder / "model.py").read_text()
    assert 'jnp.zeros((), "int32")' in text
    assert "ops.with_leaves(counting.state, {})" in text
