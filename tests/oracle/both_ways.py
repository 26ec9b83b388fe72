"""A spec run as it is placed, run as one process, and run as a plain JAX program."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import plain
import yaml
from safetensors.numpy import load_file, save_file

from placer.compiler import compile
from placer.runtime.process import Options, run_in_threads

STEPS = 5


class _NoAnchors(yaml.SafeDumper):
    """A spec holds no anchor."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def run_build(
    spec: Path, out: Path, initial: Path, *, single_process: bool
) -> plain.Trace:
    """Compile and run a spec, from the parameters of a file."""
    compile(spec, out, single_process=single_process)
    history, saved = out.with_suffix(".jsonl"), out.with_suffix(".safetensors")
    result = run_in_threads(
        out,
        Options(
            steps=STEPS,
            history=history,
            save_params=saved,
            init_params=initial,
            deadline=60.0,
        ),
    )
    assert result.steps == STEPS
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    evaluations = {line["step"]: line["eval"] for line in lines if "eval" in line}
    assert result.eval == evaluations.get(STEPS, {})
    return plain.Trace(
        [line["metrics"] for line in lines], evaluations, load_file(saved)
    )


def run_three_ways(
    spec: dict[str, Any],
    rows: dict[str, dict[str, np.ndarray]],
    initial: dict[str, np.ndarray],
    folder: Path,
) -> dict[str, plain.Trace]:
    """A model run as placed, as one process and as plain JAX, by these names.

    `rows` are the columns of `train` and `eval`, which the spec reads from train.npz
    and eval.npz.
    """
    file, start = folder / "model.yaml", folder / "initial.safetensors"
    file.write_text(yaml.dump(spec, Dumper=_NoAnchors, sort_keys=False))
    for which, columns in rows.items():
        np.savez(folder / f"{which}.npz", **columns)
    save_file(initial, start)
    read: Any = yaml.safe_load(file.read_text())
    return {
        "plain": plain.run(read, rows["train"], rows["eval"], initial, STEPS),
        "placed": run_build(file, folder / "placed", start, single_process=False),
        "one process": run_build(file, folder / "one", start, single_process=True),
    }


def check_alike(traces: dict[str, plain.Trace]) -> None:
    """R1 between all three."""
    for one, other in combinations(traces, 2):
        check_same(traces[other], traces[one], f"{other} against {one}")


def check_same(found: plain.Trace, wanted: plain.Trace, how: str) -> None:
    """R1 in float64: metrics to 1e-9 relative, every element to 1e-7."""
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
