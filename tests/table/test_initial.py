"""Initial values: the same for slices and the whole, distributed as they should be."""

import hashlib

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.errors import PlacerError
from placer.graph import inits
from placer.runtime.initial import fans, values

RANDOM = [
    "uniform",
    "normal",
    "xavier_uniform",
    "xavier_normal",
    {"uniform": [-2.0, 3.0]},
    {"normal": 0.5},
]


def whole(init, shape, *, seed=0, name="h1.w", dtype="float32"):
    n = int(np.prod(shape))
    return values(
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
    piece = values(
        init, seed=3, name="w", shape=shape, start=start, stop=stop, dtype="float32"
    )
    flat = whole(init, shape, seed=3, name="w").ravel()
    np.testing.assert_array_equal(piece, flat[start:stop])


@pytest.mark.parametrize("shape", [(3, 40_001), (40_001, 3), (70_000,), (2, 2, 30_001)])
def test_slices_agree_across_the_chunks_of_a_large_parameter(shape):
    flat = whole("normal", shape).ravel()
    for start, stop in [(0, 1), (1, 32_769), (32_767, 65_539), (33_333, 70_000)]:
        piece = values(
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


def test_a_leading_index_beyond_32_bits_is_a_row_of_its_own():
    shape, row = (2**40, 4), 2**33 + 5

    def of(index):
        start = index * 4
        return values(
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


def test_known_values_stay_what_they_are():
    # Checkpoints and reruns rely on these bits: they change with no release.
    first = whole("uniform", (2, 3), seed=0, name="h1.w", dtype="float64")
    np.testing.assert_array_equal(first, KNOWN)


KNOWN = [
    [-0.04571866501355544, -0.00043511652620509267, 0.004450024978723377],
    [-0.020511313586030158, 0.0036290824995376184, -0.030995457188691945],
]


def test_jax_makes_the_same_bits():
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


def test_normal_has_its_moments_and_independent_neighbours():
    drawn = whole({"normal": 0.5}, (300, 333), dtype="float64")
    assert abs(drawn.mean()) < 0.01
    assert drawn.std() == pytest.approx(0.5, rel=0.01)
    assert (np.abs(drawn) < 0.5).mean() == pytest.approx(0.6827, abs=0.01)
    neighbours = np.corrcoef(drawn[:, :-1].ravel(), drawn[:, 1:].ravel())[0, 1]
    rows = np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]
    assert abs(neighbours) < 0.015
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
    ],
)
def test_fans(shape, expected):
    assert fans(shape) == expected


def test_xavier_bounds_and_variance():
    limit = np.sqrt(6 / (200 + 300))
    uniform = whole("xavier_uniform", (200, 300))
    assert limit * 0.99 < np.abs(uniform).max() <= np.float32(limit)
    normal = whole("xavier_normal", (200, 300))
    assert normal.std() == pytest.approx(np.sqrt(2 / (200 + 300)), rel=0.02)


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ("glorot", "unknown initialiser 'glorot'; one of: constant, normal, ones"),
        ("xavier_unifrom", "did you mean 'xavier_uniform'?"),
        ("constant", "needs a value: {constant: c}"),
        ({"zeros": 1}, "'zeros' takes no value; write zeros alone"),
        ({"constnat": 1}, "did you mean 'constant'?"),
        ({"constant": "1"}, "'constant' must be a number, not the text '1'"),
        ({"constant": float("nan")}, "'constant' must be finite"),
        ({"normal": 0}, "'normal' must be greater than 0"),
        ({"uniform": 1}, "'uniform' takes [low, high], not 1"),
        ({"uniform": [1, "a"]}, "an end of 'uniform' must be a number"),
        ({"uniform": [2, 1]}, "low < high, not [2, 1]"),
        ({"uniform": [0, 1], "normal": 1}, "has one name, here are 2"),
        (3, "an initialiser is a name or a mapping"),
        (None, "not nothing"),
    ],
)
def test_bad_initialisers_say_what_is_wrong(init, message):
    assert message in inits.check(init)
    with pytest.raises(PlacerError, match=r"parameter h1\.w: "):
        whole(init, (2, 2))


@pytest.mark.parametrize("init", [*inits.BARE, *RANDOM, {"constant": 0}])
def test_good_initialisers_pass_the_check(init):
    assert inits.check(init) is None
    assert np.isfinite(whole(init, (4, 4))).all()
