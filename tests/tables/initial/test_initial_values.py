"""Initial values: the same bits for slices and the whole, and their distributions."""

import hashlib
import re

import jax
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from support.initial import compute_values

from placer.errors import PlacerError
from placer.plan.settings.training import initializers
from placer.plan.settings.training.initializers import fan_in_out, read_init

RANDOM = [
    "uniform",
    "normal",
    "xavier_uniform",
    "xavier_normal",
    "he_uniform",
    "lecun_normal",
    "truncated_normal",
    {"uniform": [-2.0, 3.0]},
    {"normal": 0.5},
    {"normal": {"mean": 1.0, "std": 0.02}},
    {"truncated_normal": {"std": 3.0}},
    {"variance_scaling": {}},
]


def whole(init, shape, *, seed=0, name="h1.w", dtype="float32"):
    n = int(np.prod(shape))
    return compute_values(
        init, seed=seed, name=name, shape=shape, start=0, stop=n, dtype=dtype
    ).reshape(shape)


@settings(derandomize=True, deadline=None, max_examples=120)
@given(st.data())
def test_a_slice_has_the_bits_of_the_whole(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3)))
    init = data.draw(st.sampled_from(RANDOM))
    n = int(np.prod(shape))
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, n))
    piece = compute_values(
        init, seed=3, name="w", shape=shape, start=start, stop=stop, dtype="float32"
    )
    flat = whole(init, shape, seed=3, name="w").ravel()
    np.testing.assert_array_equal(piece, flat[start:stop])


@pytest.mark.parametrize("shape", [(3, 40_001), (40_001, 3), (70_000,), (2, 2, 30_001)])
def test_slices_of_a_large_parameter_agree_across_chunks(shape):
    flat = whole("normal", shape).ravel()
    for start, stop in [(0, 1), (1, 32_769), (32_767, 65_539), (33_333, 70_000)]:
        piece = compute_values(
            "normal",
            seed=0,
            name="h1.w",
            shape=shape,
            start=start,
            stop=stop,
            dtype="float32",
        )
        np.testing.assert_array_equal(piece, flat[start:stop])


def test_a_row_does_not_depend_on_how_many_rows_there_are():
    small, large = whole("uniform", (5, 7)), whole("uniform", (9, 7))
    np.testing.assert_array_equal(small, large[:5])


def test_rows_names_and_seeds_differ():
    table = whole("normal", (4, 6))
    assert len(np.unique(table)) == table.size
    assert not np.array_equal(table, whole("normal", (4, 6), name="h2.w"))
    assert not np.array_equal(table, whole("normal", (4, 6), seed=1))


def test_leading_indices_beyond_32_bits_are_distinct_rows():
    shape, row = (2**40, 4), 2**33 + 5

    def of(index):
        start = index * 4
        return compute_values(
            "uniform",
            seed=0,
            name="t",
            shape=shape,
            start=start,
            stop=start + 4,
            dtype="float64",
        )

    assert not np.array_equal(of(row), of(5))
    assert not np.array_equal(of(row), of(row + 1))


@pytest.mark.parametrize("init", RANDOM)
def test_float32_is_float64_rounded(init):
    narrow, wide = (whole(init, (30, 11), dtype=d) for d in ("float32", "float64"))
    assert wide.dtype == np.float64
    np.testing.assert_array_equal(narrow, wide.astype(np.float32))


def test_uniform_values_never_change():
    # Repeated runs rely on these bits: no release changes them.
    first = whole("uniform", (2, 3), seed=0, name="h1.w", dtype="float64")
    np.testing.assert_array_equal(first, KNOWN)


KNOWN = [
    [-0.04571866501355544, -0.00043511652620509267, 0.004450024978723377],
    [-0.020511313586030158, 0.0036290824995376184, -0.030995457188691945],
]


def test_other_random_values_never_change_except_for_rounding():
    # log, sin and cos differ in the last bit from one machine to another.
    for init, expected in DRAWN.items():
        first = whole(init, (2, 2), dtype="float64").ravel()
        np.testing.assert_allclose(first, expected, rtol=1e-12)


DRAWN = {
    "he_normal": [
        -2.5094026443947457,
        0.06862210228027954,
        -1.5223423573137227,
        -0.35327151358896836,
    ],
    "truncated_normal": [
        -0.07625564780722571,
        -0.0005205340873246466,
        -0.02561513814420606,
        0.004346897482958713,
    ],
    "orthogonal": [
        -0.9996263079594948,
        0.02733577208108815,
        -0.02733577208108815,
        -0.9996263079594948,
    ],
}


def test_jax_computes_the_same_bits():
    digest = hashlib.sha256(b"3/emb").digest()
    key = jax.random.wrap_key_data(np.frombuffer(digest, "<u4", count=2))
    expected = []
    for row in range(4):
        row_key = jax.random.fold_in(key, row)
        pairs = [jax.random.fold_in(row_key, pair) for pair in range(3)]
        words = np.concatenate([jax.random.key_data(pair) for pair in pairs])
        expected.append((words[:5] + 0.5) / 2**32)
    drawn = whole({"uniform": [0, 1]}, (4, 5), seed=3, name="emb", dtype="float64")
    np.testing.assert_array_equal(drawn, expected)


def test_uniform_fills_its_interval_evenly():
    drawn = whole({"uniform": [-2.0, 3.0]}, (300, 333), dtype="float64")
    assert drawn.min() >= -2.0
    assert drawn.max() <= 3.0
    counts, _ = np.histogram(drawn, bins=20, range=(-2, 3))
    np.testing.assert_allclose(counts, drawn.size / 20, rtol=0.06)


def test_normal_has_its_moments_and_independent_neighbors():
    drawn = whole({"normal": 0.5}, (300, 333), dtype="float64")
    assert abs(drawn.mean()) < 0.01
    assert drawn.std() == pytest.approx(0.5, rel=0.01)
    assert (np.abs(drawn) < 0.5).mean() == pytest.approx(0.6827, abs=0.01)
    neighbors = np.corrcoef(drawn[:, :-1].ravel(), drawn[:, 1:].ravel())[0, 1]
    rows = np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]
    assert abs(neighbors) < 0.015
    assert abs(rows) < 0.015


def test_constants():
    assert (whole("zeros", (3, 2)) == 0).all()
    assert (whole("ones", (3, 2)) == 1).all()
    assert (whole({"constant": 0.25}, (3, 2)) == 0.25).all()


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), (1, 1)),
        ((7,), (7, 7)),
        ((30, 50), (30, 50)),
        ((3, 5, 16, 32), (3 * 5 * 16, 3 * 5 * 32)),
        ((3, 3, 1, 64), (9, 9 * 64)),  # depthwise: each output sees one channel
    ],
)
def test_fans(shape, expected):
    assert fan_in_out(shape) == expected


SHAPE = (3, 5, 40, 60)  # a kernel: fan_in 600, fan_out 900
TRUNCATED = scipy.stats.truncnorm(-2, 2).std()
UNIFORM, NORMAL = (3**0.5, 3**0.5), (3.5, 6.0)
CUT = (2 / TRUNCATED, 2 / TRUNCATED)


@pytest.mark.parametrize(
    ("init", "variance", "ends"),
    [
        ("xavier_uniform", 2 / (600 + 900), UNIFORM),
        ("xavier_normal", 2 / (600 + 900), NORMAL),
        ("he_uniform", 2 / 600, UNIFORM),
        ("he_normal", 2 / 600, NORMAL),
        ("lecun_uniform", 1 / 600, UNIFORM),
        ("lecun_normal", 1 / 600, NORMAL),
        ("glorot_uniform", 2 / (600 + 900), UNIFORM),
        ("kaiming_normal", 2 / 600, NORMAL),
        ({"variance_scaling": {}}, 1 / 600, CUT),
        ({"variance_scaling": {"scale": 2, "mode": "fan_out"}}, 2 / 900, CUT),
        (
            {"variance_scaling": {"mode": "fan_avg", "distribution": "normal"}},
            1 / 750,
            NORMAL,
        ),
        (
            {"variance_scaling": {"scale": 3, "distribution": "uniform"}},
            3 / 600,
            UNIFORM,
        ),
    ],
)
def test_the_variance_depends_on_the_fans(init, variance, ends):
    """`ends` are bounds of the largest absolute element, in standard deviations."""
    drawn = whole(init, SHAPE, dtype="float64") / np.sqrt(variance)
    assert drawn.std() == pytest.approx(1.0, rel=0.01)
    assert abs(drawn.mean()) < 0.02
    low, high = ends
    assert low * (1 - 1e-3) < np.abs(drawn).max() <= high


@pytest.mark.parametrize("mode", ["fan_in", "fan_out", "fan_avg"])
@pytest.mark.parametrize("distribution", ["uniform", "normal", "truncated_normal"])
def test_variance_scaling_equals_that_of_jax(mode, distribution):
    theirs = jax.nn.initializers.variance_scaling(2.0, mode, distribution)
    reference = np.asarray(theirs(jax.random.key(0), SHAPE))
    form = {"scale": 2.0, "mode": mode, "distribution": distribution}
    ours = whole({"variance_scaling": form}, SHAPE)
    at = [0.001, 0.01, 0.1, 0.3, 0.7, 0.9, 0.99, 0.999]
    np.testing.assert_allclose(
        np.quantile(ours, at), np.quantile(reference, at), rtol=0.05
    )


def test_a_truncated_normal_ends_at_two_deviations():
    form = {"truncated_normal": {"mean": 1.0, "std": 0.5}}
    drawn = whole(form, (300, 333), dtype="float64")
    assert 0.0 <= drawn.min() < 0.001
    assert 1.999 < drawn.max() <= 2.0
    assert drawn.std() == pytest.approx(0.5 * TRUNCATED, rel=0.01)
    expected = scipy.stats.truncnorm(-2, 2, loc=1.0, scale=0.5)
    assert scipy.stats.kstest(drawn.ravel(), expected.cdf).pvalue > 0.01


def test_normal_has_the_specified_mean():
    form = {"normal": {"mean": 3.0, "std": 0.5}}
    drawn = whole(form, (300, 333), dtype="float64")
    plain = whole({"normal": 0.5}, (300, 333), dtype="float64")
    np.testing.assert_array_equal(drawn, 3.0 + plain)


# orthogonal and identity


@pytest.mark.parametrize(
    "shape", [(1, 1), (6, 6), (3, 40), (40, 3), (2, 3, 5, 17), (3, 3, 8, 4), (300, 300)]
)
def test_the_smaller_dimension_is_orthonormal(shape):
    drawn = whole({"orthogonal": 1.5}, shape, dtype="float64")
    matrix = drawn.reshape(-1, shape[-1])
    if matrix.shape[0] > matrix.shape[1]:
        matrix = matrix.T
    np.testing.assert_allclose(
        matrix @ matrix.T, 1.5**2 * np.eye(len(matrix)), atol=1e-14
    )


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.data())
def test_a_slice_of_an_orthogonal_matrix_has_the_bits_of_the_whole(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 30), min_size=2, max_size=3)))
    n = int(np.prod(shape))
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, n))
    how = {"seed": 3, "name": "w", "shape": shape}
    piece = compute_values("orthogonal", start=start, stop=stop, dtype="float64", **how)
    flat = compute_values("orthogonal", start=0, stop=n, dtype="float64", **how)
    np.testing.assert_array_equal(piece, flat[start:stop])
    narrow = compute_values(
        "orthogonal", start=start, stop=stop, dtype="float32", **how
    )
    np.testing.assert_array_equal(narrow, piece.astype(np.float32))


def test_slices_agree_across_chunks_of_orthogonal_rows():
    shape = (500, 600)  # more elements than one chunk
    how = {"seed": 0, "name": "w", "shape": shape, "dtype": "float64"}
    flat = compute_values("orthogonal", start=0, stop=300_000, **how)
    for start, stop in [(0, 600), (65_399, 65_401), (66_000, 240_123)]:
        piece = compute_values("orthogonal", start=start, stop=stop, **how)
        np.testing.assert_array_equal(piece, flat[start:stop])


def test_orthogonal_matrices_are_uniformly_distributed():
    # For the Haar measure on O(n), the trace has mean 0 and variance 1 for every n, and
    # its fourth moment is 3 for n >= 4 (Diaconis and Shahshahani 1994).
    traces = np.array(
        [
            np.trace(whole("orthogonal", (5, 5), seed=s, dtype="float64"))
            for s in range(4000)
        ]
    )
    assert abs(traces.mean()) < 0.05
    assert traces.var() == pytest.approx(1.0, abs=0.07)
    assert (traces**4).mean() == pytest.approx(3.0, abs=0.5)


def test_an_orthogonal_matrix_is_the_qr_decomposition_of_the_same_normals():
    # The first row is the first normal row, normalized, because R's diagonal is
    # positive.
    normals = whole({"normal": 1.0}, (3, 7), dtype="float64")
    drawn = whole("orthogonal", (3, 7), dtype="float64")
    np.testing.assert_allclose(drawn[0], normals[0] / np.sqrt((normals[0] ** 2).sum()))


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3), (1, 4)])
def test_identity(shape):
    np.testing.assert_array_equal(whole("identity", shape), np.eye(*shape))
    np.testing.assert_array_equal(whole({"eye": 0.5}, shape), 0.5 * np.eye(*shape))
    n = shape[0] * shape[1]
    how = {"seed": 0, "name": "w", "shape": shape, "dtype": "float32"}
    for start in range(n):
        piece = compute_values("identity", start=start, stop=n, **how)
        np.testing.assert_array_equal(piece, np.eye(*shape).ravel()[start:])


@pytest.mark.parametrize(
    ("init", "shape", "message"),
    [
        ("orthogonal", (7,), "'orthogonal' needs at least two dimensions, not [7]"),
        ({"orthogonal": 2}, (), "'orthogonal' needs at least two dimensions, not []"),
        ("identity", (2, 3, 4), "'identity' needs a matrix, not [2, 3, 4]"),
        ({"eye": 2}, (3,), "'identity' needs a matrix, not [3]"),
    ],
)
def test_shapes_that_an_initializer_cannot_fill(init, shape, message):
    assert initializers.check_shape(read_init(init), shape).message == message
    with pytest.raises(PlacerError, match=re.escape(f"parameter h1.w: {message}")):
        whole(init, shape)


@pytest.mark.parametrize(
    "init",
    [
        *initializers.BARE,
        *initializers.ALIASES,
        *RANDOM,
        {"constant": 0},
        {"identity": 0},
    ],
)
def test_all_forms_are_read(init):
    assert np.isfinite(whole(init, (4, 4))).all()
