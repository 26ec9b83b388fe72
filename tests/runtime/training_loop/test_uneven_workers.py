"""An asynchronous run is stopped and saved while its workers are at different steps."""

from __future__ import annotations

import json
import zlib
from contextlib import contextmanager
from threading import Event

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.free_workers import BATCH, make_folder, spec_text
from support.marks import MAY_TRAIN_NOTHING

import placer
from placer.checkpoint.folder import list_checkpoints
from placer.place.layouts.partition import RowShard
from placer.runtime.control.common_step import Action, CommonStep
from placer.runtime.training_loop.loop import Training
from placer.runtime.training_loop.saves import Saves

pytestmark = MAY_TRAIN_NOTHING

ROWS = 94
EPOCH = 8  # steps, the last one with fewer rows
BEHIND, AHEAD = 3, 6
"""The step that worker:1 is in when worker:0 has begun that one."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("uneven"), ROWS)


MODES = {
    "servers": "place: /node:ps/cpu, update: async",
    "sums": "place: /node:worker/cpu, sum: /node:ps/cpu, update: async",
    "workers": "place: /node:worker/cpu, update: {async: {max_staleness: 4}}",
    "heter": "place: /node:ps/cpu, update: async",
    "blocks": "place: /node:ps/cpu, update: async",
    "losses": "place: /node:ps/cpu, update: async",
    "half": "place: /node:ps/cpu, update: half_async",
    "geo": "place: /node:ps/cpu, update: {geo: {every: 3}}",
    "outer": "place: /node:ps/cpu, update: {geo: {every: 3, outer: {op: sgd,"
    " learning_rate: 1.0}}}",
    "backup": "place: /node:ps/cpu, update: {sync: {backup: 1}}",
    "sync": "place: /node:ps/cpu",
}
"""Where the optimizer is, and how the workers agree. With `heter` the second layer is on
heter nodes, with `blocks` both layers are, and workers only pass on what is between them. With
`losses` workers compute only the loss of these: they pull no parameters, and have metrics."""
HETER = ("heter", "blocks", "losses")
each_mode = pytest.mark.parametrize("mode", ["servers", "sums", "workers", *HETER])


BETWEEN = """\
  - {name: same, op: scale, in: h, factor: 1.0, place: /node:worker}
  - {name: out, op: fc, in: same,"""
LOSS = "{name: loss, op: mean_squared_error, in: [out, y]"


def compile_spec(
    folder, rate, *, workers=2, mode="servers", evaluates=False, first="worker"
):
    nodes = [f"worker: {{count: {workers}}}", "ps: {count: 2}"]
    if first == "ps":  # the control node
        nodes.reverse()
    text = spec_text(
        nodes=f"{{{', '.join(nodes)}"
        + (f", heter: {{count: {workers}}}}}" if mode in HETER else "}"),
        first="/node:heter" if mode in ("blocks", "losses") else "/node:worker",
        second="/node:heter" if mode in HETER else "/node:worker",
        optimizer=f"{{op: adam, learning_rate: {rate}, {MODES[mode]}}}",
        every="epoch" if evaluates else None,
    )
    if mode == "blocks":
        text = text.replace("  - {name: out, op: fc, in: h,", BETWEEN)
    if mode == "losses":
        text = text.replace(LOSS, f"{LOSS}, place: /node:worker")
    file = folder / f"rate{rate}_{workers}_{mode}_{evaluates}_{first}.yaml"
    file.write_text(text)
    build = folder / file.stem
    placer.compile(file, build)
    return build


def run(folder, build, **options):
    return placer.launch(
        build,
        in_process=True,
        history=folder / "history.jsonl",
        save_params=folder / "params.safetensors",
        **options,
    )


def lines(folder):
    """Return the loss of each step, from the lines of the history."""
    text = (folder / "history.jsonl").read_text()
    each = [json.loads(line) for line in text.splitlines()]
    return {line["step"]: line["metrics"]["loss"] for line in each}


def evaluated_steps(folder):
    """Return the steps that an evaluation follows, from the lines of the history."""
    text = (folder / "history.jsonl").read_text()
    each = [json.loads(line) for line in text.splitlines()]
    return [line["step"] for line in each if "eval" in line]


def initial_losses(folder):
    """Return the loss of each row with the initial parameters."""
    rows, p = np.load(folder / "rows.npz"), load_file(folder / "initial.safetensors")
    h = np.tanh(rows["x"] @ p["h.w"] + p["h.b"])
    return ((h @ p["out.w"] + p["out.b"] - rows["y"]) ** 2).mean(axis=1)


def own_rows(worker, step):
    """Return the numbers of the rows of one of two workers in a step of an epoch."""
    first = (step - 1) * BATCH
    shard = RowShard((int(worker[-1]),), 2)
    ranges = shard.ranges(min(BATCH, ROWS - first))
    return [first + i for low, high in ranges for i in range(low, high)]


@pytest.fixture
def acting_unevenly(monkeypatch):
    """Return a context in which all nodes of a run act while worker:1 is in step
    `BEHIND`, and worker:0 in `AHEAD`: both stay there until their nodes have been asked.

    When the control node saves, worker:1 has done its next step already."""

    @contextmanager
    def acting(action):
        is_ahead, is_asked, asked = Event(), Event(), set()
        run_step, answer_of_node = Training._run_step, CommonStep._answer
        save = Saves._save

        def save_late(self, *arguments, stops):
            if self.execution.is_control and not stops:
                self.flush(BEHIND + 1)
            save(self, *arguments, stops=stops)

        def hold(self, number):
            me = self.execution.me.name
            if me == "worker:1" and number == BEHIND:
                assert is_ahead.wait(60)
                self.execution.common_step.request(action)
                assert is_asked.wait(60)
            elif me == "worker:0" and number == AHEAD:
                is_ahead.set()
                assert is_asked.wait(60)
            return run_step(self, number)

        def answer(self, control, key):
            asked.add(self._channel.node)
            nodes = {*self._companions("worker:0"), *self._companions("worker:1")}
            if asked >= nodes - {self._control}:
                is_asked.set()
            answer_of_node(self, control, key)

        with monkeypatch.context() as patch:
            patch.setattr(Training, "_run_step", hold)
            patch.setattr(CommonStep, "_answer", answer)
            patch.setattr(Saves, "_save", save_late)
            yield

    return acting


def uneven_checkpoint(folder, mode):
    """Return the checkpoint that was saved while workers were at different steps, and
    its position."""
    for path, manifest in list_checkpoints(folder):
        progress = manifest.progress
        if progress.ahead:
            assert progress.step == progress.workers["worker:1"] == BEHIND
            last = progress.workers["worker:0"]
            assert last >= AHEAD
            has_heter = "heter:0" in progress.workers
            if has_heter:  # companions end at the same step
                assert progress.workers["heter:0"] == last
                assert progress.workers["heter:1"] == BEHIND
            node = "heter:0" if mode in ("heter", "blocks") else "worker:0"
            steps = [(each.node, each.step) for each in progress.ahead]
            assert steps == [(node, step) for step in range(BEHIND + 1, last + 1)]
            return path, progress
    raise AssertionError("no such checkpoint")


@each_mode
def test_each_worker_stops_after_its_own_step_and_goes_on_from_there(
    folder, tmp_path, acting_unevenly, capsys, mode
):
    # Without a learning rate the metrics of each step equal those of a synchronous run.
    build, saved = compile_spec(folder, 0.0, mode=mode), tmp_path / "saved"
    start = {"init_params": folder / "initial.safetensors"}
    with acting_unevenly(Action.STOP):
        stopped = run(tmp_path, build, checkpoint=saved, **start)
    _, progress = uneven_checkpoint(saved, mode)
    assert stopped.steps == BEHIND
    assert list(lines(tmp_path)) == [*range(1, BEHIND + 1)]
    losses = initial_losses(folder)
    trained = [
        row
        for worker, last in progress.workers.items()
        if worker.startswith("worker")
        for step in range(1, last + 1)
        for row in own_rows(worker, step)
    ]
    assert stopped.metrics["loss"] == pytest.approx(losses[trained].mean(), rel=1e-12)

    resumed = run(tmp_path, build, checkpoint=saved, resume=saved)
    assert "not necessarily with the same bits" in capsys.readouterr().err
    assert resumed.metrics["loss"] == pytest.approx(losses.mean(), rel=1e-12)
    continued = lines(tmp_path)
    run(tmp_path, compile_spec(folder, 0.0, mode="sync"), **start)
    assert continued == pytest.approx(lines(tmp_path), rel=1e-12)
    if mode in ("servers", *HETER):
        (_, manifest), *_ = list_checkpoints(saved)
        assert {p.updates for p in manifest.parameters.values()} == {2 * 16}


@each_mode
def test_a_run_is_saved_while_workers_are_at_different_steps(
    folder, tmp_path, acting_unevenly, mode
):
    build, saved = compile_spec(folder, 0.0, mode=mode), tmp_path / "saved"
    start = {"init_params": folder / "initial.safetensors"}
    with acting_unevenly(Action.SAVE):
        run(tmp_path, build, checkpoint=saved, **start)
    whole = lines(tmp_path)
    path, _ = uneven_checkpoint(saved, mode)
    # From there the same workers go on, each from its own step, and others from that of
    # the slowest one.
    for workers in (2, 3 if mode == "sums" else 1):
        other = compile_spec(folder, 0.0, workers=workers, mode=mode)
        run(tmp_path, other, resume=path)
        assert lines(tmp_path) == pytest.approx(whole, rel=1e-12)


@each_mode
def test_a_replayed_run_drains_where_the_recorded_one_was_saved(
    folder, tmp_path, acting_unevenly, mode
):
    build, order = compile_spec(folder, 0.1, mode=mode), tmp_path / "order"
    start = {"init_params": folder / "initial.safetensors"}
    parameters = tmp_path / "params.safetensors"
    with acting_unevenly(Action.SAVE):
        run(tmp_path, build, checkpoint=tmp_path / "saved", record_order=order, **start)
    uneven_checkpoint(tmp_path / "saved", mode)
    recorded = parameters.read_bytes()
    run(tmp_path, build, replay_order=order, **start)
    assert parameters.read_bytes() == recorded


@pytest.fixture
def acting_before_an_evaluation(monkeypatch):
    """Return a context in which all nodes of a run act when both workers have done the
    last step of the first epoch, and a server has not."""

    @contextmanager
    def acting(action, server):
        waiting, are_waiting, is_asked = set(), Event(), Event()
        drain, run_step, answer = (
            Training._drain,
            Training._run_step,
            CommonStep._answer,
        )

        def note(self, done, **options):
            if done == EPOCH and self.execution.me.name.startswith("worker"):
                waiting.add(self.execution.me.name)
                if len(waiting) == 2:
                    are_waiting.set()
            return drain(self, done, **options)

        def hold(self, number):
            is_done = run_step(self, number)
            if self.execution.me.name == server and number == EPOCH - 1:
                assert are_waiting.wait(60)
                self.execution.common_step.request(action)
                assert self.execution.is_control or is_asked.wait(60)
            return is_done

        def answer_of_node(self, control, key):
            if self._channel.node == server:
                is_asked.set()
            answer(self, control, key)

        with monkeypatch.context() as patch:
            patch.setattr(Training, "_drain", note)
            patch.setattr(Training, "_run_step", hold)
            patch.setattr(CommonStep, "_answer", answer_of_node)
            yield

    return acting


@pytest.mark.parametrize(
    ("action", "server", "first"),
    [
        (Action.SAVE, "ps:1", "worker"),
        (Action.STOP, "ps:1", "worker"),
        (Action.STOP, "ps:0", "ps"),
    ],
)
def test_a_run_is_saved_after_the_evaluation_of_the_step_that_all_workers_have_done(
    folder, tmp_path, acting_before_an_evaluation, action, server, first
):
    build = compile_spec(folder, 0.1, evaluates=True, first=first)
    saved = tmp_path / "saved"
    order, start = tmp_path / "order", {"init_params": folder / "initial.safetensors"}
    with acting_before_an_evaluation(action, server):
        result = run(tmp_path, build, checkpoint=saved, record_order=order, **start)
    assert result.steps == (EPOCH if action is Action.STOP else 2 * EPOCH)
    assert evaluated_steps(tmp_path) == [*range(EPOCH, result.steps + 1, EPOCH)]
    assert EPOCH in [manifest.progress.step for _, manifest in list_checkpoints(saved)]
    recorded = (tmp_path / "params.safetensors").read_bytes()
    if action is Action.SAVE:
        run(tmp_path, build, replay_order=order, **start)
        assert (tmp_path / "params.safetensors").read_bytes() == recorded
    else:
        run(tmp_path, build, resume=saved, checkpoint=saved)
        assert evaluated_steps(tmp_path) == [EPOCH, 2 * EPOCH]


@pytest.fixture
def acting_at_the_end_of_an_epoch(monkeypatch):
    """Return a context in which all nodes of a run act after the last step of the first
    epoch, after which they have drained already."""

    @contextmanager
    def acting(action, nodes):
        asked, are_asked = set(), Event()
        agree, answer = Training._agree, CommonStep._answer

        def hold(self, done):
            if done == EPOCH:
                if self.execution.is_control:
                    self.execution.common_step.request(action)
                assert are_asked.wait(60)
            return agree(self, done)

        def answer_of_node(self, control, key):
            answer(self, control, key)
            asked.add(self._channel.node)
            if len(asked) == nodes - 1:
                are_asked.set()

        with monkeypatch.context() as patch:
            patch.setattr(Training, "_agree", hold)
            patch.setattr(CommonStep, "_answer", answer_of_node)
            yield

    return acting


@pytest.mark.parametrize(
    "mode", ["half", "geo", "outer", "servers", "sums", "workers", "backup"]
)
@pytest.mark.parametrize("action", [Action.SAVE, Action.STOP])
def test_nodes_drain_twice_after_a_step(
    folder, tmp_path, acting_at_the_end_of_an_epoch, action, mode
):
    build, saved = compile_spec(folder, 0.1, mode=mode), tmp_path / "saved"
    order, start = tmp_path / "order", {"init_params": folder / "initial.safetensors"}
    with acting_at_the_end_of_an_epoch(action, nodes=4):
        result = run(
            tmp_path, build, checkpoint=saved, record_order=order, deadline=30, **start
        )
    assert result.steps == (EPOCH if action is Action.STOP else 2 * EPOCH)
    assert EPOCH in [manifest.progress.step for _, manifest in list_checkpoints(saved)]
    if action is Action.SAVE:
        recorded = (tmp_path / "params.safetensors").read_bytes()
        if mode in ("geo", "outer", "servers"):
            count_other_steps(order)
        run(tmp_path, build, replay_order=order, **start)
        assert (tmp_path / "params.safetensors").read_bytes() == recorded


def count_other_steps(order):
    """Change the steps of servers in a recorded order. After a failure, a server counts its steps
    from that of the slowest worker, and may have been ahead of it before."""
    for file in order.glob("ps-*.jsonl"):
        first, *lines, _ = file.read_text().splitlines()
        events = [json.loads(line) for line in lines]
        drains = [event for event in events if event[0] == "drain"]
        assert len(drains) > 1
        for event in drains:
            event[2] -= 1
        text = "".join(f"{line}\n" for line in (first, *map(json.dumps, events)))
        end = json.dumps(["end", 0, len(events), zlib.crc32(text.encode())])
        file.write_text(f"{text}{end}\n")


WHY_NOT = {
    "backup": "each step uses the gradients of the fastest workers",
    "outer": "the earlier run ended in the middle of a round of 'geo'",
    "servers": "workers train asynchronously",
}


@pytest.mark.parametrize("mode", WHY_NOT)
def test_a_resumed_run_says_why_its_bits_may_differ(folder, tmp_path, capsys, mode):
    build, saved = compile_spec(folder, 0.1, mode=mode), tmp_path / "saved"
    run(tmp_path, build, checkpoint=saved, checkpoint_every=1, steps=4)
    capsys.readouterr()
    run(tmp_path, build, resume=saved, steps=5)
    assert f"uninterrupted run: {WHY_NOT[mode]}" in capsys.readouterr().err


def test_a_round_that_the_end_of_a_run_has_not_closed_goes_on_with_the_same_bits(
    folder, tmp_path, capsys
):
    build, saved = compile_spec(folder, 0.1, mode="outer"), tmp_path / "saved"
    start = {"init_params": folder / "initial.safetensors"}
    options = {"checkpoint_every": 1, "checkpoint_keep": 9}
    run(tmp_path, build, checkpoint=saved, **options, **start)
    parameters = tmp_path / "params.safetensors"
    whole = parameters.read_bytes()
    path = next(p for p, m in list_checkpoints(saved) if m.progress.step == 10)
    run(tmp_path, build, resume=path)
    assert "with the same bits as an uninterrupted run" in capsys.readouterr().err
    assert parameters.read_bytes() == whole
