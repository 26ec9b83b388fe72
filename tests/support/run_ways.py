"""A spec run as it is placed, run as one process, and run as a plain JAX program."""

from __future__ import annotations

import json
import math
import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import load_file, save_file

from placer.compiler import compile
from placer.runtime.run.process import Options, run_in_threads
from support import called
from support.plain import step as plain

STEPS = 5
Rows = dict[str, dict[str, np.ndarray]]


class _NoAnchors(yaml.SafeDumper):
    """A spec holds no anchor."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def write(spec: dict[str, Any], rows: Rows, folder: Path) -> Path:
    """The file of a spec, beside it what it calls and reads: `rows` are the columns of
    train.npz and eval.npz."""
    file = folder / "model.yaml"
    file.write_text(yaml.dump(spec, Dumper=_NoAnchors, sort_keys=False))
    shutil.copy(called.__file__, folder)
    for which, columns in rows.items():
        np.savez(folder / f"{which}.npz", **columns)
    return file


def run_plain(
    file: Path, rows: Rows, initial: dict[str, np.ndarray], steps: int = STEPS
) -> plain.Trace:
    """The plain JAX program of a spec's file."""
    read: Any = yaml.safe_load(file.read_text())
    return plain.run(read, rows["train"], rows["eval"], initial, steps, file.parent)


def run_build(
    spec: Path,
    out: Path,
    initial: dict[str, np.ndarray],
    *,
    single_process: bool,
    steps: int = STEPS,
) -> plain.Trace:
    """Compile and run a spec, from these values of its parameters."""
    compile(spec, out, single_process=single_process)
    start, saved = out.with_suffix(".initial"), out.with_suffix(".safetensors")
    history = out.with_suffix(".jsonl")
    save_file(initial, start)
    result = run_in_threads(
        out,
        Options(
            steps=steps,
            history=history,
            save_params=saved,
            init_params=start,
            deadline=300.0,
        ),
    )
    assert result.steps == steps
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    evaluations = {
        line["step"]: _numbers(line["eval"]) for line in lines if "eval" in line
    }
    np.testing.assert_equal(result.eval, evaluations.get(steps, {}))
    return plain.Trace(
        [_numbers(line["metrics"]) for line in lines], evaluations, load_file(saved)
    )


def _numbers(metrics: dict[str, float | None]) -> dict[str, float]:
    """A metric that is not defined is null in JSON."""
    return {n: math.nan if v is None else v for n, v in metrics.items()}


def run_three_ways(
    spec: dict[str, Any],
    rows: Rows,
    initial: dict[str, np.ndarray],
    folder: Path,
) -> dict[str, plain.Trace]:
    """A model run as placed, as one process and as plain JAX, by these names."""
    file = write(spec, rows, folder)
    return {
        "plain": run_plain(file, rows, initial),
        "placed": run_build(file, folder / "placed", initial, single_process=False),
        "one process": run_build(file, folder / "one", initial, single_process=True),
    }


def check_alike(traces: dict[str, plain.Trace]) -> None:
    """R1 between all three."""
    for one, other in combinations(traces, 2):
        check_same(traces[other], traces[one], f"{other} against {one}")


def check_same(found: plain.Trace, wanted: plain.Trace, how: str) -> None:
    """R1 in float64: metrics to 1e-9 relative, every element to 1e-7."""
    assert found.parameters.keys() == wanted.parameters.keys(), how
    for name, values in wanted.parameters.items():
        np.testing.assert_allclose(
            found.parameters[name], values, rtol=0, atol=1e-7, err_msg=f"{how}: {name}"
        )
    for step, (got, expected) in enumerate(
        zip(found.history, wanted.history, strict=True), 1
    ):
        _check_metrics(got, expected, f"{how}: step {step}")
    assert found.evaluations.keys() == wanted.evaluations.keys(), how
    for step, expected in wanted.evaluations.items():
        where = f"{how}: evaluation after step {step}"
        _check_metrics(found.evaluations[step], expected, where)


def _check_metrics(got: dict[str, float], wanted: dict[str, float], at: str) -> None:
    assert list(got) == list(wanted), at
    for name, value in wanted.items():
        np.testing.assert_allclose(
            got[name], value, rtol=1e-9, atol=1e-12, err_msg=f"{at}: {name}"
        )
