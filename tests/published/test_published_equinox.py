"""Models of libraries on Equinox: a flow, a neural operator, a vision transformer, and a
residual network with statistics of batches in an `eqx.nn.State`."""

from pathlib import Path

import numpy as np
import pytest
from published import Published, check, train, train_plain

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


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("placement", ["servers", "all-reduce"])
def test_models_of_equinox_train_as_in_plain_jax(
    name: str, placement: str, tmp_path: Path
) -> None:
    model = MODELS[name]
    check(model, train(model, placement, tmp_path), train_plain(model, of_equinox))
