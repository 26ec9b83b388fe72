"""Runs with asynchronous worker-side updates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from support.free_workers import (
    PlainModel,
    compile_spec,
    make_folder,
    new_folder,
    run,
    text_of,
)
from support.orders.exchange import Group
from support.orders.rules import adam, lamb, sgd
from support.orders.simulation import Simulation

import placer
from placer.checkpoint.folder import list_checkpoints
from placer.plan.plan import read_plan
from placer.plan.settings.training.update_modes import Async, HalfAsync

pytestmark = pytest.mark.usefixtures("threads_watched")

RULES = {"sgd": sgd, "adam": adam, "lamb": lamb}
AT = "/node:worker"
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # a smaller run is not simpler


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with rows, and initial parameters."""
    return make_folder(tmp_path_factory.mktemp("updates_at_workers"))


drawn = {
    "rule": st.sampled_from([*RULES]),
    "clip": st.sampled_from([None, 0.3]),
    "workers": st.integers(2, 3),
    "device": st.sampled_from(["cpu", "gpu"]),
    "microbatches": st.integers(1, 2),
}


@settings(max_examples=2, deadline=None, derandomize=True, phases=PHASES)
@given(bound=st.integers(1, 3), queue=st.integers(1, 2), **drawn)
def test_a_run_without_a_server_is_what_a_simulation_of_its_order_gives(
    folder, bound, queue, rule, clip, workers, device, microbatches
):
    mode = Async(max_staleness=bound, queue=queue)
    build = compile_spec(
        folder, text_of(mode), rule=rule, clip=clip, workers=workers,
        place=f"{AT}/{device}", microbatches=microbatches,
    )  # fmt: skip
    order = new_folder(folder)
    result, params = run(folder, build, record_order=order)
    model = PlainModel(folder, workers, clip, microbatches=microbatches)
    simulation = simulate(folder, build, order, model, rule, mode, result.steps)
    check(folder, build, order, result, params, simulation)
    staleness = simulation.staleness
    counted = {int(key): count for key, count in result.staleness.items()}
    assert counted == {each: staleness.count(each) for each in {*staleness}}
    assert max(staleness) <= (2 * bound + 1) * (workers - 1)


@st.composite
def summing_modes(draw):
    if draw(st.integers(0, 3)) == 0:
        return HalfAsync()
    bound = draw(st.sampled_from(["none", 1, 2, 4]))
    most = 4 if bound == "none" else bound + 1
    merged = draw(st.integers(1, most))
    return Async(
        max_staleness=bound,
        max_merge=merged,
        merge=draw(st.sampled_from(["sum", "mean"])) if merged > 1 else "sum",
        queue=draw(st.integers(1, 3)),
    )


@settings(max_examples=2, deadline=None, derandomize=True, phases=PHASES)
@given(
    mode=summing_modes(),
    servers=st.integers(1, 3),
    **drawn,
)
def test_a_run_with_servers_that_sum_is_what_a_simulation_of_its_order_gives(
    folder, mode, servers, rule, clip, workers, device, microbatches
):
    build = compile_spec(
        folder, text_of(mode), rule=rule, clip=clip, workers=workers,
        servers=servers, place=f"{AT}/{device}", summed="/node:ps",
        microbatches=microbatches,
    )  # fmt: skip
    order = new_folder(folder)
    result, params = run(folder, build, record_order=order)
    model = PlainModel(folder, workers, clip, microbatches=microbatches)
    simulation = simulate(folder, build, order, model, rule, mode, result.steps)
    check(folder, build, order, result, params, simulation)
    if mode.bound is not None:
        most = max(map(int, result.staleness))
        assert most <= (2 * mode.bound + 1) * (workers - 1)


def simulate(folder, build, order, model, rule, mode, steps):
    """Return the simulation of a recorded run."""
    initial = load_file(folder / "initial.safetensors")
    groups = [Group(tuple(initial), lambda name: RULES[rule], mode)]  # the model clips
    plan = read_plan(build)
    return Simulation(plan, order, initial, model.gradient, groups, steps)


def check(folder, build, order, result, params, simulation):
    """Check that a recorded run has the parameters and the divergence of its simulation,
    and that a replay has its bits."""
    for name, array in simulation.run().items():
        np.testing.assert_allclose(params[name], array, rtol=1e-9, atol=1e-12)
    assert result.divergence == pytest.approx(
        simulation.divergence, rel=1e-6, abs=1e-12
    )
    again, replayed = run(folder, build, replay_order=order)
    assert all(np.array_equal(replayed[name], params[name]) for name in params)
    assert again.staleness == result.staleness
    assert again.divergence == result.divergence


def test_one_model_has_groups_with_and_without_servers(folder):
    """Workers update one group by what has come, one by sums, one synchronously, and servers
    update one."""
    compile_spec(folder, "sync")
    spec = (folder / "small.yaml").read_text()
    head, _, _ = spec.partition("  optimizer:")
    rule, bound = "{op: adam, learning_rate: 0.01, ", "{async: {max_staleness: 2}}"
    (folder / "hybrid.yaml").write_text(
        f"""{head}  optimizer:
    - {rule}match: h.w, place: {AT}, update: {bound}}}
    - {rule}match: h.b, place: {AT}, sum: /node:ps:1, update: half_async}}
    - {rule}match: out.w, place: {AT}}}
    - {rule}place: /node:ps, update: {bound}}}
"""
    )
    placer.compile(folder / "hybrid.yaml", folder / "hybrid")
    order, saved = folder / "hybrid_order", folder / "hybrids"
    result, params = run(
        folder, folder / "hybrid", record_order=order, checkpoint=saved
    )
    (_, manifest), *_ = list_checkpoints(saved)
    updates = {name: stored.updates for name, stored in manifest.parameters.items()}
    assert updates["out.w"] == result.steps
    # In the last batch of each of the two epochs one worker has no row.
    assert updates["out.b"] == 2 * result.steps - 2
    bounded = Async(max_staleness=2)
    modes = {"h.w": bounded, "h.b": HalfAsync(), "out.w": None, "out.b": bounded}
    simulation = Simulation(
        read_plan(folder / "hybrid"),
        order,
        load_file(folder / "initial.safetensors"),
        PlainModel(folder, 2).gradient,
        [
            Group((name,), lambda name: adam, mode, lambda step: 0.01)
            for name, mode in modes.items()
        ],
        result.steps,
    )
    for name, array in simulation.run().items():
        np.testing.assert_allclose(params[name], array, rtol=1e-9, atol=1e-12)
    _, replayed = run(folder, folder / "hybrid", replay_order=order)
    assert all(np.array_equal(replayed[name], params[name]) for name in params)


def test_one_worker_updates_as_in_synchronous_training(folder):
    """What has come when a step begins are its own gradients."""
    bits = []
    for update in ("{async: {max_staleness: 3}}", "sync"):
        build = compile_spec(folder, update, rule="adam", workers=1, place=AT)
        bits.append(run(folder, build)[1])
    assert all(np.array_equal(bits[0][name], bits[1][name]) for name in bits[0])
