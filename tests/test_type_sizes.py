"""The sizes of a type for a batch, and for a part of its rows."""

import pytest

from placer.place.types import MAX_DIM, ResidualType, TensorType


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("float32[batch, 3]", (2, 3)),
        ("float32[batch, batch]", (2, 8)),
        ("float32[3, batch]", (3, 8)),
        ("float32[]", ()),
    ],
)
def test_a_part_has_fewer_rows_and_the_same_other_sizes(text, sizes):
    kind = TensorType.parse(text)
    assert kind.sizes(8, rows=2) == sizes
    assert kind.with_batch(8, rows=2) == TensorType("float32", sizes)
    assert kind.sizes(8, rows=8) == kind.sizes(8)


def test_a_residual_counts_the_rows_of_the_part():
    pairs = TensorType.parse("float64[batch, batch]")
    assert ResidualType((pairs, pairs)).nbytes(8, rows=2) == 2 * 2 * 8 * 8


def test_a_flat_block_may_be_longer_than_a_dimension_of_a_model():
    kind = TensorType("float32", (2**40,))
    assert TensorType.parse(str(kind)) == kind
    with pytest.raises(
        ValueError, match="a dimension can be at most 2147483647, not 1099"
    ):
        TensorType.parse(str(kind), MAX_DIM)
