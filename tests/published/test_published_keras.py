"""Models of Keras: MobileNet with statistics of batches and dropout, BERT, and a DLRM."""

from pathlib import Path

import numpy as np
import pytest
from published import Outcome, Published, check, check_uses, train, train_plain

pytest.importorskip("keras_rs", reason="pip install '.[models]'")
pytest.importorskip("keras_hub", reason="pip install '.[models]'")
from other_libraries import of_keras

pytestmark = pytest.mark.slow
RNG = np.random.default_rng(0)
BOTH = {"models": ("make", "state"), "state": "state", "precision": "float32"}
BOTH |= {"tolerance": 1e-5}
MODELS = {
    "mobilenet": {
        "file": "mobilenet_net",
        "rows": {
            "image": RNG.normal(size=(24, 32, 32, 3)).astype("f"),
            "label": RNG.integers(0, 3, 24, np.int32),
        },
        "by_rows": False,
    },
    "bert": {
        "file": "keras_bert_net",
        "rows": {
            "tokens": RNG.integers(0, 50, (24, 8), np.int32),
            "mask": (np.arange(8) < RNG.integers(3, 9, (24, 1))).astype(np.int32),
            "label": RNG.integers(0, 3, 24, np.int32),
        },
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

CASES = [(name, place) for name in MODELS for place in ("servers", "all-reduce")]


@pytest.mark.parametrize(("name", "placement"), CASES)
def test_models_of_keras_train_as_in_plain_jax(
    name: str, placement: str, tmp_path: Path
) -> None:
    model, wanted = new_model(name)
    check(model, train(model, placement, tmp_path), wanted)


def test_a_model_of_keras_is_resumed_predicted_and_exported(tmp_path: Path) -> None:
    check_uses(*new_model("mobilenet"), tmp_path)


def new_model(name: str) -> tuple[Published, Outcome]:
    """Return a model that is made again, because `restore` changes it in place."""
    model = Published(**MODELS[name], **BOTH)
    return model, train_plain(model, of_keras)
