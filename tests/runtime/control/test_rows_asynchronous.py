"""Sparse tables of asynchronous workers: a simulation in one process, with plain
dicts of rows, follows the recorded order of the run."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from safetensors.numpy import load_file
from support.drawn.table_rows import EXTREMES
from support.orders.exchange import Group
from support.orders.rows import RowPushes, Vocabulary, merged
from support.orders.rules import sgd
from support.orders.simulation import Simulation
from support.saved_rows import assert_same_tables, rows_of

import placer
from placer.place.layouts.partition import RowShard
from placer.plan.plan import read_plan
from placer.plan.settings.training.update_modes import Async, HalfAsync
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

pytestmark = pytest.mark.usefixtures("threads_watched")

DIM, BATCH, STEPS = 2, 6, 9
ROWS = 3 * BATCH + 1  # the last batch of an epoch has a row of one worker only
KEYS = [key % 2**64 for key in EXTREMES]
RATES = {"emb.table": 0.3, "z.w": 0.1, "z.b": 0.1}
SETTINGS = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)

modes = st.one_of(
    st.just(HalfAsync()),
    st.builds(
        Async,
        max_staleness=st.sampled_from(["none", 1, 2]),
        staleness_scale=st.booleans(),
    ),
)


@st.composite
def tables(draw):
    """Draw the settings of a table."""
    admit = draw(st.sampled_from(["always", {"count": 3}, {"probability": 0.5}]))
    forget = draw(st.sampled_from([None, {"unseen_steps": 1, "every": 2}]))
    table = {"partitions": 4, "admit": admit}
    if admit != "always":
        table["default"] = 0.1
    if forget is not None:
        table["forget"] = forget
    if draw(st.booleans()):
        table |= {"capacity": 5, "evict": draw(st.sampled_from(["lru", "lfu"]))}
    return table


def compile_spec(folder, mode, table, rule, clip, workers, servers, free):
    """Compile a model whose table has a mode, and the layer as well if it is `free`."""
    update = "half_async"
    if not isinstance(mode, HalfAsync):
        scaled = {"staleness_scale": mode.staleness_scale}
        update = {"async": {"max_staleness": mode.max_staleness, **scaled}}
    common = {"place": "/node:ps/cpu", "update": update}
    rows = {"op": rule, "learning_rate": RATES["emb.table"], "match": "emb.*", **common}
    if clip:
        rows["clip"] = {"norm": clip}
    layer = {"op": "sgd", "learning_rate": 0.1, **(common if free else {})}
    source = {"source": "npz:rows.npz", "batch": BATCH, "remainder": "keep"}
    emb = {"name": "emb", "op": "embedding", "in": "keys", "sparse": True, "dim": DIM}
    content = {
        "name": "looked_up",
        "precision": "float64",
        "nodes": {"worker": {"count": workers}, "ps": {"count": servers}},
        "inputs": {"keys": "int64[batch, 2]", "y": "float64[batch, 1]"},
        "data": {"train": source},
        "parameters": [
            {"match": "emb.table", "init": {"uniform": [-0.5, 0.5]}},
            {"match": "z.w", "init": {"constant": 0.5}},
        ],
        "graph": [
            {**emb, **table},
            {"name": "flat", "op": "flatten", "in": "emb"},
            {"name": "h", "op": "tanh", "in": "flat"},
            {"name": "z", "op": "fc", "in": "h", "size": 1},
            {"name": "loss", "op": "mean_squared_error", "in": ["z", "y"]},
        ],
        "train": {"minimize": "loss", "epochs": 3, "optimizer": [rows, layer]},
    }
    (folder / "spec.yaml").write_text(json.dumps(content))
    placer.compile(folder / "spec.yaml", folder / "build")
    return folder / "build"


class Plain:
    """The rows of a worker, and its gradients by plain JAX."""

    def __init__(self, ids, y, workers):
        self.ids, self.y, self.workers = ids, y, workers

        def loss(parameters, ids, y, count):
            h = jnp.tanh(parameters["emb.table"][ids].reshape(len(ids), -1))
            z = h @ parameters["z.w"] + parameters["z.b"]
            return ((z - y) ** 2).sum() / count

        self.differentiated = jax.jit(jax.grad(loss))

    def own_rows(self, worker, step):
        first = (step - 1) % -(-ROWS // BATCH) * BATCH
        count = min(BATCH, ROWS - first)
        shard = RowShard((int(worker.partition(":")[2]),), self.workers)
        return [first + i for a, b in shard.ranges(count) for i in range(a, b)], count

    def occurrences(self, worker, step):
        rows, _ = self.own_rows(worker, step)
        return Counter(self.ids[rows].reshape(-1).tolist())

    def gradient(self, parameters, worker, step):
        rows, count = self.own_rows(worker, step)
        if not rows:
            return {name: np.zeros_like(a) for name, a in parameters.items()}, 0.0
        with jax.enable_x64(True):
            found = self.differentiated(parameters, self.ids[rows], self.y[rows], count)
        return {name: np.asarray(g) for name, g in found.items()}, len(rows) / count


def clip_norm(largest):
    """Return a function that limits the norm of each gradient; None limits nothing."""

    def clip(gradients):
        if largest is None:
            return gradients
        norms = {name: np.linalg.norm(each) for name, each in gradients.items()}
        scales = {
            n: largest / norm if norm > largest else 1 for n, norm in norms.items()
        }
        return {name: g * scales[name] for name, g in gradients.items()}

    return clip


def check_order(folder, mode, table, rule, clip, workers, servers, free, seed):
    random = np.random.default_rng(seed)
    ids = random.integers(0, len(KEYS), (ROWS, 2))
    y = random.normal(size=(ROWS, 1))
    np.savez(folder / "rows.npz", keys=np.array(KEYS, np.uint64)[ids].view("i8"), y=y)
    build = compile_spec(folder, mode, table, rule, clip, workers, servers, free)

    def run(name, **options):
        saved = folder / f"{name}.safetensors"
        kept = folder / name
        every = Options(steps=STEPS, save_params=saved, checkpoint=kept, **options)
        result = run_in_threads(build, every)
        return result, load_file(saved), kept / f"step-{STEPS:06d}"

    result, params, saved = run("recorded", record_order=folder / "order")
    plain = Plain(ids, y, workers)
    initial = {
        "emb.table": np.zeros((len(KEYS), DIM)),
        "z.w": np.full((2 * DIM, 1), 0.5),
        "z.b": np.zeros(1),
    }
    groups = [
        # The rule of the rows is that of the table.
        Group(("emb.table",), lambda _: sgd, mode, lambda _: 0.3, clip_norm(clip)),
        Group(("z.w", "z.b"), lambda _: sgd, mode if free else None),
    ]
    simulation = Simulation(
        read_plan(build),
        folder / "order",
        initial,
        plain.gradient,
        groups,
        STEPS,
        tables={"emb.table": Vocabulary(KEYS, plain.occurrences)},
    )
    simulated = simulation.run()
    for name in ("z.w", "z.b"):
        assert_allclose(params[name], simulated[name], rtol=1e-9, atol=1e-12)
    (pushes,) = (e for e in simulation.exchanges if isinstance(e, RowPushes))
    expected, found = merged(pushes.tables["emb.table"]), rows_of(saved, "emb.table")
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        assert (found[key]["count"], found[key]["seen"]) == (row.count, row.seen)
        values = np.concatenate([row.value, *row.slots])
        own = found[key]["values"][: values.size]
        assert_allclose(own, values, rtol=1e-9, atol=1e-12, err_msg=str(key))
    staleness = Counter(simulation.staleness)
    assert {int(key): n for key, n in result.staleness.items()} == staleness
    again, replayed, saved_again = run("replayed", replay_order=folder / "order")
    assert again.staleness == result.staleness
    assert all(np.array_equal(replayed[name], params[name]) for name in params)
    assert_same_tables(saved_again, saved, rtol=0)


ORDERS = {
    "mode": modes,
    "table": tables(),
    "clip": st.sampled_from([None, 0.05]),
    "workers": st.integers(2, 3),
    "servers": st.integers(1, 2),
    "free": st.booleans(),
    "seed": st.integers(0, 2**32 - 1),
}


@given(**ORDERS)
@settings(SETTINGS, max_examples=3, derandomize=True)
def test_rows_are_what_a_simulation_of_the_order_gives(**drawn):
    with tempfile.TemporaryDirectory() as folder:
        check_order(Path(folder), rule="adagrad", **drawn)


@pytest.mark.slow
@given(rule=st.sampled_from(["adagrad", "adam", "momentum"]), **ORDERS)
@settings(SETTINGS, max_examples=60)
def test_many_rows_are_what_simulations_of_their_orders_give(**drawn):
    with tempfile.TemporaryDirectory() as folder:
        check_order(Path(folder), **drawn)
