"""Statistics of metrics, summed over parts of the rows, compared with scikit-learn."""

from itertools import pairwise

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics
from support import compiled_ops as ops

from placer.plan.settings.training.metrics import FINALIZERS
from placer.runtime.metrics.finalizers import finalize

RNG = np.random.default_rng(0)
ROWS = 300
LOGITS = RNG.normal(size=(ROWS, 5)).astype(np.float32)
CLASS = RNG.integers(0, 5, ROWS).astype(np.int32)
PROBABILITY = RNG.uniform(size=ROWS).astype(np.float32)
LOGIT = np.log(PROBABILITY / (1 - PROBABILITY))
POSITIVE = (RNG.uniform(size=ROWS) < PROBABILITY).astype(np.int32)
TARGET = RNG.normal(size=(ROWS, 2)).astype(np.float32)
PREDICTION = TARGET + RNG.normal(size=(ROWS, 2)).astype(np.float32)
PREDICTED_CLASS = LOGITS.argmax(1)
NAN = float("nan")

SCORES = [
    ("accuracy", (LOGITS, CLASS), {}, metrics.accuracy_score(CLASS, PREDICTED_CLASS)),
    *(
        (
            "top_k_accuracy",
            (LOGITS, CLASS),
            {"k": k},
            metrics.top_k_accuracy_score(CLASS, LOGITS, k=k),
        )
        for k in (1, 2, 4)
    ),
    *(
        (
            kind,
            operands,
            attrs,
            score(POSITIVE, attrs.get("threshold", 0.5) < PROBABILITY),
        )
        for kind, score in (
            ("precision", metrics.precision_score),
            ("recall", metrics.recall_score),
            ("f1", metrics.f1_score),
        )
        for operands, attrs in (
            ((PROBABILITY, POSITIVE), {}),
            ((PROBABILITY, POSITIVE.astype(bool)), {"threshold": 0.8}),
            ((PROBABILITY, POSITIVE.astype(np.float32)), {"threshold": 0.2}),
            ((LOGIT, POSITIVE), {"logits": True}),
            ((LOGIT, POSITIVE), {"logits": True, "threshold": 0.8}),
        )
    ),
    *(
        (
            kind,
            (LOGITS, CLASS),
            {"class_id": 3},
            score(CLASS == 3, PREDICTED_CLASS == 3),
        )
        for kind, score in (
            ("precision", metrics.precision_score),
            ("recall", metrics.recall_score),
            ("f1", metrics.f1_score),
        )
    ),
]
SUMS = [
    (
        "mean_absolute_error",
        (PREDICTION, TARGET),
        metrics.mean_absolute_error(TARGET, PREDICTION),
    ),
    (
        "root_mean_squared_error",
        (PREDICTION, TARGET),
        metrics.root_mean_squared_error(TARGET.ravel(), PREDICTION.ravel()),
    ),
    ("mean", (PREDICTION,), PREDICTION.mean(dtype=np.float64)),
]


def statistic(kind, operands, attrs=None, cuts=(0, 120, 121, 121, ROWS)):
    """Return the sum of the statistics of the parts of the rows between the cuts."""
    function = getattr(ops, kind)
    parts = [
        np.asarray(function(*(x[low:high] for x in operands), **(attrs or {})))
        for low, high in pairwise(cuts)
    ]
    wide = np.float64 if parts[0].dtype.kind == "f" else np.int64
    return sum(part.astype(wide) for part in parts)


def number(kind, operands, attrs=None, **kwargs):
    return finalize(
        ops.find(kind).finalizer, statistic(kind, operands, attrs, **kwargs)
    )


@pytest.mark.parametrize(("kind", "operands", "attrs", "expected"), SCORES)
def test_counts_equal_those_of_scikit_learn_for_any_distribution_of_rows(
    kind, operands, attrs, expected
):
    assert number(kind, operands, attrs) == pytest.approx(expected, rel=1e-15)
    whole = statistic(kind, operands, attrs, cuts=(0, ROWS))
    np.testing.assert_array_equal(statistic(kind, operands, attrs), whole)


@pytest.mark.parametrize(("kind", "operands", "expected"), SUMS)
def test_means_equal_those_of_scikit_learn(kind, operands, expected):
    assert number(kind, operands) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("bins", [2, 11, 4096])
def test_auc_is_exact_for_predictions_on_its_bins(bins):
    grid = (np.round(PROBABILITY * (bins - 1)) / (bins - 1)).astype(np.float32)
    expected = metrics.roc_auc_score(POSITIVE, grid)
    assert number("auc", (grid, POSITIVE), {"bins": bins}) == pytest.approx(
        expected, rel=1e-12
    )


@pytest.mark.parametrize(
    "label", [POSITIVE, POSITIVE.astype(bool), POSITIVE.astype(np.float32)]
)
@pytest.mark.parametrize("logits", [False, True])
def test_auc_equals_that_of_scikit_learn_within_a_bin(logits, label):
    operands = (LOGIT if logits else PROBABILITY, label)
    actual = number("auc", operands, {"logits": logits})
    assert abs(actual - metrics.roc_auc_score(POSITIVE, PROBABILITY)) < 1 / 4096


def test_auc_of_equal_predictions_is_a_half_and_of_sorted_ones_1():
    flat = np.full(ROWS, 0.3, np.float32)
    assert number("auc", (flat, POSITIVE)) == 0.5
    assert number("auc", (POSITIVE.astype(np.float32), POSITIVE)) == 1.0
    assert number("auc", (1 - POSITIVE.astype(np.float32), POSITIVE)) == 0.0


@pytest.mark.parametrize(
    ("kind", "operands", "attrs"),
    [
        ("accuracy", (LOGITS, CLASS), {}),
        ("top_k_accuracy", (LOGITS, CLASS), {"k": 5}),
        ("precision", (PROBABILITY, POSITIVE), {}),
        ("recall", (LOGIT, POSITIVE), {"logits": True}),
        ("f1", (LOGITS, CLASS), {"class_id": 0}),
        ("auc", (PROBABILITY, POSITIVE), {}),
        ("auc", (LOGIT, POSITIVE), {"logits": True}),
        ("mean_absolute_error", (PREDICTION, TARGET), {}),
        ("root_mean_squared_error", (PREDICTION, TARGET), {}),
        ("mean", (PREDICTION,), {}),
    ],
)
def test_a_single_nan_makes_the_metric_nan(kind, operands, attrs):
    first, *rest = operands
    assert number(kind, operands, attrs) == number(kind, operands, attrs)
    spoilt = first.copy()
    spoilt.flat[7] = np.nan
    assert np.isnan(number(kind, (spoilt, *rest), attrs))


@pytest.mark.parametrize("kind", ["precision", "recall", "f1", "auc"])
def test_a_nan_label_makes_the_metric_nan(kind):
    label = POSITIVE.astype(np.float32)
    label[7] = np.nan
    assert np.isnan(number(kind, (PROBABILITY, label)))


@pytest.mark.parametrize("outside", [-1e-3, 1.001, np.inf])
def test_a_prediction_outside_0_to_1_makes_auc_nan(outside):
    chance = PROBABILITY.copy()
    chance[7] = outside
    assert np.isnan(number("auc", (chance, POSITIVE)))
    assert not np.isnan(number("auc", (chance, POSITIVE), {"logits": True}))


@pytest.mark.parametrize("which", [0, 1])
def test_auc_of_one_class_is_nan(which):
    assert np.isnan(number("auc", (PROBABILITY, np.full(ROWS, which))))


def test_a_ratio_of_nothing_is_nan():
    never, none = np.zeros(ROWS, np.float32), np.zeros(ROWS, np.int32)
    assert np.isnan(number("precision", (never, POSITIVE)))
    assert number("recall", (never, POSITIVE)) == 0
    assert np.isnan(number("recall", (PROBABILITY, none)))
    assert number("f1", (never, POSITIVE)) == 0
    assert np.isnan(number("f1", (never, none)))
    assert np.isnan(number("mean", (PREDICTION,), cuts=(0, 0)))


def test_a_prediction_at_the_threshold_is_negative():
    at = np.float32([0.25, 0.25, 0.250001])
    actual = ops.precision(at, np.array([1, 1, 1]), threshold=0.25)
    assert actual.tolist() == [1, 1, 0]
    actual = ops.recall(jnp.zeros(2), jnp.ones(2), logits=True)
    assert actual.tolist() == [0, 2, 0]


def test_of_equal_logits_the_first_counts_as_the_largest():
    equal = jnp.zeros((3, 3))
    label = jnp.array([0, 1, 2])
    assert ops.accuracy(equal, label).tolist() == [1, 3, 0]
    for k in (1, 2, 3):
        assert ops.top_k_accuracy(equal, label, k=k).tolist() == [k, 3, 0]
    assert ops.precision(equal, label, class_id=0).tolist() == [1, 3, 0]
    few = RNG.integers(0, 2, (ROWS, 5)).astype(np.float32)
    top_1 = ops.top_k_accuracy(few, CLASS, k=1)
    assert top_1.tolist() == ops.accuracy(few, CLASS).tolist()


@pytest.mark.parametrize("label", [-1, 3, 127])
def test_an_invalid_label_is_never_right(label):
    labels = jnp.full(2, label, jnp.int8)
    assert ops.accuracy(jnp.ones((2, 3)), labels).tolist() == [0, 2, 0]
    actual = ops.top_k_accuracy(jnp.ones((2, 3)), labels, k=9)
    assert actual.tolist() == [0, 2, 0]


def test_narrow_labels_do_not_match_other_classes():
    """256 converted to uint8 is 0."""
    logits = jnp.zeros((1, 300)).at[0, 256].set(1.0)
    label = jnp.zeros(1, jnp.uint8)
    assert ops.accuracy(logits, label).tolist() == [0, 1, 0]
    assert ops.top_k_accuracy(logits, label, k=1).tolist() == [0, 1, 0]
    assert ops.top_k_accuracy(logits, label, k=2).tolist() == [1, 1, 0]
    assert ops.recall(logits, label, class_id=256).tolist() == [0, 0, 0]


def test_narrow_floats_are_summed_in_float32():
    ones = jnp.ones(1000, jnp.bfloat16)
    assert ops.mean(ones).tolist() == [1000, 1000]
    assert ops.mean(ones).dtype == jnp.float32
    actual = ops.mean_absolute_error(ones, 0 * ones)
    assert actual.tolist() == [1000, 1000]


def test_each_finalizer_belongs_to_a_metric_except_value():
    used = {ops.find(kind).finalizer for kind in ops.kinds()}
    assert used - {None} == set(FINALIZERS) - {"value"}
    assert finalize("value", np.float32(0.5)) == 0.5
