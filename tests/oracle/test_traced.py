"""R1 for traced functions: placed, in one process and as plain JAX."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from support.imported_files import import_file
from support.marks import slow_but

from placer.compiler.driver import compile
from placer.ops.functions.library_leaves import parameter_mask
from placer.ops.functions.paths import leaves_with_paths
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

pytestmark = pytest.mark.usefixtures("in_float64")

SOURCE = Path(__file__).parents[1] / "support" / "traced.py"
STEPS = 4
WORKERS = "{'nodes': {'worker': {'count': 2}, 'ps': {'count': 2}}}"
PLACEMENTS = {
    "two workers": {
        'FIRST, SECOND = "", ""': 'FIRST, SECOND = "/node:worker:0", "/node:worker:1"',
        '{"nodes": {"worker": {"count": 1}}}': WORKERS,
    },
    "two GPUs": {
        'FIRST, SECOND = "", ""': 'FIRST, SECOND = "/gpu:0-1", "/gpu:1"',
        '{"nodes": {"worker": {"count": 1}}}': (
            "{'nodes': {'worker': {'devices': {'gpu': 2}}}, 'emulate': True}"
        ),
    },
    "all workers": {
        '{"nodes": {"worker": {"count": 1}}}': f"{WORKERS} | {{'slicing': {{'min_block': 8}}}}",
        '"/node:worker:0/cpu"': '"/node:ps/cpu"',
    },
    "a pipeline": {
        'FIRST, SECOND = "", ""': 'FIRST, SECOND = "/node:worker:0", "/node:worker:1"',
        '{"nodes": {"worker": {"count": 1}}}': f"{WORKERS} | {{'microbatches': 4}}",
    },
    "recomputed": {
        'FIRST, SECOND = "", ""': 'FIRST, SECOND = "/node:worker:0", "/node:worker:1"',
        '{"nodes": {"worker": {"count": 1}}}': WORKERS,
        "with place_guard(AROUND):": "with place_guard(AROUND), placer.remat():",
    },
}
"""The lines of the model file that each placement replaces."""
IN_EVERY_RUN = [
    ("plain", "recomputed"),
    ("equinox", "a pipeline"),
    ("inner", "two workers"),
    ("spectral", "all workers"),
]
CASES = [
    (model, placement)
    for model in ("plain", "flax", "equinox", "inner", "spectral")
    for placement in PLACEMENTS
    # The penalty of `inner` depends on the whole batch.
    if model != "inner" or placement in ("two workers", "two GPUs")
    if model == "plain" or placement != "recomputed"
]


def write(folder: Path, placement: str) -> Path:
    text = SOURCE.read_text(encoding="utf-8")
    for old, new in PLACEMENTS[placement].items():
        assert old in text, old
        text = text.replace(old, new)
    (folder / "model.py").write_text(text)
    rng = np.random.default_rng(5)
    rows = {"x": rng.normal(size=(24, 4)), "y": rng.normal(size=24)}
    np.savez(folder / "rows.npz", **rows)
    return folder / "model.py"


def run(spec: str, out: Path, *, single_process: bool) -> tuple[list[Any], Any]:
    """Return the metrics per step and the final parameters."""
    graphs = []
    plan = compile(
        spec,
        out,
        single_process=single_process,
        after_pass=lambda _, graph: graphs.append(graph),
    )
    batch_rules = {op.attrs.get("batch", "whole") for op in graphs[0].of_kind("call")}
    # The function of `inner` contains a loss over all rows.
    assert ("rows" in batch_rules) == (not spec.endswith("inner"))
    history, saved = out.with_suffix(".jsonl"), out.with_suffix(".safetensors")
    options = Options(
        steps=STEPS,
        history=history,
        save_params=saved,
        deadline=300.0,
        emulate=plan.settings.emulate,
    )
    run_in_threads(out, options)
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    return [line["metrics"] for line in lines], load_file(saved)


def run_plain(file: Path, which: str) -> tuple[list[Any], Any]:
    """Train the function and model of the file with `jax.grad` and SGD."""
    module = import_file(file)
    fn, model = module.MODELS[which]
    model = model() if hasattr(model, "__code__") else model
    named = [
        (path, leaf, trained)
        for (path, leaf), trained in zip(
            leaves_with_paths(model), parameter_mask(model), strict=True
        )
    ]
    tree = jax.tree.structure(model)
    names = ["net." + "_".join(path) for path, _, trained in named if trained]

    def loss(values: list[Any], x: Any, y: Any) -> Any:
        remaining = iter(values)
        leaves = [next(remaining) if trained else leaf for _, leaf, trained in named]
        prediction, penalty = fn(jax.tree.unflatten(tree, leaves), x)
        error = ((prediction - y) ** 2).mean()
        return error + 0.1 * penalty, error

    values = [np.asarray(leaf, np.float64) for _, leaf, trained in named if trained]
    rows = np.load(file.parent / "rows.npz")
    history = []
    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    for number in range(STEPS):
        part = slice(number % 3 * 8, number % 3 * 8 + 8)
        (total, error), grads = step(values, rows["x"][part], rows["y"][part])
        history.append({"loss": float(total), "error": float(error)})
        values = [v - 0.05 * g for v, g in zip(values, grads, strict=True)]
    return history, dict(zip(names, map(np.asarray, values), strict=True))


@pytest.mark.parametrize(("model", "placement"), slow_but(IN_EVERY_RUN, CASES))
def test_a_placement_does_not_change_the_result(
    model: str, placement: str, tmp_path: Path
) -> None:
    file = write(tmp_path, placement)
    spec = f"{file}:build_{model}"
    wanted, parameters = run_plain(file, model)
    for name, alone in (("placed", False), ("one", True)):
        history, trained = run(spec, tmp_path / name, single_process=alone)
        assert len(history) == STEPS
        for got, expected in zip(history, wanted, strict=True):
            assert got == pytest.approx(expected, rel=1e-9), name
        assert trained.keys() == parameters.keys()
        for key, values in parameters.items():
            np.testing.assert_allclose(trained[key], values, rtol=0, atol=1e-7)
