"""Models of Keras: MobileNetV2 with statistics of batches, and a DLRM with dropout."""

from pathlib import Path

import numpy as np
import pytest
from published import Published, check, train, train_plain

pytest.importorskip("keras_rs", reason="pip install '.[models]'")
from other_libraries import of_keras

pytestmark = pytest.mark.slow
RNG = np.random.default_rng(0)
BOTH = {"models": ("make", "state"), "state": "state", "precision": "float32"}
MODELS = {
    "mobilenet": {
        "file": "mobilenet_net",
        "rows": {
            "image": RNG.normal(size=(24, 32, 32, 3)).astype("f"),
            "label": RNG.integers(0, 3, 24, np.int32),
        },
        "by_rows": False,
    },
    "dlrm": {
        "file": "dlrm_net",
        "rows": {
            "dense": RNG.normal(size=(24, 4)).astype("f"),
            "ids": RNG.integers(0, 20, (24, 3), np.int32),
            "clicked": RNG.integers(0, 2, 24).astype("f"),
        },
    },
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("placement", ["servers", "all-reduce"])
def test_models_of_keras_train_as_in_plain_jax(
    name: str, placement: str, tmp_path: Path
) -> None:
    model = Published(**MODELS[name], **BOTH, tolerance=1e-5)
    wanted = train_plain(model, of_keras)
    check(model, train(model, placement, tmp_path), wanted)
