"""The columns of outputs that score classes."""

import jax
import ml_dtypes
import numpy as np
import pytest

from placer.runtime.prediction.class_columns import class_columns

NAMES = ("a", "b", "c")


def test_probabilities_are_the_softmax_of_logits():
    logits = np.array([[1, 3, 2], [-1e30, 0, -1e30], [5, 5, 0]], np.float32)
    got = class_columns(logits, "logits", NAMES, "head.")
    assert list(got) == ["head.class", *(f"head.probability.{n}" for n in NAMES)]
    assert got["head.class"].tolist() == ["b", "b", "a"]
    together = np.stack([got[f"head.probability.{n}"] for n in NAMES], axis=1)
    assert together.dtype == np.float32
    np.testing.assert_allclose(together, jax.nn.softmax(logits), rtol=1e-6)
    given = class_columns(together, "probabilities", NAMES, "head.")
    for name, column in got.items():
        np.testing.assert_array_equal(given[name], column)


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_one_logit_gives_the_probabilities_of_two_classes(shape):
    logits = np.array([-1e4, -1, 0, 2, 1e4], ml_dtypes.bfloat16).reshape(shape)
    got = class_columns(logits, "logit", ("no", "yes"))
    assert list(got) == ["class", "probability.no", "probability.yes"]
    assert got["class"].tolist() == ["no", "no", "no", "yes", "yes"]
    wanted = jax.nn.sigmoid(logits.astype(np.float32).reshape(5))
    np.testing.assert_allclose(got["probability.yes"], wanted, rtol=1e-6)
    np.testing.assert_allclose(got["probability.no"], 1 - wanted, atol=1e-7)
    given = class_columns(wanted, "probability", ("no", "yes"))
    np.testing.assert_array_equal(given["class"], got["class"])
    np.testing.assert_array_equal(given["probability.yes"], wanted)


def test_classes_without_names_are_numbers_and_nan_is_no_class():
    logits = np.array([[0, 1], [np.nan, 1], [np.inf, 1]])
    assert class_columns(logits, "logits")["class"].tolist() == [1, -1, 0]
    assert class_columns(logits, "logits", ("a", "b"))["class"].tolist() == [
        "b",
        "",
        "a",
    ]
    assert class_columns(logits[:, 0], "logit")["class"].tolist() == [0, -1, 1]
    empty = class_columns(logits[:0], "logits", ("a", "b"))
    assert [len(column) for column in empty.values()] == [0, 0, 0]
