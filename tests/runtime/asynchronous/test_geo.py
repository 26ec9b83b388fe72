"""Runs in which each worker trains values of its own: `update: geo`."""

from __future__ import annotations

from functools import partial

import numpy as np
import optax
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from support.free_workers import (
    PENALTY,
    PlainModel,
    check_against_simulation,
    compile_spec,
    make_folder,
    read_parameters,
    run,
    text_of,
)
from support.orders.exchange import Group
from support.orders.rules import of_optax
from support.orders.simulation import Simulation
from support.small_tables import OPTAX_RULES

import placer
from placer.checkpoint.folder import list_checkpoints
from placer.plan.plan import read_plan
from placer.plan.settings.training.update_modes import Geo

pytestmark = pytest.mark.usefixtures("threads_watched")

NESTEROV = {"op": "nesterov", "learning_rate": 0.7, "momentum": 0.8}
OUTER = {
    "nesterov": of_optax(partial(optax.sgd, momentum=0.8, nesterov=True)),
    "sgd": of_optax(optax.sgd),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("geo"))


@st.composite
def modes(draw):
    outer = draw(
        st.sampled_from([None, None, NESTEROV, {"op": "sgd", "learning_rate": 1.0}])
    )
    return Geo(
        every=draw(st.integers(1, 5)),
        scale="mean" if outer else draw(st.sampled_from(["mean", "sum"])),
        dtype=draw(st.sampled_from([None, None, "float32", "bfloat16"])),
        outer=outer,
    )


@settings(max_examples=2, deadline=None, derandomize=True)
@example(
    mode=Geo(every=3, dtype="bfloat16"),
    rule="adam",
    clip=0.3,
    workers=2,
    servers=2,
    penalized=True,
    microbatches=2,
    device="cpu",
    worker_device="cpu",
    normalized=True,
)
@given(
    mode=modes(),
    rule=st.sampled_from(["sgd", "adam", "nesterov", "lamb", "lars", "adamw"]),
    clip=st.sampled_from([None, 0.3]),
    workers=st.integers(2, 3),
    servers=st.integers(1, 2),
    penalized=st.booleans(),
    microbatches=st.integers(1, 2),
    device=st.sampled_from(["cpu", "gpu"]),
    worker_device=st.sampled_from(["cpu", "gpu"]),
    normalized=st.booleans(),
)
def test_a_run_is_what_a_simulation_of_its_order_gives(
    folder,
    mode,
    rule,
    clip,
    workers,
    servers,
    penalized,
    microbatches,
    device,
    worker_device,
    normalized,
):
    build = compile_spec(
        folder,
        text_of(mode),
        rule=rule,
        clip=clip,
        workers=workers,
        servers=servers,
        penalized=penalized,
        microbatches=microbatches,
        device=device,
        worker_device=worker_device,
        normalized=normalized,
    )
    model = PlainModel(
        folder, workers, clip, PENALTY if penalized else 0.0, microbatches
    )
    # The rounds of an outer optimizer have the same bits without an order.
    check_against_simulation(
        folder,
        build,
        lambda names: group_of(names, rule, mode),
        model,
        normalized,
        replays=mode.outer is None,
    )


def group_of(names, rule, mode):
    outer = mode.outer or {"op": None, "learning_rate": None}
    return Group(
        names,
        lambda name: of_optax(OPTAX_RULES[rule]),
        mode,
        outer=OUTER.get(outer["op"]),
        outer_rate=lambda step: outer["learning_rate"],
    )


def test_a_worker_pushes_once_at_a_drain(folder):
    """Also if the step before the drain is one after which it pushes in any case."""
    build = compile_spec(folder, "{geo: {every: 4}}")
    saved, order = folder / "once", folder / "once order"
    run(folder, build, checkpoint=saved, steps=8, record_order=order)
    (_, manifest), *_ = list_checkpoints(saved)
    # Evaluations follow steps 2, 4, 6 and 8.
    assert {p.outer.updates for p in manifest.parameters.values()} == {2 * 4}
    # In the last step worker:1 has no rows, and so no update.
    for stored in manifest.parameters.values():
        updates = {worker: own.updates for worker, own in stored.local.items()}
        assert updates == {"worker:0": 8, "worker:1": 7}
        assert stored.updates == 8


def test_the_local_values_of_a_checkpoint_are_those_of_the_workers(folder):
    build = compile_spec(folder, "{geo: {every: 3}}", rule="adam")
    saved, order = folder / "local", folder / "local order"
    _, params = run(folder, build, checkpoint=saved, steps=7, record_order=order)
    initial, model = load_file(folder / "initial.safetensors"), PlainModel(folder, 2)
    group = group_of(tuple(initial), "adam", Geo(every=3))
    plan = read_plan(build)
    simulation = Simulation(plan, order, initial, model.gradient, [group], 7)
    simulated = simulation.run()
    (exchange,) = simulation.exchanges
    local = exchange.local
    (path, manifest), *_ = list_checkpoints(saved)
    assert local.keys() == {"worker:0", "worker:1"}
    for name, stored in manifest.parameters.items():
        np.testing.assert_allclose(params[name], simulated[name], rtol=1e-9)
        for worker, own in stored.local.items():
            values = load_file(path / own.file)[own.tensor]
            np.testing.assert_allclose(values, local[worker][name], rtol=1e-9)


@pytest.mark.parametrize("outer", [NESTEROV, None])
def test_the_same_workers_continue_with_what_they_had(folder, outer):
    """In the middle of a round, with the bits of a run that was not interrupted. One
    worker gets back what it has sent, so that the order does not matter."""
    mode, workers = Geo(every=4, outer=outer), 2 if outer else 1
    build = compile_spec(folder, text_of(mode), rule="adam", workers=workers)
    saved = folder / f"interrupted {workers}"
    options = {"checkpoint_every": "3", "checkpoint_keep": 99}
    _, whole = run(folder, build, checkpoint=saved, steps=11, **options)
    paths = {m.progress.step: path for path, m in list_checkpoints(saved)}
    for step in (3, 6):
        again, params = run_from(folder, build, paths[step], steps=11)
        assert again.steps == 11
        assert all(np.array_equal(params[name], whole[name]) for name in whole)


def run_from(folder, build, checkpoint, **options):
    saved = folder / "continued.safetensors"
    result = placer.launch(
        build, in_process=True, save_params=saved, resume=checkpoint, **options
    )
    return result, load_file(saved)


@pytest.mark.parametrize(
    ("first", "second", "workers"),
    [
        ("{geo: {every: 3}}", "{geo: {every: 3}}", 1),
        ("{geo: {every: 3}}", "sync", 2),
        ("sync", "{geo: {every: 3}}", 1),
    ],
)
def test_others_continue_with_the_values_of_the_servers(folder, first, second, workers):
    """Other workers, and other modes, have the slots of the first worker."""
    build = compile_spec(folder, first, rule="adam")
    saved = folder / f"{len(first)} {len(second)} {workers}"
    run(folder, build, checkpoint=saved, steps=4)
    (path, manifest), *_ = list_checkpoints(saved)
    before, slots = read_parameters(path, manifest), read_slots(path, manifest)
    build = compile_spec(folder, second, rule="adam", workers=workers)
    _, params = run_from(folder, build, path, steps=5)
    gradients, _ = PlainModel(folder, 1).gradient(before, "worker:0", 5)
    for name, gradient in gradients.items():
        mu, nu = (slots[name][slot] for slot in ("mu", "nu"))
        mu, nu = 0.9 * mu + 0.1 * gradient, 0.999 * nu + 0.001 * gradient**2
        count = manifest.parameters[name].updates + 1
        mean, square = mu / (1 - 0.9**count), nu / (1 - 0.999**count)
        expected = before[name] - 0.1 * mean / (np.sqrt(square) + 1e-8)
        np.testing.assert_allclose(params[name], expected, rtol=1e-9)


def read_slots(folder, manifest):
    """Return the slots of each parameter: those of the first worker, if it has any."""
    slots = {}
    for name, stored in manifest.parameters.items():
        owner = next(iter(stored.local.values()), None)
        slots[name] = {}
        for slot in stored.slots:
            blocks = [owner] if owner else stored.blocks
            parts = [load_file(folder / b.file)[f"{b.tensor}/{slot}"] for b in blocks]
            flat = np.concatenate([part.reshape(-1) for part in parts])
            slots[name][slot] = flat.reshape(stored.shape)
    return slots
