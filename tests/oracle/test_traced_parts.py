"""A function of parts of a batch trains as `jax.vmap` of it over the parts, on any workers."""

from __future__ import annotations

import importlib.util
import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

import placer
from placer.compiler.driver import compile
from placer.errors import CheckpointError, GraphError, PlacerError, SpecError
from placer.ops.functions.paths import leaves_with_paths
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

pytestmark = pytest.mark.usefixtures("in_float64")

SOURCE = Path(__file__).parents[1] / "support" / "replicated.py"
BATCH, STEPS = 8, 8
SERVERS = '"/node:ps/cpu"'
RNG = np.random.default_rng(5)
ROWS = {"x": RNG.normal(size=(24, 4)), "y": RNG.normal(size=24)}


def write(folder: Path, rows: int = 24, **changes: Any) -> Path:
    """Write the program with other constants, and its rows."""
    text = SOURCE.read_text(encoding="utf-8")
    lines = "".join(f"{k} = {v}\n" for k, v in changes.items())
    text = text.replace("\n\nclass Replicated", f"{lines}\n\nclass Replicated", 1)
    folder.mkdir()
    (folder / "model.py").write_text(text)
    np.savez(folder / "rows.npz", **{key: each[:rows] for key, each in ROWS.items()})
    return folder / "model.py"


@cache
def load_module() -> Any:
    spec = importlib.util.spec_from_file_location("plain_replicated", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def widened(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(np.float64), tree)


def mapped(part: Any, parts: int, key: Any, *rows: Any) -> Any:
    """Return the results of a function of one part for all parts: the definition."""
    keys = jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(parts))
    cut = [x.reshape(parts, -1, *x.shape[1:]) for x in rows]
    return jax.vmap(part, axis_name="batch")(keys, *cut)


Trained = tuple[list[float], Any, Any]


def train(loss: Any, params: Any, stats: Any) -> Trained:
    """Return the losses, and the final parameters and statistics, by plain JAX."""
    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    losses = []
    for number in range(1, STEPS + 1):
        part = slice((number - 1) % 3 * BATCH, (number - 1) % 3 * BATCH + BATCH)
        key = placer.step_key(load_module().SEED, "net", number)
        rows = ROWS["x"][part], ROWS["y"][part]
        (error, stats), grads = step(params, stats, key, *rows)
        # All parts begin the next step with the statistics of part 0.
        stats = jax.tree.map(lambda x: x[0], stats)
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)
        losses.append(float(error))
    return losses, params, stats


Expected = tuple[list[float], dict[str, Any], float]


@cache
def plain_nnx(parts: int) -> Expected:
    """Return the losses, the final values and the evaluation of Flax and plain JAX."""
    module = load_module()
    graph, params, stats, rngs = nnx.split(
        module.replicated(), nnx.Param, nnx.BatchStat, ...
    )

    def loss(params: Any, stats: Any, key: Any, x: Any, y: Any) -> Any:
        def part(key: Any, x: Any) -> Any:
            model = nnx.merge(graph, params, stats, rngs, copy=True)
            model.drop.rngs = nnx.Rngs(jax.random.fold_in(key, 0)).default
            return module.apply(model, x), nnx.state(model, nnx.BatchStat)

        results, stats_of_parts = mapped(part, parts, key, x)
        return ((results.reshape(-1) - y) ** 2).mean(), stats_of_parts

    losses, params, stats = train(loss, widened(params), widened(stats))
    model = nnx.merge(graph, params, stats, rngs, copy=True)
    values = {
        "net." + "_".join(path): np.asarray(leaf)
        for path, leaf in leaves_with_paths(model)
        if "rngs" not in path
    }
    model.eval()
    error = module.apply(model, ROWS["x"]) - ROWS["y"]
    return losses, values, float((error**2).mean())


@cache
def plain_linen(parts: int) -> Expected:
    module = load_module()
    variables = widened(module.variables())

    def loss(params: Any, stats: Any, key: Any, x: Any, y: Any) -> Any:
        def part(key: Any, x: Any) -> Any:
            return module.apply_linen(params, stats, x, key, True)

        results, stats_of_parts = mapped(part, parts, key, x)
        return ((results.reshape(-1) - y) ** 2).mean(), stats_of_parts

    losses, params, stats = train(loss, variables["params"], variables["batch_stats"])
    values = {
        f"net.{name}_" + "_".join(path): np.asarray(leaf)
        for name, tree in (("params", params), ("stats", stats))
        for path, leaf in leaves_with_paths(tree)
    }
    result, _ = module.apply_linen(params, stats, ROWS["x"], jax.random.key(0), False)
    return losses, values, float(((result - ROWS["y"]) ** 2).mean())


@cache
def plain_contrast(parts: int) -> Expected:
    module = load_module()

    def loss(params: Any, key: Any, x: Any, y: Any) -> Any:
        def part(_: Any, x: Any, y: Any) -> Any:
            return module.contrast(params, x, y)

        return mapped(part, parts, key, x, y)[0]

    losses, params, _ = train(
        lambda params, _, *given: (loss(params, *given), ()),
        widened(module.weights()),
        (),
    )
    values = {f"loss.{name}": np.asarray(value) for name, value in params.items()}
    key = jax.random.key(0)
    of_batches = [
        float(loss(params, key, ROWS["x"][at : at + BATCH], ROWS["y"][at : at + BATCH]))
        for at in (0, 8, 16)
    ]
    return losses, values, float(np.mean(of_batches))


def check(expected: Expected, folder: Path, outcome: Any, first: int = 0) -> None:
    losses, values, evaluation = expected
    lines = map(json.loads, (folder / "history.jsonl").read_text().splitlines())
    got = [line["metrics"]["loss"] for line in lines if "metrics" in line]
    assert got[-len(losses[first:]) :] == pytest.approx(losses[first:], rel=1e-12)
    trained = load_file(folder / "saved.safetensors")
    assert trained.keys() == values.keys()
    for name, value in values.items():
        np.testing.assert_allclose(trained[name], value, rtol=1e-12, atol=1e-12)
    assert outcome.eval == {"loss": pytest.approx(evaluation, rel=1e-12)}


def options(folder: Path, **changes: Any) -> Options:
    given = {"steps": STEPS, "deadline": 300.0, "history": folder / "history.jsonl"}
    given["save_params"] = folder / "saved.safetensors"
    return Options(**{**given, **changes})


@pytest.mark.parametrize(
    ("which", "plain", "parts", "workers", "place"),
    [
        pytest.param("build", plain_nnx, 2, 1, None, marks=pytest.mark.slow),
        ("build", plain_nnx, 2, 2, SERVERS),
        pytest.param("build", plain_nnx, 4, 1, SERVERS, marks=pytest.mark.slow),
        ("build", plain_nnx, 4, 2, None),
        pytest.param("build", plain_nnx, 4, 4, None, marks=pytest.mark.slow),
        pytest.param("build_linen", plain_linen, 2, 2, None, marks=pytest.mark.slow),
        pytest.param("build_linen", plain_linen, 4, 2, SERVERS, marks=pytest.mark.slow),
        pytest.param(
            "build_contrast", plain_contrast, 4, 1, None, marks=pytest.mark.slow
        ),
        ("build_contrast", plain_contrast, 4, 2, SERVERS),
    ],
)
def test_parts_are_those_of_vmap(
    which: str,
    plain: Any,
    parts: int,
    workers: int,
    place: str | None,
    tmp_path: Path,
) -> None:
    changes = {"WORKERS": workers, "PARTS": parts}
    changes |= {} if place is None else {"OPTIMIZER": place}
    file = write(tmp_path / "run", **changes)
    compile(f"{file}:{which}", tmp_path / "build")
    check(plain(parts), tmp_path, run_in_threads(tmp_path / "build", options(tmp_path)))


def plain_equinox(parts: int) -> list[float]:
    """Return the losses of Equinox and plain JAX."""
    module = load_module()

    def to_wide(leaf: Any) -> Any:
        is_float = equinox.is_inexact_array(leaf)
        return leaf.astype(np.float64) if is_float else leaf

    model, state = jax.tree.map(to_wide, (module.statistical(), module.start()))
    trained, fixed = equinox.partition(model, equinox.is_inexact_array)

    def loss(trained: Any, state: Any, key: Any, x: Any, y: Any) -> Any:
        whole = equinox.combine(trained, fixed)
        cut = x.reshape(parts, -1, 4)

        def part(x: Any) -> Any:
            return module.apply_equinox(whole, state, x)

        results, states = jax.vmap(part, axis_name="parts")(cut)
        return ((results.reshape(-1) - y) ** 2).mean(), states

    return train(loss, trained, state)[0]


def test_an_axis_of_equinox_is_inside_the_parts(tmp_path: Path) -> None:
    file = write(tmp_path / "run", WORKERS=2)
    compile(f"{file}:build_equinox", tmp_path / "build")
    run_in_threads(tmp_path / "build", options(tmp_path))
    losses = plain_equinox(2)
    lines = map(json.loads, (tmp_path / "history.jsonl").read_text().splitlines())
    got = [line["metrics"]["loss"] for line in lines if "metrics" in line]
    assert got == pytest.approx(losses, rel=1e-12)


def test_a_run_resumes_on_one_worker_with_the_same_parts(tmp_path: Path) -> None:
    file = write(tmp_path / "run", WORKERS=2, OPTIMIZER=SERVERS)
    compile(f"{file}:build", tmp_path / "build")
    saves = tmp_path / "checkpoints"
    half = Options(steps=STEPS // 2, checkpoint=saves, deadline=300.0)
    run_in_threads(tmp_path / "build", half)
    compile(f"{file}:build", tmp_path / "other", nodes={"worker": 1})
    given = options(tmp_path, resume=saves)
    outcome = run_in_threads(tmp_path / "other", given)
    check(plain_nnx(2), tmp_path, outcome, STEPS // 2)


def test_a_run_does_not_resume_with_another_number_of_parts(tmp_path: Path) -> None:
    file = write(tmp_path / "run", WORKERS=2, PARTS=None)
    compile(f"{file}:build", tmp_path / "build")
    saves = tmp_path / "checkpoints"
    given = Options(steps=1, checkpoint=saves, deadline=300.0)
    run_in_threads(tmp_path / "build", given)
    file = write(tmp_path / "one", WORKERS=1, PARTS=None)
    compile(f"{file}:build", tmp_path / "other")
    why = (
        "'net' computes each batch in 1 part, but the run of the checkpoint in 2 parts"
    )
    with pytest.raises(CheckpointError, match=why) as raised:
        run_in_threads(tmp_path / "other", options(tmp_path, resume=saves))
    assert raised.value.hint == "pass parts=2 to placer.trace"


def test_one_process_computes_all_parts(tmp_path: Path) -> None:
    file = write(tmp_path / "run", WORKERS=2, PARTS=None)
    plan = compile(f"{file}:build", tmp_path / "build", single_process=True)
    assert "2 parts of each batch of 'net'" in {each.what for each in plan.choices}
    outcome = run_in_threads(tmp_path / "build", options(tmp_path))
    check(plain_nnx(2), tmp_path, outcome)


@pytest.mark.slow
def test_microbatches_compute_their_parts(tmp_path: Path) -> None:
    file = write(tmp_path / "run", WORKERS=2, PARTS=4)
    text = file.read_text().replace("epochs=8,", "epochs=8, microbatches=2,")
    file.write_text(text)
    compile(f"{file}:build", tmp_path / "build")
    outcome = run_in_threads(tmp_path / "build", options(tmp_path))
    check(plain_nnx(4), tmp_path, outcome)


def test_an_evaluation_by_rows_takes_any_batch(tmp_path: Path) -> None:
    file = write(tmp_path / "run", rows=17, PARTS=4, EVALUATED=6)
    compile(f"{file}:build", tmp_path / "build")
    outcome = run_in_threads(tmp_path / "build", Options(steps=1, deadline=300.0))
    assert outcome.eval is not None


def test_a_short_batch_of_an_evaluation_needs_equal_parts(tmp_path: Path) -> None:
    file = write(tmp_path / "run", rows=11, PARTS=2)
    compile(f"{file}:build_contrast", tmp_path / "build")
    with pytest.raises(
        PlacerError, match="2 parts of equal size, but a batch has 3 rows"
    ):
        run_in_threads(tmp_path / "build", Options(steps=1, deadline=300.0))


@pytest.mark.parametrize(
    ("changes", "which", "error", "message"),
    [
        ({"WORKERS": 3, "BATCH": 6}, "build", GraphError, "the 3 nodes of .* cannot compute the 2 parts"),
        ({"PARTS": 3}, "build", GraphError, "a batch of 8 rows cannot be cut into the 3 equal parts of 'net'(.|\n)* use batch: 6 or batch: 9"),
        ({"EVALUATED": 7}, "build_contrast", GraphError, "of 7 rows of an evaluation cannot be cut into the 2(.|\n)* use data.eval.batch: 6 or"),
        ({"PARTS": 0}, "build", SpecError, "parts must be a whole number"),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_refused(
    changes: dict[str, int],
    which: str,
    error: type[Exception],
    message: str,
    tmp_path: Path,
) -> None:
    file = write(tmp_path / "run", **changes)
    with pytest.raises(error, match=message):
        compile(f"{file}:{which}", tmp_path / "build")
