"""Random models whose groups agree in random modes: a simulation in one process, by plain
JAX, follows the recorded order of the run."""

import copy
import re
import tempfile
from pathlib import Path

import jax
import msgspec
import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, Phase, assume, given, reject, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from support.drawn.graphs import DrawnModel
from support.drawn.modes import FAMILIES, asynchronous_models
from support.marks import MAY_PAIR_ROWS
from support.orders.exchange import Group
from support.orders.rules import of_optax, padded, unpadded
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

from placer.compiler.driver import compile
from placer.errors import GraphError
from placer.plan.plan import read_plan
from placer.plan.settings.training.update_modes import MODES, Geo, from_text, mode_of
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

# Failures are not shrunk: an example takes seconds.
SETTINGS = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
STEPS = 5

pytestmark = [
    pytest.mark.usefixtures("in_float64"),
    MAY_PAIR_ROWS,
]


def rule_of(spec, entry):
    """Return a function from a parameter to its rule, by optax."""

    def rule(name):
        decays = {"x": parameter_rule(spec, name).get("decay", True)}
        return of_optax(lambda rate: read_rule(entry, lambda count: rate, decays))

    return rule


def read_groups(spec, trained):
    """Return the optimizers of a spec, each with what it clips by itself."""
    groups = []
    for entry, names in optimizer_groups(spec, trained):
        update = entry.get("update")
        mode = mode_of(from_text(update or "sync"))
        outer = mode.outer if isinstance(mode, Geo) else None
        groups.append(
            Group(
                names,
                rule_of(spec, entry),
                mode,
                rate_of(entry),
                clip_of(entry if mode is None or "clip" in entry else spec["train"]),
                outer and rule_of(spec, outer)("an outer optimizer"),
                rate_of(outer or entry),
            )
        )
    return [group for group in groups if group.names]


def rate_of(entry):
    """Return a function from a step, from 1, to the learning rate of an optimizer."""
    rates = [schedule(entry["learning_rate"])(step) for step in range(STEPS)]
    return lambda step: rates[step - 1]


def clip_of(entry):
    """Return the function that clips gradients as an entry says."""
    clip = read_clip(entry)

    def limit(gradients):
        clipped = clip({name: padded(array) for name, array in gradients.items()})
        return {name: unpadded(clipped[name], g) for name, g in gradients.items()}

    return limit if "clip" in entry else lambda gradients: gradients


def all_free(spec):
    """Return a spec with all synchronous groups made asynchronous."""
    spec = copy.deepcopy(spec)
    spec["train"].pop("bucket_cap_mb", None)
    entries = spec["train"]["optimizer"]
    for entry in [entries] if isinstance(entries, dict) else entries:
        if entry.get("update", "sync") == "sync":
            for key in ("shard_state", "all_reduce"):
                entry.pop(key, None)
            entry |= {"place": "/node:ps/cpu", "update": "half_async"}
    return spec


def reads_rows_of_others(plan):
    """Whether a worker uses rows of all workers, each of which reads them by itself."""
    reads = next(n for n in plan.nodes if n.name.startswith("worker:")).step.reads
    return any(read.shard.num_parts < plan.workers for read in reads)


def run(folder, name, **options):
    """Run the build of a folder from its initial parameters."""
    run_in_threads(
        folder / "build",
        Options(
            steps=STEPS,
            save_params=folder / f"{name}.safetensors",
            init_params=folder / "initial.safetensors",
            deadline=300.0,
            **options,
        ),
    )


def check_order(drawn: DrawnModel, folder: Path, *, replays: bool = False) -> None:
    """Run a model, and compare it with a simulation of its recorded order, and with a
    replay if that is asked for."""
    initial = drawn.initial()
    rows = {which: drawn.rows(which) for which in ("train", "eval")}
    try:
        # In the simulation each worker computes by itself, also for synchronous groups.
        if (free := all_free(drawn.spec)) != drawn.spec:
            compile(write_spec(free, rows, folder), folder / "free")
        file = write_spec(drawn.spec, rows, folder)
        compile(file, folder / "build")
    except GraphError as error:
        if not re.search("synchronous|trains nothing", error.message):
            raise
        reject()
    plan = read_plan(folder / "build")
    assume(not reads_rows_of_others(plan))
    save_file(initial, folder / "initial.safetensors")
    order = folder / "order"
    run(folder, "recorded", record_order=order)
    spec = yaml.safe_load(file.read_text())
    parts = WorkerParts(spec, rows["train"], initial, folder)
    simulation = Simulation(
        plan,
        order,
        {name: initial[name] for name in parts.trained},
        parts.gradient,
        read_groups(spec, parts.trained),
        STEPS,
        clip_of(spec["train"]),
    )
    expected = initial | simulation.run()
    expected |= parts.state(simulation.used)
    for estimates in parts.estimates.values():
        assume(not any(np.any(np.abs(g) > 1e3) for g in estimates.values()))
        assume(all(np.all(np.isfinite(g)) for g in estimates.values()))
        assume(not depends_on_rounding(spec, estimates))
    saved = load_file(folder / "recorded.safetensors")
    assert saved.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(saved[name], values, rtol=0, atol=1e-9, err_msg=name)
    if replays:
        run(folder, "replayed", replay_order=order)
        replayed = (folder / "replayed.safetensors").read_bytes()
        assert replayed == (folder / "recorded.safetensors").read_bytes()


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@settings(SETTINGS, max_examples=1, derandomize=True)
def test_a_drawn_run_is_what_a_simulation_of_its_order_gives(family, data):
    drawn = data.draw(asynchronous_models((family,)))
    with tempfile.TemporaryDirectory() as name:
        check_order(drawn, Path(name))


def test_drawn_models_use_every_setting_of_every_mode():
    """And all kinds of places."""
    options = {name for name in MODES if name != "sync"} | {"sum"}
    for mode in MODES.values():
        options |= {field.name for field in msgspec.structs.fields(mode)}
    places = {"/node:ps/cpu", "/node:ps/gpu:0", "/node:worker", "/node:heter"}
    written = set()

    @given(asynchronous_models(FAMILIES))
    @settings(SETTINGS, max_examples=120, derandomize=True)
    def draw(drawn):
        written.update(re.findall(r"[/\w:]+", str(drawn.spec)))

    draw()
    assert written >= options | places


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))  # split over several processes
@given(asynchronous_models(FAMILIES))
@settings(SETTINGS, max_examples=40)
def test_many_drawn_runs_are_what_simulations_of_their_orders_give(part, drawn):
    jax.clear_caches()  # compiled programs that do not run again
    with tempfile.TemporaryDirectory() as name:
        check_order(drawn, Path(name), replays=True)
