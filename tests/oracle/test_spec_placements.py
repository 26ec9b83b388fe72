"""R1 for every model of `specs/`: as placed, and as one process, against plain JAX."""

import json

import numpy as np
import plain_specs
import pytest
from safetensors.numpy import load_file, save_file

from placer.compiler import compile
from placer.runtime.process import Options, run_in_threads

STEPS = 100
MODELS = ("digits", "diabetes", "seed_ctr", "two_workers")


def drawn_parameters(plan):
    """Values of a usual size: weights by their fan-in, biases near 0."""
    random = np.random.default_rng(5)
    values = {}
    for parameter in plan.parameters:
        size = parameter.shape[0] ** -0.5 if len(parameter.shape) > 1 else 0.01
        drawn = random.normal(0, size, parameter.shape).astype(parameter.dtype)
        values[parameter.name] = drawn + np.float32(150 * (parameter.name == "out.b"))
    return values


def trained(build, initial, tmp_path):
    """Losses and metrics by step, and the parameters after the last."""
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


@pytest.mark.parametrize("single_process", [False, True], ids=["placed", "one_process"])
@pytest.mark.parametrize("model", MODELS)
def test_100_steps_of_a_spec_are_those_of_plain_jax(
    model, single_process, by_hand, tmp_path
):
    spec, build = plain_specs.SPECS / f"{model}.yaml", tmp_path / "build"
    plan = compile(spec, build, single_process=single_process)
    assert len(plan.nodes) == 1 or not single_process
    initial = drawn_parameters(plan)
    wanted_history, wanted = by_hand(model, initial)
    history, parameters = trained(build, initial, tmp_path)
    assert len(history) == STEPS
    for step, (got, expected) in enumerate(zip(history, wanted_history, strict=True), 1):
        assert got == pytest.approx(expected, rel=1e-5), f"step {step}"
    assert parameters.keys() == wanted.keys()
    for name, value in wanted.items():
        distance = np.linalg.norm(parameters[name] - value)
        assert distance <= 1e-4 * np.linalg.norm(value), name


def test_the_plain_programs_are_those_of_all_specs():
    assert {file.stem for file in plain_specs.SPECS.glob("*.yaml")} == {*MODELS}
