"""A run with an optax optimizer continues on every placement, and evaluations, predictions
and exports use the values of `eval_params`."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import optax.contrib  # noqa: F401  (before `quick_compilation` replaces jax.jit)
import pytest
import yaml
from safetensors.numpy import load_file

import placer
from placer.checkpoint.manifest import AVERAGED, VALUES
from placer.checkpoint.manifest_file import read_manifest
from placer.checkpoint.reading import Checkpoint
from placer.errors import CheckpointError, RunError
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads
from placer.runtime.saving import resumed_tables

pytestmark = pytest.mark.usefixtures("in_float64")

OPTIMIZERS = '''
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax.contrib import schedule_free_adamw, schedule_free_eval_params


def adam(learning_rate):
    return optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.scale_by_adam(mu_dtype=jnp.float32),
        optax.scale_by_learning_rate(learning_rate),
    )


def slow_adam():
    return optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.scale_by_adam(b1=0.99, mu_dtype=jnp.float32),
        optax.scale(-0.01),
    )


class Mean(NamedTuple):
    averaged: Any
    value: jax.Array


def running_mean():
    def init(params):
        return Mean(params, jnp.zeros([], jnp.int32))

    def update(updates, state, params):
        new = optax.apply_updates(params, updates)
        mean = jax.tree.map(lambda m, p: 0.8 * m + 0.2 * p, state.averaged, new)
        return updates, Mean(mean, state.value + 1)

    return optax.GradientTransformation(init, update)


def ema():
    return optax.chain(optax.adam(0.05), running_mean())


def mean_of(state, params):
    return state[1].averaged


def only_mean():
    """The fields of its state are called as arrays of a checkpoint are."""
    inner = running_mean()

    def update(gradients, state, params):
        return inner.update(jax.tree.map(lambda g: -0.05 * g, gradients), state, params)

    return optax.GradientTransformation(inner.init, update)


def mean_alone(state, params):
    return state.averaged


def schedule_free():
    return schedule_free_adamw(0.05, warmup_steps=3)


def partitioned():
    """Parameters have different state."""
    rules = {"a": optax.adam(0.05), "m": optax.sgd(0.1, momentum=0.9, nesterov=True)}

    def labels(params):
        return {name: "a" if name.startswith("h") else "m" for name in params}

    return optax.multi_transform(rules, labels)


def adafactor():
    return optax.adafactor(0.05, min_dim_size_to_factor=2)


def with_extra(value):
    """Gradient descent with an array of the state that is not finite."""

    def init(params):
        return jax.tree.map(lambda p: jnp.full_like(p, value), params)

    def update(updates, state, params=None):
        return jax.tree.map(lambda u: -0.05 * u, updates), state

    return optax.GradientTransformation(init, update)


def infinite():
    return with_extra(jnp.inf)


def not_a_number():
    return with_extra(jnp.nan)


def noisy():
    return optax.chain(optax.add_noise(0.0, 0.55, jax.random.key(7)), optax.sgd(0.05))
'''
RULES: dict[str, dict[str, Any]] = {
    "adam": {
        "fn": "optimizers:adam",
        "learning_rate": {"exponential": {"init": 0.05, "rate": 0.8, "steps": 2}},
    },
    "ema": {"fn": "optimizers:ema", "eval_params": "optimizers:mean_of"},
    "only_mean": {"fn": "optimizers:only_mean", "eval_params": "optimizers:mean_alone"},
    "schedule_free": {
        "fn": "optimizers:schedule_free",
        "eval_params": "optimizers:schedule_free_eval_params",
    },
    "partitioned": {"fn": "optimizers:partitioned"},
}
SERVERS = {"worker": {"count": 2}, "ps": {"count": 2}}
PLACEMENTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one process": ({"worker": {"count": 1}}, {"place": "/node:worker"}),
    "one server": (
        {"worker": {"count": 2}, "ps": {"count": 1}},
        {"place": "/node:ps"},
    ),
    "two servers": (SERVERS, {"place": "/node:ps"}),
    "all-reduce": ({"worker": {"count": 2}}, {"place": "/node:worker"}),
    "shard_state": (
        {"worker": {"count": 2}},
        {"place": "/node:worker", "shard_state": True},
    ),
}
DEVICES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "devices": (
        {"worker": {"count": 2, "devices": {"cpu": 1, "gpu": 1}}},
        {"place": "/node:worker/gpu"},
    ),
}
ROWS, STEPS, STOP = 36, 6, 3


ALWAYS = {
    ("ema", "two servers"),
    ("ema", "shard_state"),
    ("schedule_free", "all-reduce"),
    ("only_mean", "shard_state"),
    ("partitioned", "one process"),
}
"""The cases that are not slow: each kind of state and most placements."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path: Path = tmp_path_factory.mktemp("optax")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 6))
    np.savez(path / "rows.npz", x=x, y=(x[:, 0] > 0).astype(np.int32))
    (path / "optimizers.py").write_text(OPTIMIZERS)
    return path


def compile_placed(
    folder: Path, rule: str, placement: str, graph: str = "/node:worker", **changes: Any
) -> Path:
    nodes, places = (PLACEMENTS | DEVICES)[placement]
    optimizer = {**RULES.get(rule, {}), **places, **changes}
    optimizer["op"] = "optax" if "fn" in optimizer else rule
    source = {"source": "npz:rows.npz", "batch": 12}
    spec = {
        "name": "averaged",
        "precision": "float64",
        "emulate": "gpu" in graph,
        "nodes": nodes,
        "inputs": {"x": "float64[batch, 6]", "y": "int32[batch]"},
        "data": {"train": {**source, "shuffle": True}, "eval": source},
        "graph": [
            {
                "place": graph,
                "ops": [
                    {"name": "h", "op": "fc", "in": "x", "size": 8},
                    {"name": "a", "op": "tanh", "in": "h"},
                    {"name": "o", "op": "fc", "in": "a", "size": 1},
                    {"name": "logit", "op": "reshape", "in": "o", "shape": ["batch"]},
                    {
                        "name": "loss",
                        "op": "sigmoid_cross_entropy",
                        "in": ["logit", "y"],
                    },
                ],
            }
        ],
        "train": {
            "minimize": "loss",
            "epochs": 2,
            "slicing": {"min_block": 8},
            "optimizer": optimizer,
        },
        "predict": {"outputs": ["logit"]},
    }
    name = "-".join((rule, placement.replace(" ", "-"), *changes))
    name += "-gpu" * ("gpu" in graph)
    text = folder / f"{name}.yaml"
    text.write_text(yaml.safe_dump(spec, sort_keys=False))
    build = folder / name
    if not build.is_dir():
        placer.compile(text, build)
    return build


def run(build: Path, out: Path, **options: Any) -> placer.Result:
    return run_in_threads(
        build,
        Options(
            steps=STEPS,
            save_params=out / "params",
            checkpoint=out / "checkpoints",
            checkpoint_every=1,
            checkpoint_keep=100,
            **options,
        ),
    )


def arrays_of(checkpoint: Path) -> dict[str, np.ndarray]:
    """Return all arrays of all parameters of a checkpoint, whole."""
    opened = Checkpoint(checkpoint)
    arrays = {}
    for name, stored in opened.manifest.parameters.items():
        for array in (*stored.arrays, *stored.leaves):
            kind = stored.type_of(array)
            out = np.empty(kind.shape, kind.dtype)
            flat = out.reshape(-1).view(np.uint8).data
            opened.read([*opened.wanted(name, array, 0, flat)])
            arrays[f"{name}/{array}"] = out
    return arrays


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    """Return a function that runs an optimizer on a placement once, uninterrupted."""
    runs: dict[tuple[str, str], tuple[Path, placer.Result]] = {}

    def of(rule: str, placement: str) -> tuple[Path, placer.Result]:
        key = rule, placement
        if key not in runs:
            out = tmp_path_factory.mktemp("whole")
            runs[key] = out, run(compile_placed(folder, rule, placement), out)
        return runs[key]

    return of


def step(out: Path, number: int) -> Path:
    return out / "checkpoints" / f"step-{number:06d}"


@pytest.mark.parametrize(
    ("rule", "placement"),
    [
        pytest.param(*pair, marks=() if pair in ALWAYS else pytest.mark.slow)
        for pair in product(RULES, PLACEMENTS)
    ],
)
def test_a_run_continues_on_another_placement(
    rule, placement, whole, folder, tmp_path, capsys
):
    first, _ = whole(rule, "two servers")
    resumed = run(
        compile_placed(folder, rule, placement), tmp_path, resume=step(first, STOP)
    )
    expected = arrays_of(step(first, STEPS))
    actual = arrays_of(step(tmp_path, STEPS))
    assert actual.keys() == expected.keys()
    is_same = placement == "two servers"
    said = capsys.readouterr().err
    assert ("not necessarily with the same bits" in said) != is_same, said
    for name, values in expected.items():
        tolerance = 0 if is_same else 1e-14
        if values.dtype == np.float32:
            tolerance *= 1e8
        np.testing.assert_allclose(
            actual[name], values, rtol=tolerance, atol=tolerance, err_msg=name
        )
    saved, wanted = load_file(tmp_path / "params"), load_file(first / "params")
    for name, values in wanted.items():
        np.testing.assert_allclose(
            saved[name], values, rtol=0, atol=0 if is_same else 1e-14
        )
    _, uninterrupted = whole(rule, placement)
    assert resumed.eval == pytest.approx(uninterrupted.eval, rel=1e-12)


@pytest.mark.parametrize(
    ("fn", "placements"),
    [("adafactor", ["one server", "all-reduce"]), ("noisy", ["one server"])],
)
def test_whole_parameters_continue_elsewhere_with_their_arrays(
    fn, placements, folder, tmp_path
):
    """Two servers hold whole parameters, then one holds all, then each worker."""
    outs = {}
    for placement in ("two servers", *placements):
        build = compile_placed(folder, fn, placement, fn=f"optimizers:{fn}")
        outs[placement] = tmp_path / placement.replace(" ", "-")
        resume = None if placement == "two servers" else step(outs["two servers"], STOP)
        run(build, outs[placement], resume=resume)
    expected = arrays_of(step(outs["two servers"], STEPS))
    leaves = read_manifest(step(outs["two servers"], STEPS)).parameters["h.w"].leaves
    wanted = {"adafactor": {"0.v_row": "float64"}, "noisy": {"0.rng_key": "uint32"}}[fn]
    assert wanted.items() <= {n: leaf.dtype for n, leaf in leaves.items()}.items()
    for placement in placements:
        actual = arrays_of(step(outs[placement], STEPS))
        assert actual.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_allclose(
                actual[name], values, rtol=1e-14, atol=1e-14, err_msg=name
            )


def test_a_node_without_the_files_receives_all_arrays(
    whole, folder, tmp_path, monkeypatch
):
    first, _ = whole("schedule_free", "two servers")
    monkeypatch.setattr(resumed_tables, "_sees", lambda choice: False)
    build = compile_placed(folder, "schedule_free", "two servers")
    run(build, tmp_path, resume=step(first, STOP))
    expected, actual = (arrays_of(step(each, STEPS)) for each in (first, tmp_path))
    for name, values in expected.items():
        np.testing.assert_array_equal(actual[name], values, err_msg=name)


def logits(values: dict[str, np.ndarray], rows: np.ndarray) -> np.ndarray:
    hidden = np.tanh(rows @ values["h.w"] + values["h.b"])
    return (hidden @ values["o.w"] + values["o.b"]).reshape(-1)


def loss(values: dict[str, np.ndarray], rows: np.ndarray, labels: np.ndarray) -> float:
    logit = logits(values, rows)
    return float(np.mean(np.logaddexp(0, logit) - labels * logit))


def of_parameters(checkpoint: Path, array: str) -> dict[str, np.ndarray]:
    names = read_manifest(checkpoint).parameters
    arrays = arrays_of(checkpoint)
    return {name: arrays[f"{name}/{array}"] for name in names}


@pytest.mark.parametrize(
    ("rule", "placement"),
    [
        ("ema", "two servers"),
        ("ema", "shard_state"),
        ("schedule_free", "all-reduce"),
        pytest.param("schedule_free", "one process", marks=pytest.mark.slow),
    ],
)
def test_evaluations_and_saved_parameters_are_averages(rule, placement, whole, folder):
    out, result = whole(rule, placement)
    trained = of_parameters(step(out, STEPS), VALUES)
    averaged = of_parameters(step(out, STEPS), AVERAGED)
    with np.load(folder / "rows.npz") as rows:
        expected = loss(averaged, rows["x"], rows["y"])
        assert abs(loss(trained, rows["x"], rows["y"]) - expected) > 1e-4
    assert result.eval["loss"] == pytest.approx(expected, rel=1e-12)
    saved = load_file(out / "params")
    for name, values in averaged.items():
        np.testing.assert_array_equal(saved[name], values)


def test_averages_are_those_of_the_optimizer(whole):
    out, _ = whole("ema", "two servers")
    before = of_parameters(step(out, 1), AVERAGED)
    for number in range(2, STEPS + 1):
        now = of_parameters(step(out, number), AVERAGED)
        state = of_parameters(step(out, number), "1.averaged")
        for name, value in of_parameters(step(out, number), VALUES).items():
            np.testing.assert_allclose(
                now[name], 0.8 * before[name] + 0.2 * value, rtol=1e-14
            )
            np.testing.assert_array_equal(now[name], state[name])
        before = now


def test_every_reader_of_a_checkpoint_uses_the_averages(whole, folder, tmp_path):
    out, _ = whole("schedule_free", "two servers")
    build, checkpoint = folder / "schedule_free-two-servers", step(out, STEPS)
    averaged = of_parameters(checkpoint, AVERAGED)
    rows = np.random.default_rng(1).normal(size=(5, 6))
    for params in (checkpoint, out / "params"):
        for alone in (True, False):
            predicted = placer.predict(
                build,
                {"x": rows},
                params=params,
                raw=True,
                in_process=True,
                single_process=alone,
            )
            np.testing.assert_allclose(
                predicted["logit"], logits(averaged, rows), rtol=1e-12
            )
    placer.export(build, tmp_path / "exported", params=checkpoint)
    exported = load_file(tmp_path / "exported" / "params.safetensors")
    restored = placer.restore(
        {"w": np.zeros((6, 8)), "b": np.zeros(8)}, checkpoint, "h"
    )
    np.testing.assert_array_equal(restored["w"], averaged["h.w"])
    np.testing.assert_array_equal(restored["b"], averaged["h.b"])
    for name, values in averaged.items():
        np.testing.assert_array_equal(exported[name], values)
    run(build, tmp_path, init_params=checkpoint)
    # The warm-up of the optimizer begins with the rate 0.
    for array in (VALUES, "z", AVERAGED):
        for name, values in of_parameters(step(tmp_path, 1), array).items():
            np.testing.assert_allclose(values, averaged[name], rtol=1e-14)


def test_another_structure_of_the_state_is_an_error(whole, folder, tmp_path):
    out, _ = whole("ema", "two servers")
    build = compile_placed(folder, "adam", "two servers")
    with pytest.raises(
        CheckpointError,
        match=r"h.w \('1.mu' is not in the checkpoint\)",
    ):
        run_in_threads(build, Options(steps=STEPS, resume=step(out, STOP)))
    momentum = compile_placed(folder, "momentum", "two servers", learning_rate=0.1)
    with pytest.raises(CheckpointError, match=r"h.w \(optax, not momentum\)"):
        run_in_threads(momentum, Options(steps=STEPS, resume=step(out, STOP)))


def test_another_function_with_the_same_state_is_a_warning(whole, folder, capsys):
    out, _ = whole("adam", "two servers")
    resume = Options(steps=STEPS, resume=step(out, STOP))
    run_in_threads(compile_placed(folder, "adam", "two servers"), resume)
    assert "was optimizers" not in capsys.readouterr().err
    fn = "optimizers:slow_adam"
    run_in_threads(compile_placed(folder, "slow_adam", "two servers", fn=fn), resume)
    assert (
        "the optimizer of h.w was optimizers:adam and is optimizers:slow_adam, which"
        " continues with the state of the checkpoint"
    ) in capsys.readouterr().err


def test_a_state_that_the_checkpoint_lacks_begins_with_the_loaded_values(
    whole, folder, tmp_path
):
    first, _ = whole("adam", "two servers")
    build = compile_placed(folder, "only_mean", "one server")
    run(build, tmp_path, resume=step(first, STOP), partial=True)
    loaded = of_parameters(step(first, STOP), VALUES)
    values = of_parameters(step(tmp_path, STOP + 1), VALUES)
    means = of_parameters(step(tmp_path, STOP + 1), AVERAGED)
    for name, before in loaded.items():
        np.testing.assert_allclose(
            means[name], 0.8 * before + 0.2 * values[name], rtol=1e-14
        )


def test_counts_of_asynchronous_training_are_updates(folder, tmp_path):
    build = compile_placed(folder, "ema", "two servers", update="async")
    result = run(build, tmp_path)
    averaged = of_parameters(step(tmp_path, STEPS), AVERAGED)
    with np.load(folder / "rows.npz") as rows:
        expected = loss(averaged, rows["x"], rows["y"])
    assert result.eval["loss"] == pytest.approx(expected, rel=1e-12)
    for stored in read_manifest(step(tmp_path, STEPS)).parameters.values():
        assert stored.updates == 2 * STEPS
    counts = of_parameters(step(tmp_path, STEPS), "1.value")
    assert {int(count) for count in counts.values()} == {2 * STEPS}
    run_in_threads(build, Options(steps=STEPS + 1, resume=step(tmp_path, STEPS)))


def test_local_values_of_workers_continue_with_their_state(folder, tmp_path):
    """Workers take steps of their own between the rounds of the servers."""
    update = {"geo": {"every": 2, "outer": {"op": "nesterov", "learning_rate": 0.7}}}
    build = compile_placed(folder, "partitioned", "two servers", update=update)
    run(build, tmp_path / "whole")
    before = step(tmp_path / "whole", 4)
    stored = read_manifest(before).parameters["h.w"]
    count = "inner_states.a.inner_state.0.count"
    assert (stored.leaves.keys(), {*stored.local}) == (
        {count},
        {"worker:0", "worker:1"},
    )
    run(build, tmp_path / "again", resume=before)
    for file in sorted(step(tmp_path / "whole", STEPS).glob("*.safetensors")):
        expected = load_file(file)
        actual = load_file(step(tmp_path / "again", STEPS) / file.name)
        assert actual.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(actual[name], values, err_msg=name)
    alone = compile_placed(folder, "partitioned", "one process")
    run(alone, tmp_path / "alone", resume=before)  # from the first worker's state
    assert arrays_of(step(tmp_path / "alone", STEPS))[f"h.w/{count}"] == STEPS


def test_workers_that_keep_copies_agree_on_the_state(folder, tmp_path):
    build = compile_placed(
        folder, "partitioned", "all-reduce", update={"async": {"max_staleness": 2}}
    )
    run(build, tmp_path)
    resume = step(tmp_path, STOP)
    run_in_threads(build, Options(steps=STEPS, resume=resume))


def test_tables_on_devices_continue(whole, folder, tmp_path):
    first, uninterrupted = whole("ema", "two servers")
    build = compile_placed(folder, "ema", "devices", graph="/node:worker/gpu")
    resumed = run(build, tmp_path, resume=step(first, STOP))
    assert resumed.eval == pytest.approx(uninterrupted.eval, rel=1e-12)
    expected, actual = (arrays_of(step(each, STEPS)) for each in (first, tmp_path))
    for name, values in expected.items():
        np.testing.assert_allclose(
            actual[name], values, rtol=1e-14, atol=1e-14, err_msg=name
        )


def test_a_state_may_be_infinite_but_not_nan(folder, tmp_path):
    build = compile_placed(folder, "infinite", "two servers", fn="optimizers:infinite")
    run(build, tmp_path)
    run_in_threads(build, Options(steps=STEPS, resume=step(tmp_path, STOP)))
    fn = "optimizers:not_a_number"
    build = compile_placed(folder, "not_a_number", "two servers", fn=fn)
    with pytest.raises(RunError, match=r"ps:1: 'h.w.block1/state' contains nan"):
        run(build, tmp_path / "nan")
