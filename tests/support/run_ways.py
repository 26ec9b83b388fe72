"""Runs a spec in three ways: as placed, as one process, and as a plain JAX program."""

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

from placer.compiler.driver import compile
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads
from support import called
from support.plain import step as plain

STEPS = 5
Rows = dict[str, dict[str, np.ndarray]]


class _DumperWithoutAnchors(yaml.SafeDumper):
    """Writes no anchors, which specs do not allow."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def write_spec(spec: dict[str, Any], rows: Rows, folder: Path) -> Path:
    """Write a spec, the modules that it calls, and `rows` as train.npz and eval.npz."""
    file = folder / "model.yaml"
    file.write_text(yaml.dump(spec, Dumper=_DumperWithoutAnchors, sort_keys=False))
    shutil.copy(called.__file__, folder)
    for which, columns in rows.items():
        np.savez(folder / f"{which}.npz", **columns)
    return file


def run_plain(
    file: Path, rows: Rows, initial: dict[str, np.ndarray], steps: int = STEPS
) -> plain.Trace:
    """Run a spec file as a plain JAX program."""
    spec: Any = yaml.safe_load(file.read_text())
    return plain.run(spec, rows["train"], rows["eval"], initial, steps, file.parent)


def run_build(
    spec: Path,
    out: Path,
    initial: dict[str, np.ndarray],
    *,
    single_process: bool,
    steps: int = STEPS,
) -> plain.Trace:
    """Compile and run a spec from these initial parameters."""
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
    """Return the metrics with NaN for null, which JSON has instead."""
    return {n: math.nan if v is None else v for n, v in metrics.items()}


def run_three_ways(
    spec: dict[str, Any],
    rows: Rows,
    initial: dict[str, np.ndarray],
    folder: Path,
) -> dict[str, plain.Trace]:
    """Run a model as placed, as one process and as plain JAX; return traces by name."""
    file = write_spec(spec, rows, folder)
    return {
        "plain": run_plain(file, rows, initial),
        "placed": run_build(file, folder / "placed", initial, single_process=False),
        "one process": run_build(file, folder / "one", initial, single_process=True),
    }


def check_all_same(traces: dict[str, plain.Trace]) -> None:
    """Check that all traces are the same (R1 of docs/about/architecture.md)."""
    for one, other in combinations(traces, 2):
        check_same(traces[other], traces[one], f"{other} against {one}")


def check_same(actual: plain.Trace, reference: plain.Trace, how: str) -> None:
    """Check that two traces in float64 are the same.

    The tolerance is 1e-9 relative for metrics, 1e-7 absolute for parameter elements.
    """
    assert actual.parameters.keys() == reference.parameters.keys(), how
    for name, values in reference.parameters.items():
        np.testing.assert_allclose(
            actual.parameters[name], values, rtol=0, atol=1e-7, err_msg=f"{how}: {name}"
        )
    for step, (got, expected) in enumerate(
        zip(actual.history, reference.history, strict=True), 1
    ):
        _check_metrics(got, expected, f"{how}: step {step}")
    assert actual.evaluations.keys() == reference.evaluations.keys(), how
    for step, expected in reference.evaluations.items():
        where = f"{how}: evaluation after step {step}"
        _check_metrics(actual.evaluations[step], expected, where)


def _check_metrics(got: dict[str, float], expected: dict[str, float], at: str) -> None:
    assert list(got) == list(expected), at
    for name, value in expected.items():
        np.testing.assert_allclose(
            got[name], value, rtol=1e-9, atol=1e-12, err_msg=f"{at}: {name}"
        )
