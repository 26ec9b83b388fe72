"""State with `trainable: false` keeps its initial values, in every mode."""

import numpy as np
import pytest
import yaml
from support.run_ways import check_same, run_build, run_plain, write_spec

import placer
from placer import layers, optimizer
from placer.errors import PlacerError

pytestmark = pytest.mark.usefixtures("in_float64")

SPEC = """
name: kept
precision: float64
nodes: {worker: {count: 2}, ps: {count: 2}, heter: {count: 2, devices: {cpu: 1, gpu: 1}}}
emulate: true
inputs: {x: "float32[batch, 3]", y: "float32[batch, 3]"}
data:
  train: {source: "npz:train.npz", batch: 8}
  eval: {source: "npz:eval.npz", batch: 8}
graph:
  - {name: h, op: fc, in: x, size: 3}
  - {name: n, op: batch_norm, in: h, scope: batch, momentum: 0.5}
  - {name: t, op: tanh, in: n}
  - {name: loss, op: mean_squared_error, in: [t, y]}
parameters:
  - {match: "*.running_*", trainable: false}
train:
  minimize: loss
  metrics: [loss]
  optimizer: {op: momentum, learning_rate: 0.1}
"""
MEAN, VARIANCE = np.array([0.5, -1.0, 2.0]), np.array([4.0, 0.25, 1.0])
INITIAL = {
    "h.w": np.arange(9.0).reshape(3, 3) / 9,
    "h.b": np.array([0.1, 0.2, 0.3]),
    "n.scale": np.array([1.0, 2.0, 0.5]),
    "n.bias": np.array([0.0, 0.1, -0.1]),
    "n.running_mean": MEAN,
    "n.running_variance": VARIANCE,
}
WORKERS = "/node:worker/cpu"


def placed(spec, place=WORKERS, optimizer=None, **train):
    """Place the ops at `place`, and the optimizer."""
    spec["graph"] = [{"place": place, "ops": spec["graph"]}]
    spec["train"] |= train
    if optimizer is not None:
        spec["train"]["optimizer"]["place"] = optimizer
    return spec


def replica(spec):
    spec["graph"][1]["scope"] = "replica"
    return placed(spec)


def on_heter_nodes(spec):
    for op, place in zip(spec["graph"], (WORKERS, *["/node:heter"] * 3), strict=True):
        op["place"] = place
    return spec


def in_two_stages(spec):
    for op, worker in zip(spec["graph"], (0, 1, 1, 1), strict=True):
        op["place"] = f"/node:worker:{worker}/cpu"
    spec["train"]["microbatches"] = 2
    return spec


MODES = {
    "one process": placed,
    "servers": placed,
    "replicas": replica,
    "all-reduce": lambda spec: placed(spec, optimizer=WORKERS),
    "microbatches": lambda spec: placed(spec, microbatches=4),
    "heter nodes": on_heter_nodes,
    "pipeline": in_two_stages,
    "threads": lambda spec: placed(spec, threads=2),
}


@pytest.fixture(scope="module")
def rows():
    inputs = dict.fromkeys(("x", "y"), "float64[batch, 3]")
    return {
        name: {
            key: np.random.default_rng([seed, i]).normal(size=(16, 3))
            for i, key in enumerate(inputs)
        }
        for seed, name in enumerate(("train", "eval"))
    }


@pytest.mark.parametrize("mode", MODES)
def test_batch_norm_trains_with_kept_statistics(mode, rows, tmp_path):
    file = write_spec(MODES[mode](yaml.safe_load(SPEC)), rows, tmp_path)
    single = mode == "one process"
    found = run_build(file, tmp_path / "build", INITIAL, single_process=single)
    check_same(found, run_plain(file, rows, INITIAL), mode)
    # The reference is right: one step by hand.
    normed = (
        rows["train"]["x"][:8] @ INITIAL["h.w"] + INITIAL["h.b"] - MEAN
    ) / np.sqrt(VARIANCE + 1e-5)
    t = np.tanh(normed * INITIAL["n.scale"] + INITIAL["n.bias"])
    loss = np.mean((t - rows["train"]["y"][:8]) ** 2)
    assert found.history[0]["loss"] == pytest.approx(loss)
    check_kept(found)


def check_kept(trace):
    np.testing.assert_array_equal(trace.parameters["n.running_mean"], MEAN)
    np.testing.assert_array_equal(trace.parameters["n.running_variance"], VARIANCE)
    assert (trace.parameters["n.scale"] != INITIAL["n.scale"]).all()


@pytest.mark.parametrize(
    "update", ["async", {"geo": {"every": 2}}, {"sync": {"backup": 1}}]
)
def test_kept_statistics_need_no_other_rows(update, rows, tmp_path):
    """Asynchronous modes refuse `batch_norm` over the global batch otherwise."""
    spec = placed(yaml.safe_load(SPEC), optimizer="/node:ps/cpu")
    spec["train"]["optimizer"] |= {"op": "sgd", "update": update}
    file = write_spec(spec, rows, tmp_path)
    check_kept(run_build(file, tmp_path / "build", INITIAL, single_process=False))


CALL = """
- {name: c, op: call, fn: "called:centred", in: x, out: [m: "float32[batch, 3]", d: "float32[batch]"],
   params: {scale: {shape: [3], init: ones}}, state: {mean: {shape: [3], init: zeros}}}
- {name: loss, op: mean_squared_error, in: [m, y]}
"""


@pytest.mark.parametrize("trained", [True, False])
def test_a_call_keeps_its_state(trained, rows, tmp_path):
    spec = placed(yaml.safe_load(SPEC) | {"graph": yaml.safe_load(CALL)})
    spec["parameters"] = [{"match": "c.mean", "trainable": trained}]
    initial = {"c.scale": np.array([1.0, 2.0, 3.0]), "c.mean": MEAN}
    file = write_spec(spec, rows, tmp_path)
    found = run_build(file, tmp_path / "build", initial, single_process=False)
    check_same(found, run_plain(file, rows, initial), "placed")
    assert (found.parameters["c.mean"] == MEAN).all() != trained


def test_one_statistic_cannot_be_kept_without_the_other(rows, tmp_path):
    spec = yaml.safe_load(SPEC)
    spec["parameters"][0]["match"] = "*.running_mean"
    file = write_spec(placed(spec), rows, tmp_path)
    with pytest.raises(PlacerError) as caught:
        placer.compile(file, tmp_path / "build")
    assert (
        "op 'n': batch_norm keeps 'n.running_mean' (trainable: false), but updates"
        " 'n.running_variance'" in str(caught.value)
    )
    spec["parameters"][0]["match"] = "n.running_*"  # as the hint says
    assert 'write {match: "n.running_*", trainable: false}' in str(caught.value)
    placer.compile(write_spec(spec, rows, tmp_path), tmp_path / "build")


def test_the_python_front_end_keeps_statistics(rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = yaml.safe_load(SPEC)
    write_spec(spec, rows, tmp_path)
    sections = {k: spec[k] for k in ("nodes", "data", "parameters", "precision")}
    with placer.Program(**sections, emulate=True) as program:
        x, y = (layers.data(name, "float32[batch, 3]") for name in "xy")
        with placer.place_guard(WORKERS):
            n = layers.batch_norm(layers.fc(x, 3, name="h"), momentum=0.5, name="n")
            loss = layers.mean_squared_error(layers.tanh(n), y, name="loss")
        optimizer.Momentum(0.1).minimize(loss)
    kinds = [op.kind for op in program.model().graph.ops]
    assert kinds.count("normalize") == 1
    assert not {"store", "if_training", "moving_average", "variance"} & {*kinds}
