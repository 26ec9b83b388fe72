"""Sampled classes: their distribution, and what they depend on."""

import numpy as np
import pytest
from support import compiled_ops as ops

from placer.errors import OpError
from placer.ops.attributes import complete
from placer.ops.composites import COMPOSITES
from placer.place.types import TensorType

POSITION = np.stack([np.full(20_000, 3), np.arange(20_000)], -1).astype(np.uint32)
NUMBERS = np.arange(10)
PROBABILITIES = {
    "uniform": np.full(10, 0.1),
    "log_uniform": np.log((NUMBERS + 2) / (NUMBERS + 1)) / np.log(11),
}


@pytest.mark.parametrize("sampler", PROBABILITIES)
def test_classes_have_the_documented_probabilities(sampler):
    attrs = {"classes": 10, "num_sampled": 5, "stream": 7, "sampler": sampler}
    drawn = np.asarray(ops.sample_classes(POSITION, **attrs))
    frequencies = np.bincount(drawn.ravel(), minlength=10) / drawn.size
    np.testing.assert_allclose(frequencies, PROBABILITIES[sampler], atol=0.005)


def test_samples_depend_only_on_stream_step_and_row():
    attrs = {"classes": 1000, "num_sampled": 5, "stream": 7}
    drawn = np.asarray(ops.sample_classes(POSITION[:100], **attrs))
    part = np.asarray(ops.sample_classes(POSITION[40:43], **attrs))
    np.testing.assert_array_equal(part, drawn[40:43])
    later = np.asarray(ops.sample_classes(POSITION[:100] + np.uint32([1, 0]), **attrs))
    other = np.asarray(ops.sample_classes(POSITION[:100], **{**attrs, "stream": 8}))
    assert not np.array_equal(later, drawn)
    assert not np.array_equal(other, drawn)


def test_an_invalid_label_gives_nan():
    x, w, b = np.ones((3, 2), "f4"), np.ones((4, 2), "f4"), np.zeros(4, "f4")
    label, sampled = np.int32([0, 4, -1]), np.zeros((3, 2), np.int32)
    for kind in (ops.nce_loss, ops.sampled_softmax_loss):
        losses = np.asarray(kind(x, w, b, label, sampled, reduce="none"))
        assert np.isnan(losses).tolist() == [False, True, True]


X, LABEL = "float32[batch, 3]", "int32[batch]"


@pytest.mark.parametrize("kind", ["nce", "sampled_softmax"])
@pytest.mark.parametrize(
    ("types", "attrs", "message", "operand", "attr"),
    [
        (("int32[batch, 3]", LABEL), {}, "needs a float operand as 'x', not", 0, None),
        (("float32[batch]", LABEL), {}, "needs rows [batch, size], 'x' is", 0, None),
        ((X, "float32[batch]"), {}, "needs an integer operand as 'label'", 1, None),
        ((X, "int32[batch, 1]"), {}, "'label' must be int32[batch]", 1, None),
        ((X,), {}, "needs 2 operands (x, label) besides its parameters", None, None),
        (
            (X, LABEL),
            {"classes": 1},
            "needs at least 2 classes, not 1",
            None,
            "classes",
        ),
        (
            (X, LABEL),
            {"num_sampled": 0},
            "needs num_sampled of at least 1, not 0",
            None,
            "num_sampled",
        ),
    ],
)
def test_invalid_uses(kind, types, attrs, message, operand, attr):
    composite = next(each for each in COMPOSITES if each.kind == kind)
    given = {"classes": 10, "num_sampled": 3, **attrs}
    full = complete(composite, given)
    with pytest.raises(OpError) as caught:
        composite.parameters([TensorType.parse(text) for text in types], full)
    assert message in caught.value.message
    assert (caught.value.operand, caught.value.attr) == (operand, attr)
