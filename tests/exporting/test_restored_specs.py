"""The spec of each JAX library: the restored model computes what placer predicts.

Each test compiles, trains and predicts with a build, in threads.
"""

from __future__ import annotations

import sys
from types import ModuleType

import jax
import numpy as np
import pytest
from support.marks import slow_but
from support.spec_models import SPECS

import placer

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.uniform(size=(5, 8, 8, 1)).astype(np.float32)
NUMBERS = RANDOM.uniform(size=(5, 64)).astype(np.float32)
LABELS = RANDOM.integers(0, 2, 5)

CASES = {
    "linen_digits": ("flax", "logits", "apply", {"image": IMAGES}),
    "nnx_cancer": (
        "flax",
        "net.out0",
        "losses",
        {"x": NUMBERS[:, :30], "benign": LABELS},
    ),
    "equinox_digits": ("equinox", "logits", "apply", {"image": 16 * NUMBERS}),
    "haiku_diabetes": (
        "haiku",
        "net",
        "squares",
        {"x": NUMBERS[:, :10], "y": 90.0 * LABELS},
    ),
    "keras_digits": ("keras", "logits", "apply", {"image": IMAGES}),
}
"""For each spec: its package, the output, the traced function, and rows."""


@pytest.mark.parametrize("spec", slow_but(["linen_digits"], CASES))
def test_a_restored_model_computes_what_placer_predicts(spec, tmp_path, monkeypatch):
    package, output, function, rows = CASES[spec]
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    pytest.importorskip(package)
    build = tmp_path / "build"
    placer.compile(SPECS / f"{spec}.py:build", build, outputs=[output])
    result = placer.launch(build, in_process=True, steps=3)
    module = module_of(spec, monkeypatch)
    name, _, which = output.partition(".out")
    model = placer.restore(module.make(), result, name)
    with jax.enable_x64(False):
        computed = getattr(module, function)(model, *rows.values())
    wanted = placer.predict(
        build,
        rows,
        params=result.params,
        single_process=True,
        in_process=True,
        raw=True,
    )
    computed = computed[int(which)] if which else computed
    np.testing.assert_allclose(computed, wanted[output], rtol=2e-5, atol=2e-6)
    untrained = getattr(module, function)(module.make(), *rows.values())
    untrained = untrained[int(which)] if which else untrained
    if package != "keras":  # whose model is the same one
        assert abs(np.asarray(untrained) - wanted[output]).max() > 1e-4


def module_of(spec: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SPECS)
    monkeypatch.delitem(sys.modules, spec, raising=False)
    return __import__(spec)
