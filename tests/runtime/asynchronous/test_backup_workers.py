"""Runs whose steps take the gradients of the workers that are first."""

from __future__ import annotations

import json
from threading import Event

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from support.free_workers import (
    BATCH,
    PENALTY,
    WIDTH,
    compile_text,
    make_folder,
    new_folder,
    run,
    spec_text,
)
from support.orders.exchange import RATE
from support.orders.rules import adam, sgd

import placer
from placer.checkpoint.folder import list_checkpoints
from placer.errors import PlacerError
from placer.plan.plan import read_plan
from placer.runtime.asynchronous.backup_workers import FirstWorkers
from placer.runtime.training_loop.loop import Training

pytestmark = pytest.mark.usefixtures("threads_watched")

ROWS = 86  # 8 steps in an epoch, the last one with 2 rows
STEPS = 16
RULES = {"sgd": sgd, "adam": adam}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("backup"), ROWS)


def text(
    *,
    update="{sync: {backup: 1}}",
    rule="sgd",
    workers=3,
    servers=2,
    place="/node:ps/cpu",
    every="3 steps",
    **options,
):
    return spec_text(
        nodes=f"{{worker: {{count: {workers}}}, ps: {{count: {servers}}}}}",
        optimizer=f"{{op: {rule}, learning_rate: {RATE}, place: {place},"
        f" update: {update}}}",
        every=every,
        **options,
    )


def compile_spec(folder, **options):
    return compile_text(folder, text(**options))


def read_order(folder, node):
    lines = (folder / f"{node.replace(':', '-')}.jsonl").read_text().splitlines()[1:]
    return [json.loads(line) for line in lines]


def taken_in(order):
    """Return the workers whose gradients each step has taken."""
    events = read_order(order, "ps:0")
    return {step: workers for kind, _, step, *workers in events if kind == "taken"}


def rows_of(plan, worker, step):
    """Return the numbers of the rows of a worker in a step."""
    first = (step - 1) % (STEPS // 2) * BATCH
    ranges = plan.pushed_rows(worker).ranges(min(BATCH, ROWS - first))
    return [first + i for low, high in ranges for i in range(low, high)]


@jax.jit
def gradient(p, x, y, penalty):
    def loss_of(p):
        h = jax.numpy.tanh(x @ p["h.w"] + p["h.b"])
        loss = ((h @ p["out.w"] + p["out.b"] - y) ** 2).mean()
        return loss + penalty * (p["h.w"] ** 2).sum(), loss

    return jax.value_and_grad(loss_of, has_aux=True)(p)


def simulate(folder, plan, taken, rule, clip, penalty):
    """Return the parameters after all steps, and the loss of each step, by plain JAX
    over the rows of the workers that it has taken."""
    rows = np.load(folder / "rows.npz")
    params = load_file(folder / "initial.safetensors")

    slots = {name: {} for name in params}
    losses = {}
    with jax.enable_x64(True):
        for step, workers in sorted(taken.items()):
            own = [row for worker in workers for row in rows_of(plan, worker, step)]
            (_, loss), g = gradient(params, rows["x"][own], rows["y"][own], penalty)
            losses[step] = float(loss)
            norm = float(np.sqrt(sum((each**2).sum() for each in g.values())))
            scale = min(1.0, clip / norm) if clip else 1.0
            params = {
                n: RULES[rule](
                    params[n], np.asarray(g[n]) * scale, slots[n], step, RATE
                )
                for n in params
            }
    return params, losses


def read_history(folder):
    text = (folder / "history.jsonl").read_text()
    return {line["step"]: line for line in map(json.loads, text.splitlines())}


@settings(max_examples=3, deadline=None, derandomize=True)
@given(
    rule=st.sampled_from(["sgd", "adam"]),
    workers_and_backup=st.sampled_from([(2, 1), (3, 1), (4, 2)]),
    servers=st.integers(1, 3),
    clip=st.sampled_from([None, 0.3]),
    penalized=st.booleans(),
)
def test_a_run_is_what_plain_jax_gives_on_the_rows_that_its_steps_have_taken(
    folder, rule, workers_and_backup, servers, clip, penalized
):
    workers, backup = workers_and_backup
    build = compile_spec(
        folder,
        rule=rule,
        update=f"{{sync: {{backup: {backup}}}}}",
        workers=workers,
        servers=servers,
        train=f"  clip: {{global_norm: {clip}}}\n" if clip else "",
        penalized=penalized,
    )
    order = new_folder(folder)
    result, _ = run(folder, build, record_order=order)
    plan, taken = read_plan(build), taken_in(order)
    assert list(taken) == [*range(1, STEPS + 1)]
    for step, each in taken.items():
        with_rows = [f"worker:{i}" for i in range(workers)]
        with_rows = [w for w in with_rows if rows_of(plan, w, step)]
        assert {*each} <= {*with_rows}
        assert len(each) == min(workers - backup, len(with_rows))
    expected, losses = simulate(
        folder, plan, taken, rule, clip, PENALTY if penalized else 0.0
    )
    for name, array in expected.items():
        np.testing.assert_allclose(result.params[name], array, rtol=1e-9, atol=1e-12)
    history = read_history(folder)
    for step, loss in losses.items():
        assert history[step]["metrics"]["loss"] == pytest.approx(loss, rel=1e-9)
    # An epoch's mean is over the rows that it has trained.
    trained = {
        step: sum(len(rows_of(plan, worker, step)) for worker in each)
        for step, each in taken.items()
    }
    last = range(STEPS // 2 + 1, STEPS + 1)
    mean = sum(losses[s] * trained[s] for s in last) / sum(trained[s] for s in last)
    assert result.metrics["loss"] == pytest.approx(mean, rel=1e-9)
    assert result.untrained_rows == 2 * ROWS - sum(trained.values())
    again, _ = run(folder, build, replay_order=order)
    assert all(np.array_equal(again.params[n], result.params[n]) for n in expected)
    assert (again.metrics, again.untrained_rows) == (
        result.metrics,
        result.untrained_rows,
    )


STATISTICS = "  - {name: bn, op: batch_norm, in: x, scope: replica, momentum: 0.9}\n"


@pytest.mark.parametrize(
    ("method", "last"),
    [("begin", 4), ("drain", 3)],
    ids=["in a step", "while servers drain"],
)
def test_a_worker_that_is_late_joins_the_newest_step(folder, monkeypatch, method, last):
    """Its running statistics, too, are over the rows of steps that take its gradients.

    It ends its first step when a server begins a later one, or when all wait before an
    evaluation for it.
    """
    # Evaluations within the epoch would wait for the worker.
    every = "epoch" if method == "begin" else "3 steps"
    build = compile_spec(folder, penalized=True, extra=STATISTICS, every=every)
    is_held, is_far = Event(), Event()
    run_step, call = Training._run_step, getattr(FirstWorkers, method)
    started = []

    def note(self, *arguments):
        if method == "drain" or arguments[0] == last + 1:
            is_far.set()
        call(self, *arguments)

    def hold(self, number):
        if self.execution.me.name == "worker:0":
            started.append(number)
            if number == 1:
                is_held.set()
                assert is_far.wait(60)
        elif self.execution.me.name.startswith("worker"):
            assert is_held.wait(60)
        return run_step(self, number)

    late = new_folder(folder)
    with monkeypatch.context() as patch:
        patch.setattr(FirstWorkers, method, note)
        patch.setattr(Training, "_run_step", hold)
        result, _ = run(folder, build, "normalized", record_order=late)
    assert started[0] == 1
    assert not {*range(2, last + 1)} & {*started}
    taken = taken_in(late)
    assert all("worker:0" not in taken[step] for step in range(1, last + 1))
    plan, x = read_plan(build), np.load(folder / "rows.npz")["x"]
    expected, _ = simulate(folder, plan, taken, "sgd", None, PENALTY)
    mean = np.zeros(WIDTH)
    for step, workers in taken.items():
        if "worker:0" in workers:
            own = x[rows_of(plan, "worker:0", step)]
            mean = 0.9 * mean + 0.1 * own.mean(0)
    expected["bn.running_mean"] = mean
    again, _ = run(folder, build, "normalized", replay_order=late)
    for name, array in expected.items():
        np.testing.assert_allclose(result.params[name], array, rtol=1e-9, atol=1e-12)
    for name, array in result.params.items():
        assert np.array_equal(again.params[name], array), name


def test_a_resumed_run_goes_on_from_its_checkpoint(folder):
    build, saved, order = compile_spec(folder), folder / "saved", folder / "resumed"
    whole, _ = run(
        folder,
        build,
        record_order=order,
        checkpoint=saved,
        checkpoint_every="5",
        checkpoint_keep=9,
    )
    path = next(p for p, m in list_checkpoints(saved) if m.progress.step == 5)
    # The order of the steps after it, as of a run that was killed.
    for file in order.glob("*.jsonl"):
        head, *events, _ = map(json.loads, file.read_text().splitlines())
        head["after"] = 5
        left = [each for each in events if each[0] != "saved" and each[2] > 5]
        lines = [json.dumps(each) + "\n" for each in (head, *left)]
        file.write_text("".join(lines))
    result = placer.launch(build, in_process=True, resume=path, replay_order=order)
    for name, array in whole.params.items():
        assert np.array_equal(result.params[name], array), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"update": "{sync: {backup: 3}}"}, "3 backup workers of 3 leave no worker"),
        ({"place": "/node:worker/cpu"}, "backup workers need the optimizer on servers"),
        ({"first": "/node:ps:0/cpu"}, "'h.w' is used at /node:ps:0/cpu"),
        ({"update": "{sync: {backups: 1}}"}, "unknown key 'backups'"),
        ({"update": "{sync: {backup: 1}, async: {}}"}, "exactly one of sync, async"),
    ],
)
def test_what_needs_all_workers_is_an_error(folder, options, message):
    (folder / "wrong.yaml").write_text(text(**options))
    with pytest.raises(PlacerError, match=message) as caught:
        placer.compile(folder / "wrong.yaml", folder / "wrong")
    assert caught.value.hint


def test_synchronous_groups_cannot_be_beside_one_with_backup_workers(folder):
    spec = text()
    head, _, group = spec.partition("  optimizer: ")
    groups = f"  optimizer:\n    - {{match: h.*, {group.strip()[1:]}\n"
    groups += "    - {op: sgd, learning_rate: 0.1, place: /node:ps/cpu}\n"
    (folder / "wrong.yaml").write_text(head + groups)
    with pytest.raises(PlacerError, match="another optimizer has 1 backup worker"):
        placer.compile(folder / "wrong.yaml", folder / "wrong")
