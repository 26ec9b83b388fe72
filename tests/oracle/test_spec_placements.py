"""R1 for every model of `specs/`: as placed, and as one process, against plain JAX."""

import json
import shutil

import jax
import numpy as np
import plain_specs
import pytest
from safetensors.numpy import load_file, save_file

from placer.compiler import compile
from placer.runtime.process import Options, run_in_threads

STEPS = 100
MODELS = ("digits", "diabetes", "seed_ctr", "two_workers")
EPSILON = float(np.finfo(np.float32).eps)
LEAST = {"digits": 1e-6}
"""How close two float32 programs are asked to come where a loss has become small, if not
to one rounding at 1. The loss of digits falls to 0.005 from terms of about 10, whose
roundings alone are that far apart between plain JAX and one process. That a placement
changes nothing is held to R1's own bounds in test_one_process.py, and to 1e-9 below."""


def drawn_parameters(plan):
    """Values from which training does not magnify rounding: none of the activations
    is near a corner of relu by design, none of the gradients near adam's epsilon."""
    random = np.random.default_rng(4)
    values = {}
    for parameter in plan.parameters:
        shape, size = parameter.shape, 0.1
        if len(shape) > 1 and not parameter.name.endswith(".table"):
            size = 0.3 * shape[0] ** -0.5
        mean = 150.0 if parameter.name == "out.b" else 0.0
        values[parameter.name] = random.normal(mean, size, shape).astype(
            parameter.dtype
        )
    return values


def compiled(model, tmp_path, *, single_process, precision="float32"):
    """The build of a model, and its plan."""
    for file in plain_specs.SPECS.glob("*.py"):
        shutil.copy(file, tmp_path)
    spec = tmp_path / f"{model}.yaml"
    text = (plain_specs.SPECS / spec.name).read_text()
    spec.write_text(f"{text}\nprecision: {precision}\n")
    build = tmp_path / "build"
    return build, compile(spec, build, single_process=single_process)


def trained(build, initial, tmp_path):
    """Metrics by step, and the parameters after the last."""
    save_file(initial, tmp_path / "initial.safetensors")
    history, saved = tmp_path / "history.jsonl", tmp_path / "saved.safetensors"
    run_in_threads(
        build,
        Options(
            steps=STEPS,
            history=history,
            save_params=saved,
            init_params=tmp_path / "initial.safetensors",
        ),
    )
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    assert len(lines) == STEPS
    return [line["metrics"] for line in lines], load_file(saved)


@pytest.fixture(scope="module")
def by_hand():
    """Each model trained by its plain program, once for both builds."""
    found = {}

    def of(model, initial):
        if model not in found:
            program = getattr(plain_specs, model)()
            found[model] = plain_specs.train(program, initial, STEPS)
        return found[model]

    return of


def test_every_spec_has_a_plain_program():
    assert {file.stem for file in plain_specs.SPECS.glob("*.yaml")} == {*MODELS}


@pytest.mark.parametrize("single_process", [False, True], ids=["placed", "one_process"])
@pytest.mark.parametrize("model", MODELS)
def test_100_steps_of_a_spec_are_those_of_plain_jax(
    model, single_process, by_hand, tmp_path
):
    build, plan = compiled(model, tmp_path, single_process=single_process)
    assert (len(plan.nodes) == 1) == single_process
    initial = drawn_parameters(plan)
    wanted_history, wanted = by_hand(model, initial)
    history, parameters = trained(build, initial, tmp_path)
    for step, (got, expected) in enumerate(
        zip(history, wanted_history, strict=True), 1
    ):
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            close = {"rel": 1e-5, "abs": LEAST.get(model, EPSILON)}
            assert got[name] == pytest.approx(value, **close), f"step {step}: {name}"
    assert parameters.keys() == wanted.keys()
    for name, value in wanted.items():
        distance = np.linalg.norm(parameters[name] - value)
        assert distance <= 1e-4 * np.linalg.norm(value), name


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, marks=pytest.mark.slow) if model == "seed_ctr" else model
        for model in MODELS
    ],
)
def test_a_spec_in_float64_is_plain_jax_to_every_element(model, tmp_path):
    build, plan = compiled(model, tmp_path, single_process=False, precision="float64")
    initial = drawn_parameters(plan)
    with jax.enable_x64(True):
        program = getattr(plain_specs, model)()
        wanted_history, wanted = plain_specs.train(program, initial, STEPS)
    history, parameters = trained(build, initial, tmp_path)
    for step, (got, expected) in enumerate(
        zip(history, wanted_history, strict=True), 1
    ):
        assert got == pytest.approx(expected, rel=1e-9), f"step {step}"
    assert parameters.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(
            parameters[name], value, rtol=0, atol=1e-7, err_msg=name
        )
