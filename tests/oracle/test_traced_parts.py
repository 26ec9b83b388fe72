"""A function of parts of a batch trains as `jax.vmap` of it over the parts, on any workers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import equinox
import jax
import numpy as np
import pytest
from support.histories import read_losses
from support.imported_files import load_program, write_program
from support.plain.normalizing import (
    BATCH,
    ROWS,
    Expected,
    check,
    options,
    over_parts,
    plain_linen,
    plain_nnx,
    train,
    widened,
)

from placer.compiler.driver import compile
from placer.errors import CheckpointError, GraphError, PlacerError, SpecError
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

pytestmark = pytest.mark.usefixtures("in_float64")

STEPS = 8
SERVERS = "/node:ps/cpu"


def write(folder: Path, rows: int = 24, **changes: Any) -> Path:
    some = {key: each[:rows] for key, each in ROWS.items()}
    return write_program(folder, "normalizing", some, **changes)


@cache
def plain_contrast(steps: int, parts: int) -> Expected:
    module = load_program("normalizing")

    def loss(params: Any, _: Any, key: Any, x: Any, y: Any) -> Any:
        def part(_: Any, x: Any, y: Any) -> Any:
            return module.contrast(params, x, y)

        return over_parts(part, parts, key, x, y)[0], ()

    losses, params, _ = train(loss, widened(module.weights()), (), steps)
    values = {f"loss.{name}": np.asarray(value) for name, value in params.items()}
    key, of_batches = jax.random.key(0), []
    for at in (0, 8, 16):
        x, y = (each[at : at + BATCH] for each in ROWS.values())
        of_batches.append(loss(params, (), key, x, y)[0])
    return losses, values, float(np.mean(of_batches))


@pytest.mark.parametrize(
    ("which", "plain", "parts", "workers", "place"),
    [
        pytest.param("build_parts", plain_nnx, 2, 1, None, marks=pytest.mark.slow),
        ("build_parts", plain_nnx, 2, 2, SERVERS),
        pytest.param("build_parts", plain_nnx, 4, 1, SERVERS, marks=pytest.mark.slow),
        ("build_parts", plain_nnx, 4, 2, None),
        pytest.param("build_parts", plain_nnx, 4, 4, None, marks=pytest.mark.slow),
        pytest.param(
            "build_linen_parts", plain_linen, 2, 2, None, marks=pytest.mark.slow
        ),
        pytest.param(
            "build_linen_parts", plain_linen, 4, 2, SERVERS, marks=pytest.mark.slow
        ),
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
    outcome = run_in_threads(tmp_path / "build", options(tmp_path, STEPS))
    check(plain(STEPS, parts), tmp_path, outcome)


def plain_equinox(parts: int) -> list[float]:
    """Return the losses of Equinox and plain JAX."""
    module = load_program("normalizing")
    model, state = widened((module.statistical(), module.start()))
    trained, fixed = equinox.partition(model, equinox.is_inexact_array)

    def loss(trained: Any, state: Any, _: Any, x: Any, y: Any) -> Any:
        whole = equinox.combine(trained, fixed)

        def part(x: Any) -> Any:
            return module.apply_equinox_parts(whole, state, x)

        cut = x.reshape(parts, -1, 4)
        results, states = jax.vmap(part, axis_name="parts")(cut)
        error = ((results.reshape(-1) - y) ** 2).mean()
        return error, jax.tree.map(lambda x: x[0], states)

    return train(loss, trained, state, STEPS)[0]


def test_an_axis_of_equinox_is_inside_the_parts(tmp_path: Path) -> None:
    file = write(tmp_path / "run", WORKERS=2)
    compile(f"{file}:build_equinox_parts", tmp_path / "build")
    run_in_threads(tmp_path / "build", options(tmp_path, STEPS))
    got = read_losses(tmp_path / "history.jsonl")
    assert got == pytest.approx(plain_equinox(2), rel=1e-12)


@pytest.mark.slow
def test_a_run_resumes_on_one_worker_with_the_same_parts(tmp_path: Path) -> None:
    file = write(tmp_path / "run", WORKERS=2, OPTIMIZER=SERVERS)
    compile(f"{file}:build_parts", tmp_path / "build")
    saves = tmp_path / "checkpoints"
    half = Options(steps=STEPS // 2, checkpoint=saves, deadline=300.0)
    run_in_threads(tmp_path / "build", half)
    compile(f"{file}:build_parts", tmp_path / "other", nodes={"worker": 1})
    given = options(tmp_path, STEPS, resume=saves)
    outcome = run_in_threads(tmp_path / "other", given)
    check(plain_nnx(STEPS, 2), tmp_path, outcome, STEPS // 2)


def test_a_run_does_not_resume_with_another_number_of_parts(tmp_path: Path) -> None:
    file = write(tmp_path / "run", WORKERS=2, PARTS=None)
    compile(f"{file}:build_parts", tmp_path / "build")
    saves = tmp_path / "checkpoints"
    given = Options(steps=1, checkpoint=saves, deadline=300.0)
    run_in_threads(tmp_path / "build", given)
    file = write(tmp_path / "one", WORKERS=1, PARTS=None)
    compile(f"{file}:build_parts", tmp_path / "other")
    why = (
        "'net' computes each batch in 1 part, but the run of the checkpoint in 2 parts"
    )
    with pytest.raises(CheckpointError, match=why) as raised:
        run_in_threads(tmp_path / "other", options(tmp_path, STEPS, resume=saves))
    assert raised.value.hint == "pass parts=2 to placer.trace"


def test_one_process_computes_all_parts(tmp_path: Path) -> None:
    file = write(tmp_path / "run", WORKERS=2, PARTS=None)
    plan = compile(f"{file}:build_parts", tmp_path / "build", single_process=True)
    assert "2 parts of each batch of 'net'" in {each.what for each in plan.choices}
    outcome = run_in_threads(tmp_path / "build", options(tmp_path, STEPS))
    check(plain_nnx(STEPS, 2), tmp_path, outcome)


@pytest.mark.slow
def test_microbatches_compute_their_parts(tmp_path: Path) -> None:
    file = write(tmp_path / "run", WORKERS=2, PARTS=4, MICROBATCHES=2)
    compile(f"{file}:build_parts", tmp_path / "build")
    outcome = run_in_threads(tmp_path / "build", options(tmp_path, STEPS))
    check(plain_nnx(STEPS, 4), tmp_path, outcome)


def test_an_evaluation_by_rows_takes_any_batch(tmp_path: Path) -> None:
    file = write(tmp_path / "run", rows=17, PARTS=4, EVALUATED=6)
    compile(f"{file}:build_parts", tmp_path / "build")
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
        ({"WORKERS": 3, "BATCH": 6}, "build_parts", GraphError, "the 3 nodes of .* cannot compute the 2 parts"),
        ({"PARTS": 3}, "build_parts", GraphError, "a batch of 8 rows cannot be cut into the 3 equal parts of 'net'(.|\n)* use batch: 6 or batch: 9"),
        ({"EVALUATED": 7}, "build_contrast", GraphError, "of 7 rows of an evaluation cannot be cut into the 2(.|\n)* use data.eval.batch: 6 or"),
        ({"PARTS": 0}, "build_parts", SpecError, "parts must be a whole number"),
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
