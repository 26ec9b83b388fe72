"""Exports a build, and runs what was exported in a process without placer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import placer
from support.spec_models import SPECS

RUN_EXPORTED = Path(__file__).with_name("run_exported.py")
TOLERANCE = {"float32": 1e-5, "float64": 1e-9}
"""The largest difference of two outputs, relative to the largest magnitude of all
elements of the output."""


def load_prepare(folder: Path) -> Callable[[Mapping[str, Any]], dict[str, np.ndarray]]:
    """Return the function `prepare` of an exported model."""
    module: dict[str, Any] = {"__name__": "prepare"}
    exec((folder / "prepare.py").read_text(), module)
    return module["prepare"]


def run_postprocess(
    folder: Path, outputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return what `postprocess` of an exported model makes of outputs."""
    module: dict[str, Any] = {"__name__": "postprocess"}
    exec((folder / "postprocess.py").read_text(), module)
    return module["postprocess"](outputs)


def run_exported(
    folder: Path, columns: Mapping[str, np.ndarray], into: Path
) -> dict[str, np.ndarray]:
    """Return what an exported model computes, in a process that has no placer."""
    np.savez(into / "columns.npz", **columns)
    outputs = into / "outputs.npz"
    command = [sys.executable, "-I", str(RUN_EXPORTED)]
    done = subprocess.run(
        [*command, str(folder), str(into / "columns.npz"), str(outputs)],
        capture_output=True,
        text=True,
        cwd=into,
    )
    assert done.returncode == 0, done.stderr
    with np.load(outputs) as opened:
        return dict(opened)


def check_exported(
    build: Path,
    params: Path,
    columns: Mapping[str, np.ndarray],
    wanted: Mapping[str, np.ndarray],
    precision: str,
    into: Path,
) -> None:
    """Export a build, and compare what model.py and the StableHLO file compute from
    these columns with `wanted`."""
    model = placer.export(build, into / "model", params=params)
    assert model.warnings == ()
    got = run_exported(model.folder, columns, into)
    assert got.keys() == {*wanted, *(f"model.stablehlo:{name}" for name in wanted)}
    for name, array in got.items():
        check_close(array, wanted[name.rpartition(":")[2]], precision, name)
    content = (model.folder / "model.stablehlo").read_bytes()
    for path in (str(into), str(SPECS.parent), "model.py", sys.prefix):
        assert path.encode() not in content


def check_close(
    array: np.ndarray, wanted: np.ndarray, precision: str, what: str
) -> None:
    """Check that an output is another one, to the tolerance of the precision."""
    assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape)
    bound = TOLERANCE[precision] * np.abs(wanted).max()
    np.testing.assert_allclose(array, wanted, rtol=0, atol=bound, err_msg=what)
