"""Runs of asynchronous workers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from support.free_workers import (
    PENALTY,
    WIDTH,
    PlainModel,
    check_against_simulation,
    compile_spec,
    make_folder,
    new_folder,
    read_parameters,
    run,
    text_of,
)
from support.orders.exchange import Group
from support.orders.rules import adam, lamb, lars, sgd
from support.orders.simulation import Simulation

import placer
from placer.checkpoint.folder import list_checkpoints
from placer.errors import PlacerError, RunError
from placer.launcher.checks import check_launch
from placer.plan.plan import read_plan
from placer.plan.settings.training import optimizers
from placer.plan.settings.training.update_modes import Async, Geo, HalfAsync
from placer.runtime.asynchronous.communicator import Communicator
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

pytestmark = pytest.mark.usefixtures("threads_watched")

RULES = {"sgd": sgd, "adam": adam, "lamb": lamb, "lars": lars}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("asynchronous"))


@st.composite
def asynchronous(draw):
    bound = draw(st.sampled_from(["none", 1, 2, 4]))
    compensated = draw(st.sampled_from([None, None, 0.04]))
    most = 1 if compensated else 4 if bound == "none" else min(4, bound + 1)
    merged = draw(st.integers(1, most))
    return Async(
        max_staleness=bound,
        max_merge=merged,
        merge=draw(st.sampled_from(["sum", "mean"])) if merged > 1 else "sum",
        queue=draw(st.integers(1, 3)),
        staleness_scale=draw(st.booleans()),
        compensate=compensated,
    )


modes = st.one_of(st.just(HalfAsync()), asynchronous())


@settings(max_examples=2, deadline=None, derandomize=True)
@example(
    mode=Async(max_staleness=4, max_merge=4, merge="mean", queue=3),
    rule="adam",
    clip=0.3,
    workers=2,
    servers=2,
    penalized=True,
    microbatches=2,
    device="cpu",
    normalized=True,
    heter=False,
)
@given(
    mode=modes,
    rule=st.sampled_from([*RULES]),
    clip=st.sampled_from([None, 0.3]),
    workers=st.integers(2, 3),
    servers=st.integers(1, 2),
    penalized=st.booleans(),
    microbatches=st.integers(1, 2),
    device=st.sampled_from(["cpu", "gpu"]),
    normalized=st.booleans(),
    heter=st.booleans(),
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
    normalized,
    heter,
):
    if mode.compensate is not None:
        device = "cpu"
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
        normalized=normalized,
        heter=heter,
    )
    plan = read_plan(build)
    if optimizers.RULES[rule].is_two_phase:
        blocks = [b for n in plan.nodes for table in n.tables for b in table.blocks]
        assert all(block.name == block.parameter for block in blocks)
    penalty = PENALTY if penalized else 0.0
    model = PlainModel(folder, workers, clip, penalty, microbatches, heter)
    result = check_against_simulation(
        folder,
        build,
        lambda names: Group(names, lambda name: RULES[rule], mode),  # the model clips
        model,
        normalized,
    )
    most = None if mode.bound is None else (2 * mode.bound + 1) * (workers - 1)
    assert result.staleness_bound == most
    assert most is None or max(map(int, result.staleness)) <= most


def test_what_the_workers_push_adds_up_to_the_gradient_of_the_batch(
    folder, monkeypatch
):
    """A penalty, too, counts once: on each worker by its rows."""
    build = compile_spec(folder, "async", rate=1e-30, penalized=True, epochs=1)
    servers, totals = {}, {}
    for edge in read_plan(build).step_edges:
        if edge.exchange == "push":
            servers[edge.id] = [value.result for value in edge.values]

    def push(self, step, rows, arrays):
        for name, array in zip(servers[self._push.id], arrays, strict=True):
            name = name.removesuffix(".push").replace(".grad", "")
            totals[name, step] = totals.get((name, step), 0) + array.reshape(-1)
        queue_push(self, step, rows, arrays)

    queue_push = Communicator.push
    monkeypatch.setattr(Communicator, "push", push)
    result, _ = run(folder, build)
    initial = load_file(folder / "initial.safetensors")
    whole = PlainModel(folder, 1, penalty=PENALTY).gradient
    for step in range(1, result.steps + 1):
        expected, _ = whole(initial, "worker:0", step)
        for name, gradient in expected.items():
            pushed = [
                totals[each]
                for each in sorted(totals)
                if each[1] == step and each[0].partition(".block")[0] == name
            ]
            np.testing.assert_allclose(
                np.concatenate(pushed), gradient.reshape(-1), rtol=1e-12, atol=1e-14
            )


def test_synchronous_running_statistics_are_the_mean_of_those_of_the_workers(folder):
    """Each worker normalizes over its own rows, and has its part of the gradients."""
    build = compile_spec(folder, "sync", normalized=True)
    result, params = run(folder, build, "normalized")
    model = PlainModel(folder, 2)
    initial = load_file(folder / "normalized.safetensors")
    plain = {name: array for name, array in initial.items() if "running" not in name}
    running = np.array([np.zeros(WIDTH), np.ones(WIDTH)])
    for step in range(1, result.steps + 1):
        mean, updated = 0, plain
        for worker in ("worker:0", "worker:1"):
            parts, share = model.gradient(plain, worker, step)
            mean = mean + share * model.statistics.get((worker, step), 0)
            updated = {name: updated[name] - 0.1 * parts[name] for name in updated}
        plain = updated
        running = 0.9 * running + 0.1 * mean
    assert result.eval["loss"] == pytest.approx(model.loss(plain, tuple(running)))
    plain |= {"bn.running_mean": running[0], "bn.running_variance": running[1]}
    for name, array in plain.items():
        np.testing.assert_allclose(params[name], array, rtol=1e-9)


def test_a_staleness_of_zero_is_the_synchronous_mode(folder):
    compile_spec(folder, "sync")
    sync = (folder / "build" / "graph.txt").read_text()
    compile_spec(folder, "{async: {max_staleness: 0}}")
    assert (folder / "build" / "graph.txt").read_text() == sync


def test_an_order_of_another_build_is_refused(folder):
    run(folder, compile_spec(folder, "half_async"), record_order=folder / "other")
    build = compile_spec(folder, "async")
    with pytest.raises(PlacerError, match="was recorded with another build"):
        run(folder, build, replay_order=folder / "other")


def test_an_order_without_the_file_of_a_node_says_which_nodes_are_needed(folder):
    build = compile_spec(folder, "async")
    with pytest.raises(PlacerError, match="cannot read") as caught:
        run(folder, build, replay_order=folder / "missing")
    assert "nodes and threads of the recorded run" in caught.value.hint


def test_the_orders_of_two_runs_are_not_mixed(folder):
    build = compile_spec(folder, "async")
    run(folder, build, record_order=folder / "kept", steps=1)
    kept = {path: path.read_text() for path in (folder / "kept").iterdir()}
    again = Options(record_order=folder / "kept", steps=2)
    for start in (check_launch, run_in_threads):  # before all nodes, and by a node
        with pytest.raises(
            PlacerError, match="contains the recorded order of another run"
        ) as caught:
            start(build, again)
        assert "another folder" in caught.value.hint
    assert {path: path.read_text() for path in (folder / "kept").iterdir()} == kept
    file = (
        folder / "kept" / "worker-1.jsonl"
    )  # as that of another run, which was killed
    first, *lines, _ = file.read_text().splitlines(keepends=True)
    first = json.dumps(json.loads(first) | {"run": "another"}) + "\n"
    file.write_text("".join([first, *lines]))
    mixed = r"from different runs: [0-9a-f]{16} on .*; another on worker:1"
    with pytest.raises(RunError, match=mixed) as caught:
        run(folder, build, replay_order=folder / "kept", steps=1)
    assert "of all nodes of one run" in caught.value.hint
    for path in kept:
        path.rename(path.with_name(f"other_{path.name}"))
    with pytest.raises(PlacerError, match="contains the recorded order of another run"):
        check_launch(build, again)


def test_a_replay_that_is_longer_than_the_order_says_so(folder):
    build = compile_spec(folder, "async")
    run(folder, build, record_order=folder / "short", steps=3)
    with pytest.raises(RunError, match="has no more 'use'"):
        run(folder, build, replay_order=folder / "short", steps=4)


def test_evaluations_and_checkpoints_are_of_one_state(folder):
    """All gradients up to the step are applied, and no others."""
    compile_spec(folder, "{async: {max_merge: 3, queue: 3}}", epochs=4)
    history, saved = folder / "history.jsonl", folder / "saved"
    run(
        folder,
        folder / "build",
        history=history,
        checkpoint=saved,
        checkpoint_every="4",
        checkpoint_keep=99,
    )
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    evaluated = {each["step"]: each["eval"]["loss"] for each in lines if "eval" in each}
    rows = np.load(folder / "rows.npz")
    compared = 0
    for path, manifest in list_checkpoints(saved):
        step = manifest.progress.step
        params = read_parameters(path, manifest)
        h = np.tanh(rows["x"] @ params["h.w"] + params["h.b"])
        loss = np.mean((h @ params["out.w"] + params["out.b"] - rows["y"]) ** 2)
        np.testing.assert_allclose(evaluated[step], loss, rtol=1e-9)
        compared += 1
    assert compared >= 8  # more for each new best evaluation


def test_a_resumed_run_goes_on_from_the_step_of_its_checkpoint(folder):
    build = compile_spec(folder, "half_async", workers=1)
    saved = folder / "resumed"
    _, whole = run(folder, build, checkpoint=saved, checkpoint_every="5", steps=10)
    (first, _), *_ = list_checkpoints(saved)
    result = placer.launch(build, in_process=True, resume=first, steps=10)
    # One worker that waits for its own updates is a synchronous run.
    assert all(np.array_equal(result.params[name], whole[name]) for name in whole)


def clip_norm(largest):
    """Return a function that limits the norm of each gradient."""

    def clip(gradients):
        norms = {name: np.linalg.norm(each) for name, each in gradients.items()}
        return {n: g * min(1.0, largest / norms[n]) for n, g in gradients.items()}

    return clip


def test_one_model_has_groups_of_several_modes(folder):
    """Only the gradients of synchronous groups are summed over the workers; a group of one
    parameter clips it by itself. A server's steps do not wait for differences."""
    compile_spec(folder, "async", servers=1)
    spec = (folder / "small.yaml").read_text().replace("2 steps", "epoch")
    head, _, _ = spec.partition("  optimizer:")
    group = "    - {op: sgd, learning_rate: 0.1, "
    at_servers = "place: /node:ps/cpu"
    (folder / "hybrid.yaml").write_text(
        f"""{head}  optimizer:
{group}match: "h.*", {at_servers}, update: {{async: {{max_staleness: 2}}}}}}
{group}match: out.w, {at_servers}, update: {{geo: {{every: 3}}}}, clip: {{norm: 0.1}}}}
{group}{at_servers}}}
"""
    )
    placer.compile(folder / "hybrid.yaml", folder / "hybrid")
    order = new_folder(folder)
    result, params = run(
        folder, folder / "hybrid", record_order=order, checkpoint=folder / "hybrids"
    )
    (_, manifest), *_ = list_checkpoints(folder / "hybrids")
    updates = {name: stored.updates for name, stored in manifest.parameters.items()}
    assert updates["out.b"] == result.steps
    # In the last batch of each of the two epochs one worker has no row.
    assert updates["h.w"] == updates["h.b"] == 2 * result.steps - 2
    groups = [
        Group(("h.w", "h.b"), lambda name: sgd, Async(max_staleness=2)),
        Group(("out.w",), lambda name: sgd, Geo(every=3), clip=clip_norm(0.1)),
        Group(("out.b",), lambda name: sgd, None),
    ]
    initial, model = load_file(folder / "initial.safetensors"), PlainModel(folder, 2)
    plan = read_plan(folder / "hybrid")
    simulation = Simulation(plan, order, initial, model.gradient, groups, result.steps)
    for name, array in simulation.run().items():
        np.testing.assert_allclose(params[name], array, rtol=1e-9, atol=1e-12)
    _, replayed = run(folder, folder / "hybrid", replay_order=order)
    assert all(np.array_equal(replayed[name], params[name]) for name in params)
