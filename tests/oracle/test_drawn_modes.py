"""Random models whose groups agree in random modes: a simulation in one process, by plain
JAX, follows the recorded order of the run."""

import re
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, assume, given, reject, settings
from safetensors.numpy import load_file, save_file
from support.drawn.graphs import DrawnModel
from support.drawn.modes import models_without_lockstep
from support.orders.exchange import Group
from support.orders.rules import of_optax
from support.orders.simulation import Simulation
from support.plain.parts import WorkerParts
from support.plain.training import (
    depends_on_rounding,
    optimizer_groups,
    parameter_rule,
    read_clip,
    read_rule,
    schedule,
)
from support.run_ways import write_spec

from placer.build.plan import read_plan
from placer.compiler import compile
from placer.config.update_modes import read_mode
from placer.errors import GraphError
from placer.runtime.run.options import Options
from placer.runtime.run.threads import run_in_threads

SETTINGS = settings(
    deadline=None, print_blob=True, suppress_health_check=list(HealthCheck)
)
STEPS = 5

pytestmark = pytest.mark.usefixtures("in_float64")


def rule_of(spec, entry):
    """Return a function from a parameter to its rule, by optax."""

    def rule(name):
        decays = {"x": parameter_rule(spec, name).get("decay", True)}
        return of_optax(lambda rate: read_rule(entry, lambda count: rate, decays))

    return rule


def read_groups(spec, trained):
    """Return the optimizers of a spec."""
    groups = []
    common = spec["train"]
    for entry, names in optimizer_groups(spec, trained):
        update = entry.get("update")
        update = {update: {}} if update == "half_async" else update
        clip = read_clip(entry if "clip" in entry else common)
        rates = [schedule(entry["learning_rate"])(step) for step in range(STEPS)]
        groups.append(
            Group(
                names,
                rule_of(spec, entry),
                read_mode(update),
                lambda step, rates=rates: rates[step - 1],
                lambda g, clip=clip: {n: np.asarray(a) for n, a in clip(g).items()},
            )
        )
    return groups


def check_order(drawn: DrawnModel, folder: Path) -> None:
    """Run a model, and compare it with a simulation of its recorded order."""
    initial = drawn.initial()
    rows = {which: drawn.rows(which) for which in ("train", "eval")}
    file = write_spec(drawn.spec, rows, folder)
    try:
        compile(file, folder / "build")
    except GraphError as error:
        if not re.search("lockstep|trains nothing", error.message):
            raise
        reject()
    save_file(initial, folder / "initial.safetensors")
    run_in_threads(
        folder / "build",
        Options(
            steps=STEPS,
            save_params=folder / "saved.safetensors",
            init_params=folder / "initial.safetensors",
            record_order=folder / "order",
            deadline=300.0,
        ),
    )
    spec = yaml.safe_load(file.read_text())
    parts = WorkerParts(spec, rows["train"], initial, folder)
    simulation = Simulation(
        read_plan(folder / "build"),
        folder / "order",
        {name: initial[name] for name in parts.trained},
        parts.gradient,
        read_groups(spec, parts.trained),
        STEPS,
    )
    expected = initial | simulation.run()
    expected |= parts.state(simulation.used, STEPS)
    for estimates in parts.estimates.values():
        assume(not any(np.any(np.abs(g) > 1e3) for g in estimates.values()))
        assume(all(np.all(np.isfinite(g)) for g in estimates.values()))
        assume(not depends_on_rounding(spec, estimates))
    saved = load_file(folder / "saved.safetensors")
    assert saved.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(saved[name], values, rtol=0, atol=1e-9, err_msg=name)


@given(models_without_lockstep())
@settings(SETTINGS, max_examples=3, derandomize=True)
def test_a_drawn_run_is_what_a_simulation_of_its_order_gives(drawn):
    with tempfile.TemporaryDirectory() as name:
        check_order(drawn, Path(name))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))  # split over several processes
@given(models_without_lockstep())
@settings(SETTINGS, max_examples=40)
def test_many_drawn_runs_are_what_simulations_of_their_orders_give(part, drawn):
    jax.clear_caches()  # compiled programs that do not run again
    with tempfile.TemporaryDirectory() as name:
        check_order(drawn, Path(name))
