"""Runs of a small model with asynchronous workers, and its gradients by plain
JAX."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest
from msgspec.structs import asdict
from safetensors.numpy import load_file, save_file

import placer
from placer.place.layouts.partition import RowShard, part_range
from placer.plan.plan import read_plan
from placer.plan.settings.training.update_modes import Geo, HalfAsync
from support.orders.simulation import Simulation
from support.small_models import two_layers

ROWS, BATCH, WIDTH = 85, 12, 6


def make_folder(folder, rows=ROWS):
    """Write rows, and initial parameters, without normalization and with it."""
    random = np.random.default_rng(5)
    x, y = random.normal(size=(rows, WIDTH)), random.normal(size=(rows, 4))
    np.savez(folder / "rows.npz", x=x, y=y)
    shapes = {
        "h.w": (WIDTH, WIDTH),
        "h.b": (WIDTH,),
        "out.w": (WIDTH, 4),
        "out.b": (4,),
    }
    initial = {name: random.normal(size=shape) for name, shape in shapes.items()}
    save_file(initial, folder / "initial.safetensors")
    normalized = {
        "bn.scale": random.normal(size=WIDTH),
        "bn.bias": random.normal(size=WIDTH),
        "bn.running_mean": np.zeros(WIDTH),
        "bn.running_variance": np.ones(WIDTH),
    }
    save_file({**initial, **normalized}, folder / "normalized.safetensors")
    return folder


def new_folder(folder):
    """Return a new folder for the order or the parameters of a run."""
    return Path(tempfile.mkdtemp(prefix="order", dir=folder))


PENALTY = 0.05
PENALIZED = f"""\
  - {{name: squares, op: mul, in: [h.w, h.w]}}
  - {{name: square, op: reduce_sum, in: squares}}
  - {{name: penalty, op: scale, in: square, factor: {PENALTY}}}
  - {{name: total, op: add, in: [loss, penalty]}}
"""
EPSILON = 0.1
"""So large that the gradient of two normalized rows is not near 0, and rounding small."""
NORMALIZED = f"""\
  - {{name: bn, op: batch_norm, in: h, scope: replica, momentum: 0.9, epsilon: {EPSILON}, place: PLACE}}
  - {{name: out, op: fc, in: bn,"""
LARGEST = "  - {name: largest, op: reduce_max, in: x}\n"
"""A metric for which each worker reads the rows of all."""


def spec_text(*, every=None, train="", extra="", penalized=False, **options):
    """Return the spec of `two_layers` in float64, for 2 epochs with a small last batch.

    `every` is the interval of evaluations over all rows; None for no evaluation.
    """
    train = "  slicing: {min_block: 8}\n" + train
    if every:
        train += f"  eval: {{every: {every}}}\n"
    text = two_layers(
        width=WIDTH,
        batch=BATCH,
        precision="float64",
        train=train,
        extra=(PENALIZED if penalized else "") + extra,
        **options,
    )
    if penalized:
        text = text.replace("minimize: loss", "minimize: total")
    if every:
        source = '{source: "npz:rows.npz", batch: 12, remainder: keep}'
        text = text.replace("graph:\n", f"  eval: {source}\ngraph:\n")
    text = text.replace("epochs: 1", "epochs: 2")
    return text.replace(f"batch: {BATCH}}}", f"batch: {BATCH}, remainder: keep}}")


def compile_text(folder, text, build="build"):
    """Compile a spec in a folder; return the build."""
    (folder / "small.yaml").write_text(text)
    placer.compile(folder / "small.yaml", folder / build)
    return folder / build


def compile_spec(
    folder,
    update,
    *,
    rule="sgd",
    rate=0.1,
    clip=None,
    workers=2,
    servers=2,
    epochs=2,
    penalized=False,
    microbatches=1,
    device="cpu",
    place=None,
    summed="",
    worker_device="cpu",
    normalized=False,
    heter=False,
):
    """Compile the model with a mode; return the build.

    `place` is that of the optimizer, by default a device of all servers; `summed` that of
    the sums of gradients. With `heter`, each worker has a heter node for the second layer.
    `clip` limits one norm, or with `heter` that of each gradient.
    """
    norm = "norm" if heter else "global_norm"
    more = f", clip: {{{norm}: {clip}}}" if clip else ""
    more += f", sum: {summed}" if summed else ""
    place = place or f"/node:ps/{device}"
    first = f"/node:worker/{worker_device}"
    second = "/node:heter/gpu" if heter else first
    text = spec_text(
        nodes=f"{{worker: {{count: {workers}, devices: {{cpu: 1, gpu: 1}}}},"
        + (f" heter: {{count: {workers}, devices: {{gpu: 1}}}}," if heter else "")
        + f" ps: {{count: {servers}, devices: {{cpu: 1, gpu: 1}}}}}}",
        first=first,
        second=second,
        optimizer=f"{{op: {rule}, learning_rate: {rate}, place: {place},"
        f" update: {update}{more}}}",
        penalized=penalized,
        extra=LARGEST if penalized else "",
        every="2 steps",
        train=f"  microbatches: {microbatches}\n",
    )
    if normalized:
        text = text.replace("  - {name: out, op: fc, in: h,", NORMALIZED)
        text = text.replace("PLACE", second)
    if penalized:
        text = text.replace("metrics: [loss]", "metrics: [loss, total, largest]")
    text = text.replace("name: small", "name: small\nemulate: true")
    return compile_text(folder, text.replace("epochs: 2", f"epochs: {epochs}"))


def run(folder, build, initial="initial", **options):
    """Run a build from the initial parameters; return the result and the parameters."""
    saved = new_folder(folder) / "params.safetensors"  # `Result.params` reads it later
    result = placer.launch(
        build,
        in_process=True,
        save_params=saved,
        init_params=folder / f"{initial}.safetensors",
        **{"history": folder / "history.jsonl", **options},
    )
    return result, load_file(saved)


def text_of(mode):
    """Return a mode as a spec has it."""
    if isinstance(mode, HalfAsync):
        return "half_async"
    settings = {key: value for key, value in asdict(mode).items() if value is not None}
    return json.dumps({"geo" if isinstance(mode, Geo) else "async": settings})


def check_against_simulation(
    folder, build, group_of, model, normalized, *, replays=True
):
    """Check that a run is what plain JAX gives in its order, and its replay bit by bit.

    `group_of` returns the group of the names of parameters. Without `replays` a second run
    needs no order for that. Returns the result of the run.
    """
    order, start = new_folder(folder), "normalized" if normalized else "initial"
    result, params = run(folder, build, start, record_order=order)
    initial = load_file(folder / f"{start}.safetensors")
    initial = {name: each for name, each in initial.items() if "running" not in name}
    group, plan = group_of(tuple(initial)), read_plan(build)
    simulation = Simulation(plan, order, initial, model.gradient, [group], result.steps)
    simulated, staleness = simulation.run(), simulation.staleness
    running = model.running_statistics() if normalized else None
    loss = model.loss(simulated, running)
    assert result.eval["loss"] == pytest.approx(loss, rel=1e-9)
    if normalized:
        mean, variance = running
        simulated |= {"bn.running_mean": mean, "bn.running_variance": variance}
    for name, array in simulated.items():
        largest = np.abs(array).max()
        np.testing.assert_allclose(params[name], array, rtol=0, atol=1e-9 * largest)
    expected = {str(each): staleness.count(each) for each in {*staleness}}
    is_geo = isinstance(group.mode, Geo)
    assert result.geo_staleness == (expected if is_geo else {})
    assert result.staleness == ({} if is_geo else expected)
    options = {"replay_order": order} if replays else {}
    again, repeated = run(folder, build, start, **options)
    assert all(np.array_equal(repeated[name], params[name]) for name in params)
    assert again.staleness == result.staleness
    assert again.geo_staleness == result.geo_staleness
    return result


def forward(parameters, x, statistics=None):
    """Return the results of the model, and the mean and the variance that it normalizes
    by: of the rows `x`, or those given. Without normalization they are None."""
    h = jax.numpy.tanh(x @ parameters["h.w"] + parameters["h.b"])
    if "bn.scale" in parameters:
        mean, variance = statistics or (h.mean(0), h.var(0))
        h = (h - mean) / jax.numpy.sqrt(variance + EPSILON)
        h = h * parameters["bn.scale"] + parameters["bn.bias"]
        statistics = mean, variance
    return h @ parameters["out.w"] + parameters["out.b"], statistics


class PlainModel:
    """The gradients of a worker, by plain JAX.

    Args:
        clip: limits their norm, as if the other workers had the same ones.
        clips_each: whether it limits that of each gradient by itself.
        penalty: the factor of the penalty, which counts by rows.

    Attributes:
        statistics: the mean and the variance of the rows of a worker in a step.
    """

    def __init__(
        self,
        folder,
        workers,
        clip=None,
        penalty=0.0,
        microbatches=1,
        clips_each=False,
    ):
        rows = np.load(folder / "rows.npz")
        self.x, self.y = rows["x"], rows["y"]
        self.workers, self.microbatches = workers, microbatches
        self.clip, self.clips_each = clip, clips_each
        self.statistics = {}

        def loss(parameters, x, y, count):
            out, statistics = forward(parameters, x)
            penalties = penalty * len(x) / count * (parameters["h.w"] ** 2).sum()
            return ((out - y) ** 2).sum() / (count * 4) + penalties, statistics

        self.differentiated = jax.jit(jax.grad(loss, has_aux=True))

    def own_rows(self, worker, step):
        """Return the rows of each microbatch, and the number of rows of all workers."""
        first = (step - 1) % -(-ROWS // BATCH) * BATCH
        count = min(BATCH, ROWS - first)
        shard = RowShard((int(worker.partition(":")[2]),), self.workers)
        bounds = [
            part_range(count, i, self.microbatches) for i in range(self.microbatches)
        ]
        ranges = [(start, shard.ranges(stop - start)) for start, stop in bounds]
        return [
            [first + start + i for low, high in own for i in range(low, high)]
            for start, own in ranges
        ], count

    def gradient(self, parameters, worker, step):
        parts = {name: np.zeros_like(array) for name, array in parameters.items()}
        microbatches, count = self.own_rows(worker, step)
        share = sum(map(len, microbatches)) / count
        means = []
        for rows in filter(None, microbatches):
            with jax.enable_x64(True):
                own, statistics = self.differentiated(
                    parameters, self.x[rows], self.y[rows], count
                )
            parts = {name: parts[name] + np.asarray(own[name]) for name in parts}
            if statistics is not None:
                means.append(np.array(statistics) * len(rows) / count / share)
        if means:
            self.statistics[worker, step] = sum(means)
        if self.clip and share:
            groups = [[n] for n in parts] if self.clips_each else [[*parts]]
            for names in groups:
                norm = np.sqrt(sum((parts[n] ** 2).sum() for n in names)) / share
                if norm > self.clip:
                    parts |= {n: parts[n] * (self.clip / norm) for n in names}
        return parts, share

    def running_statistics(self):
        """Return the moving averages of the first worker, from 0 and 1."""
        running = np.array([np.zeros(WIDTH), np.ones(WIDTH)])
        for worker, step in sorted(self.statistics):
            if worker == "worker:0":
                running = 0.9 * running + 0.1 * self.statistics[worker, step]
        return tuple(running)

    def loss(self, parameters, statistics):
        """Return the loss of an evaluation over all rows."""
        with jax.enable_x64(True):
            out, _ = forward(parameters, self.x, statistics)
        return np.mean((np.asarray(out) - self.y) ** 2)


def read_parameters(folder, manifest):
    """Return the parameters of a checkpoint."""
    params = {}
    for name, stored in manifest.parameters.items():
        blocks = sorted(stored.blocks, key=lambda block: block.start)
        parts = [load_file(folder / b.file)[b.tensor].reshape(-1) for b in blocks]
        params[name] = np.concatenate(parts).reshape(stored.shape)
    return params
