"""Statistics of metrics: added up over parts and batches, what scikit-learn gives."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics
from support.op_cases import Use

from placer import ops
from placer.config.metrics import FINALS
from placer.errors import OpError
from placer.runtime.metrics.finals import final

RNG = np.random.default_rng(0)
ROWS = 300
LOGITS = RNG.normal(size=(ROWS, 5)).astype(np.float32)
CLASS = RNG.integers(0, 5, ROWS).astype(np.int32)
CHANCE = RNG.uniform(size=ROWS).astype(np.float32)
LOGIT = np.log(CHANCE / (1 - CHANCE))
CLICK = (RNG.uniform(size=ROWS) < CHANCE).astype(np.int32)
TARGET = RNG.normal(size=(ROWS, 2)).astype(np.float32)
GUESS = TARGET + RNG.normal(size=(ROWS, 2)).astype(np.float32)
BEST = LOGITS.argmax(1)
NAN = float("nan")

SCORES = [
    ("accuracy", (LOGITS, CLASS), {}, metrics.accuracy_score(CLASS, BEST)),
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
        (kind, operands, attrs, score(CLICK, attrs.get("threshold", 0.5) < CHANCE))
        for kind, score in (
            ("precision", metrics.precision_score),
            ("recall", metrics.recall_score),
            ("f1", metrics.f1_score),
        )
        for operands, attrs in (
            ((CHANCE, CLICK), {}),
            ((CHANCE, CLICK.astype(bool)), {"threshold": 0.8}),
            ((CHANCE, CLICK.astype(np.float32)), {"threshold": 0.2}),
            ((LOGIT, CLICK), {"logits": True}),
            ((LOGIT, CLICK), {"logits": True, "threshold": 0.8}),
        )
    ),
    *(
        (kind, (LOGITS, CLASS), {"class_id": 3}, score(CLASS == 3, BEST == 3))
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
        (GUESS, TARGET),
        metrics.mean_absolute_error(TARGET, GUESS),
    ),
    (
        "root_mean_squared_error",
        (GUESS, TARGET),
        metrics.root_mean_squared_error(TARGET.ravel(), GUESS.ravel()),
    ),
    ("mean", (GUESS,), GUESS.mean(dtype=np.float64)),
]


def statistic(kind, operands, attrs=None, cuts=(0, 120, 121, 121, ROWS)):
    """The sum of what the parts between the cuts give."""
    program = jax.jit(lambda *xs: getattr(ops, kind)(*xs, **(attrs or {})))
    parts = [
        np.asarray(program(*(x[low:high] for x in operands)))
        for low, high in pairwise(cuts)
    ]
    wide = np.float64 if parts[0].dtype.kind == "f" else np.int64
    return sum(part.astype(wide) for part in parts)


def number(kind, operands, attrs=None, **how):
    return final(ops.find(kind).final, statistic(kind, operands, attrs, **how))


@pytest.mark.parametrize(("kind", "operands", "attrs", "wanted"), SCORES)
def test_counts_are_scikit_learn_s_to_the_last_bit_however_rows_are_dealt_out(
    kind, operands, attrs, wanted
):
    assert number(kind, operands, attrs) == pytest.approx(wanted, rel=1e-15)
    whole = statistic(kind, operands, attrs, cuts=(0, ROWS))
    np.testing.assert_array_equal(statistic(kind, operands, attrs), whole)


@pytest.mark.parametrize(("kind", "operands", "wanted"), SUMS)
def test_sums_are_scikit_learn_s(kind, operands, wanted):
    assert number(kind, operands) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("bins", [2, 11, 4096])
def test_auc_is_exact_where_predictions_lie_on_its_bins(bins):
    grid = (np.round(CHANCE * (bins - 1)) / (bins - 1)).astype(np.float32)
    wanted = metrics.roc_auc_score(CLICK, grid)
    assert number("auc", (grid, CLICK), {"bins": bins}) == pytest.approx(
        wanted, rel=1e-12
    )


@pytest.mark.parametrize("label", [CLICK, CLICK.astype(bool), CLICK.astype(np.float32)])
@pytest.mark.parametrize("logits", [False, True])
def test_auc_is_scikit_learn_s_within_a_bin(logits, label):
    operands = (LOGIT if logits else CHANCE, label)
    found = number("auc", operands, {"logits": logits})
    assert abs(found - metrics.roc_auc_score(CLICK, CHANCE)) < 1 / 4096


def test_auc_of_equal_predictions_is_a_half_and_of_sorted_ones_1():
    flat = np.full(ROWS, 0.3, np.float32)
    assert number("auc", (flat, CLICK)) == 0.5
    assert number("auc", (CLICK.astype(np.float32), CLICK)) == 1.0
    assert number("auc", (1 - CLICK.astype(np.float32), CLICK)) == 0.0


@pytest.mark.parametrize(
    ("kind", "operands", "attrs"),
    [
        ("accuracy", (LOGITS, CLASS), {}),
        ("top_k_accuracy", (LOGITS, CLASS), {"k": 5}),
        ("precision", (CHANCE, CLICK), {}),
        ("recall", (LOGIT, CLICK), {"logits": True}),
        ("f1", (LOGITS, CLASS), {"class_id": 0}),
        ("auc", (CHANCE, CLICK), {}),
        ("auc", (LOGIT, CLICK), {"logits": True}),
        ("mean_absolute_error", (GUESS, TARGET), {}),
        ("root_mean_squared_error", (GUESS, TARGET), {}),
        ("mean", (GUESS,), {}),
    ],
)
def test_one_nan_among_all_rows_is_not_hidden(kind, operands, attrs):
    first, *rest = operands
    assert number(kind, operands, attrs) == number(kind, operands, attrs)
    spoilt = first.copy()
    spoilt.flat[7] = np.nan
    assert np.isnan(number(kind, (spoilt, *rest), attrs))


@pytest.mark.parametrize("kind", ["precision", "recall", "f1", "auc"])
def test_nor_is_a_nan_label(kind):
    label = CLICK.astype(np.float32)
    label[7] = np.nan
    assert np.isnan(number(kind, (CHANCE, label)))


@pytest.mark.parametrize("outside", [-1e-3, 1.001, np.inf])
def test_a_prediction_that_is_no_probability_makes_auc_nan(outside):
    chance = CHANCE.copy()
    chance[7] = outside
    assert np.isnan(number("auc", (chance, CLICK)))
    assert not np.isnan(number("auc", (chance, CLICK), {"logits": True}))


@pytest.mark.parametrize("which", [0, 1])
def test_auc_of_one_class_is_not_defined(which):
    assert np.isnan(number("auc", (CHANCE, np.full(ROWS, which))))


def test_a_share_of_nothing_is_not_defined():
    never, none = np.zeros(ROWS, np.float32), np.zeros(ROWS, np.int32)
    assert np.isnan(number("precision", (never, CLICK)))
    assert number("recall", (never, CLICK)) == 0
    assert np.isnan(number("recall", (CHANCE, none)))
    assert number("f1", (never, CLICK)) == 0
    assert np.isnan(number("f1", (never, none)))
    assert np.isnan(number("mean", (GUESS,), cuts=(0, 0)))


def test_a_prediction_at_the_threshold_is_negative():
    at = np.float32([0.25, 0.25, 0.250001])
    found = ops.precision(at, np.array([1, 1, 1]), threshold=0.25)
    assert found.tolist() == [1, 1, 0]
    found = ops.recall(jnp.zeros(2), jnp.ones(2), logits=True)
    assert found.tolist() == [0, 2, 0]


def test_of_equal_logits_the_first_class_comes_first():
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
def test_a_label_that_is_no_class_is_never_right(label):
    labels = jnp.full(2, label, jnp.int8)
    assert ops.accuracy(jnp.ones((2, 3)), labels).tolist() == [0, 2, 0]
    found = ops.top_k_accuracy(jnp.ones((2, 3)), labels, k=9)
    assert found.tolist() == [0, 2, 0]


def test_narrow_labels_are_no_other_classes():
    """256 is 0 as an uint8."""
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
    found = ops.mean_absolute_error(ones, 0 * ones)
    assert found.tolist() == [1000, 1000]


def test_every_final_is_that_of_some_metric_but_that_of_plain_numbers():
    used = {ops.find(kind).final for kind in ops.kinds()}
    assert used - {None} == set(FINALS) - {"value"}
    assert final("value", np.float32(0.5)) == 0.5


REFUSED = [
    (
        Use("top_k_accuracy", ("float32[batch, 3]", "int32[batch]"), {"k": 0}),
        "top_k_accuracy needs k from 1, not 0",
        "k",
    ),
    (
        Use("auc", ("float32[batch]", "int32[batch]"), {"bins": 1}),
        "auc needs 2 to 1,048,576 bins, not 1",
        "bins",
    ),
    (
        Use("recall", ("float32[batch]", "int32[batch]"), {"threshold": 1.0}),
        "recall needs a threshold between 0 and 1, not 1.0",
        "threshold",
    ),
    (
        Use("f1", ("float32[batch, 3]", "int32[batch]"), {"class_id": 3}),
        "f1 has class_id 3, 'prediction' has 3 classes",
        "class_id",
    ),
    (
        Use(
            "f1",
            ("float32[batch, 3]", "int32[batch]"),
            {"class_id": 1, "threshold": 0.4},
        ),
        "f1 with class_id takes the largest logit: it has neither threshold nor logits",
        "class_id",
    ),
    (
        Use("precision", ("float32[batch, 3]", "int32[batch]")),
        "precision needs operands of one shape, 'prediction' is float32[batch, 3],"
        " 'label' is int32[batch]",
        1,
    ),
    (
        Use("auc", ("int32[batch]", "int32[batch]")),
        "auc needs a float operand as 'prediction', not int32[batch]",
        0,
    ),
    (
        Use("root_mean_squared_error", ("float32[batch]", "float32[batch, 1]")),
        "root_mean_squared_error needs operands of one shape, 'prediction' is"
        " float32[batch], 'target' is float32[batch, 1]",
        1,
    ),
    (
        Use("mean", ("int32[batch]",)),
        "mean needs a float operand as 'x', not int32[batch]",
        0,
    ),
]


@pytest.mark.parametrize(("use", "message", "at"), REFUSED, ids=lambda part: str(part))
def test_what_does_not_fit_is_refused(use, message, at):
    with pytest.raises(OpError) as caught:
        use.declaration.infer(use.types, use.full)
    assert caught.value.message == message
    assert at in (caught.value.operand, caught.value.attr)
