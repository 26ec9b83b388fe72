"""Models of libraries on Equinox: a flow, a neural operator, a vision transformer, and a
residual network with statistics of batches in an `eqx.nn.State`."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from published import Outcome, Published, check, check_uses, train, train_plain

pytest.importorskip("flowjax", reason="pip install '.[models]'")
pytest.importorskip("pdequinox", reason="pip install '.[models]'")
pytest.importorskip("equimo", reason="pip install '.[models]'")
pytest.importorskip("jaxonmodels", reason="pip install '.[models]'")
from other_libraries import of_equinox

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_float64")]
NORMAL = np.random.default_rng(0).normal
LABELS = np.random.default_rng(1).integers(0, 3, 24, np.int32)
MODELS = {
    "flow": Published("flowjax_net", {"x": NORMAL(size=(24, 4)).astype("f")}),
    "operator": Published(
        "fno_net",
        {name: NORMAL(size=(24, 1, 16)).astype("f") for name in ("before", "after")},
    ),
    "transformer": Published(
        "equimo_net",
        {"image": NORMAL(size=(24, 1, 8, 8)).astype("f"), "label": LABELS},
    ),
    "residual": Published(
        "jaxonmodels_net",
        {"image": NORMAL(size=(24, 3, 16, 16)).astype("f"), "label": LABELS},
        ("make", "state"),
        state="state",
        by_rows=False,
    ),
}

CASES = [(name, place) for name in MODELS for place in ("servers", "all-reduce")]
CASES += [("operator", "split"), ("transformer", "split")]


@pytest.mark.parametrize(("name", "placement"), CASES)
def test_models_of_equinox_train_as_in_plain_jax(
    name: str, placement: str, tmp_path: Path
) -> None:
    check(MODELS[name], train(MODELS[name], placement, tmp_path), expected(name))


@pytest.mark.parametrize("name", ["flow", "residual"])
def test_a_model_of_equinox_is_resumed_predicted_and_exported(
    name: str, tmp_path: Path
) -> None:
    check_uses(MODELS[name], expected(name), tmp_path)


@cache
def expected(name: str) -> Outcome:
    return train_plain(MODELS[name], of_equinox)
