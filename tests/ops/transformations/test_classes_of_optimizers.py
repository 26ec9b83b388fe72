"""Which parameters optax optimizers update by blocks, and that blocks equal the whole."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest
from support.optax_optimizers import OPTIMIZERS, SHAPES, TYPES, mean_of

from placer.ops.transformations.cut import differences_on_blocks
from placer.ops.transformations.describe import describe
from placer.ops.transformations.functions import block_functions
from placer.plan.settings.training.slicing import make_blocks
from placer.plan.settings.training.transformations import shape_on_block

ALL = tuple(SHAPES)
MATRICES = ("w", "m")
WHOLE = {
    **dict.fromkeys(["factored", "sm3", "muon", "centralize"], MATRICES),
    **dict.fromkeys(["adafactor", "novograd", "lamb", "lars", "fromage"], ALL),
    **dict.fromkeys(["add_noise", "noisy_sgd", "adaptive_grad_clip"], ALL),
    **dict.fromkeys(["block_rms", "zero_nans"], ALL),
}
"""The parameters whose update is not computed element by element."""
TOGETHER = {
    **dict.fromkeys(["normalize", "prodigy", "dog", "apply_if_finite"], (ALL,)),
    **dict.fromkeys(["clipped-late", "clipped-twice", "scaled-by-all"], (ALL,)),
    "clipped-part": (MATRICES,),
}
"""The groups of parameters whose updates depend on each other."""
CLIPS = {"clip_by_global_norm": 0.5, "clipped-twice": 0.5}
"""The bounds of norms that placer computes."""
MASKS_BY_NDIM = ("adamw-ndim", "freeze")
QUICK = (
    "adamw-ndim",
    "schedule_free_adamw",
    "MultiSteps",
    "sm3",
    "mean",
    "clipped-part",
)
EDGES = {
    "w": (0, 130, 130 * 101, 130 * 256),
    "v": (0, 13, 40),
    "m": (0, 16, 16 * 9, 256),
    "b": (0, 1, 8),
}
"""The edges of blocks of whole rows."""
FLAT_EDGES = {**EDGES, "w": (0, 1001, 130 * 256), "m": (0, 7, 16 * 9 + 1, 256)}
"""The edges of blocks that divide rows of matrices."""


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_are_cut_only_if_their_elements_are_independent(name):
    described = describe(OPTIMIZERS[name], TYPES, fn="optimizers:make", wide=True)
    assert (*described.whole,) == WHOLE.get(name, ())
    assert described.together == TOGETHER.get(name, ())
    assert described.clip == CLIPS.get(name)
    kept = {*described.whole, *sum(described.together, ())}
    by_rows, flat = (
        differences_on_blocks(OPTIMIZERS[name], TYPES, shapes, wide=True)
        for shapes in (shapes_of(EDGES), shapes_of(FLAT_EDGES))
    )
    assert by_rows.keys() == kept
    masked = MATRICES if name in MASKS_BY_NDIM else ()
    assert flat.keys() == {*kept, *masked}
    assert all("equations on a block" in flat[each] for each in masked)


def shapes_of(edges):
    return {
        name: shape_on_block(SHAPES[name], ends[1], ends[2])
        for name, ends in edges.items()
    }


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in OPTIMIZERS
    ],
)
def test_updates_of_blocks_are_those_of_the_whole(name):
    make, averaged = OPTIMIZERS[name], mean_of if name == "mean" else None
    facts = {"averaged": averaged, "wide": True}
    described = describe(make, TYPES, fn="optimizers:make", **facts)
    kept = {*described.whole, *sum(described.together, ())}
    flat = () if name in MASKS_BY_NDIM else ("m",)
    blocks = []
    for each, shape in SHAPES.items():
        ends = (FLAT_EDGES if each in flat else EDGES)[each]
        sizes = [int(np.prod(shape))] if each in kept else list(np.diff(ends))
        blocks += make_blocks(each, shape, sizes)
    functions = block_functions(make, TYPES, blocks, described, **facts)

    def cut(tree):
        flat = {each: np.asarray(array).reshape(-1) for each, array in tree.items()}
        return [flat[b.parameter][b.start : b.stop].reshape(b.shape) for b in blocks]

    whole = make()

    def step(gradients, state, params):
        if described.clip is not None:  # placer computes the first norm itself
            scale = described.clip / np.maximum(norm(gradients), described.clip)
            clipped = jax.tree.map(lambda g: g * scale, gradients)
            return plain(gradients, state, params), clipped
        return plain(gradients, state, params), gradients

    @jax.jit
    def plain(gradients, state, params):
        updates, state = whole.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    rng = np.random.default_rng(1)
    draw = lambda: {each: rng.normal(size=shape) for each, shape in SHAPES.items()}  # noqa: E731
    params = draw()
    state, values = whole.init(params), cut(params)
    leaves = jax.jit(functions.init)(values)
    update = jax.jit(functions.update)
    for _ in range(5):
        (params, state), gradients = step(draw(), state, params)
        values, leaves = update(values, leaves, cut(gradients), 0.1)
        for block, one, other in zip(blocks, values, cut(params), strict=True):
            np.testing.assert_allclose(one, other, 1e-15, 1e-15, err_msg=block.name)
    check_leaves(described, state, blocks, leaves)
    if averaged:
        for one, other in zip(
            functions.averaged(values, leaves),
            cut(averaged(state, params)),
            strict=True,
        ):
            np.testing.assert_allclose(one, other, 1e-15, 1e-15)


def norm(gradients):
    return np.sqrt(sum((g**2).sum() for g in gradients.values()))


def check_leaves(described, state, blocks, leaves):
    """The leaves of blocks are those of the state; a slot is cut as its parameter."""
    whole = jax.tree.leaves(state)
    assert len(whole) == len(described.leaves)
    for leaf, array in zip(described.leaves, whole, strict=True):
        if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
            array = jax.random.key_data(array)
        assert (leaf.shape, leaf.dtype) == (array.shape, str(array.dtype))
        for block, mine in zip(blocks, leaves, strict=True):
            if leaf.parameter in ("", block.parameter):
                expected = np.asarray(array)
                if leaf.kind == "slot":
                    expected = expected.reshape(-1)[block.start : block.stop]
                    expected = expected.reshape(block.shape)
                np.testing.assert_allclose(mine[leaf.name], expected, 1e-15, 1e-15)
