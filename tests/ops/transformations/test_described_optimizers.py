"""The facts of an optax optimizer: its state, clips, fingerprint and cost."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from placer.errors import PlacerError
from placer.ops.transformations.cut import differences_on_blocks
from placer.ops.transformations.describe import describe
from placer.ops.transformations.functions import block_functions
from placer.place.types import TensorType
from placer.plan.settings.training.slicing import make_blocks

TYPES = {"w": TensorType("float64", (4, 3)), "b": TensorType("float64", (3,))}


def described(make, types=TYPES, **keywords):
    return describe(make, types, fn="optimizers:make", wide=True, **keywords)


def kinds(make, types=TYPES):
    return {
        (leaf.name, leaf.parameter): leaf.kind for leaf in described(make, types).leaves
    }


def test_leaves_have_the_parameter_of_their_path():
    found = described(lambda learning_rate: optax.adam(learning_rate))
    assert found.takes_rate
    assert {(leaf.name, leaf.parameter, leaf.kind) for leaf in found.leaves} == {
        ("0.count", "", "shared"),
        *((f"0.{slot}", name, "slot") for slot in ("mu", "nu") for name in "wb"),
    }
    assert found.leaves_of("b") == tuple(
        leaf for leaf in (*found.leaves[1:], found.leaves[0]) if leaf.parameter != "w"
    )


def test_leaves_without_a_parameter_in_their_path_belong_to_those_that_they_depend_on():
    class State(NamedTuple):
        traces: list[Any]
        norm: Any
        steps: Any

    def init(params):
        return State([0 * x for x in params.values()], jnp.zeros([]), 0)

    def update(gradients, state, params):
        del params
        pairs = zip(gradients.values(), state.traces, strict=True)
        traces = [0.9 * trace + g for g, trace in pairs]
        norm = jnp.sum(gradients["w"] ** 2)
        new = State(traces, norm, state.steps + 1)
        return dict(zip(gradients, traces, strict=True)), new

    assert kinds(lambda: optax.GradientTransformation(init, update)) == {
        ("traces.0", "w"): "slot",
        ("traces.1", "b"): "slot",
        ("norm", "w"): "own",
        ("steps", ""): "shared",
    }


def test_a_name_of_a_parameter_that_others_read_makes_a_leaf_shared():
    """`b` is a label here, and a parameter."""
    labels = {"w": "b", "b": "other"}
    make = lambda: optax.multi_transform(  # noqa: E731
        {"b": optax.adam(0.1), "other": optax.adam(0.2)}, labels
    )
    found = kinds(make)
    assert found["inner_states.b.inner_state.0.count", ""] == "shared"
    assert found["inner_states.b.inner_state.0.mu", "w"] == "slot"
    assert not described(make).together


def test_parameters_that_share_a_leaf_are_updated_together():
    def update(gradients, state, params):
        del params
        scale = 1 + jnp.sum(jnp.abs(gradients["w"])) + state
        return {"w": gradients["w"], "b": gradients["b"] * state}, scale

    found = described(lambda: optax.GradientTransformation(lambda p: 0.0, update))
    assert found.together == (("w", "b"),)
    assert [(leaf.kind, leaf.parameter) for leaf in found.leaves] == [("own", "w")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("rate", [True, False])
def test_a_clip_of_the_norm_of_all_gradients_is_found_at_the_top(dtype, rate):
    types = {name: TensorType(dtype, kind.shape) for name, kind in TYPES.items()}

    def with_rate(learning_rate):
        rest = optax.adamw(learning_rate, weight_decay=0.5)
        return optax.chain(optax.clip_by_global_norm(0.25), rest)

    make = with_rate if rate else lambda: with_rate(0.1)
    found = described(make, types)
    assert found.clip == 0.25
    assert not found.together
    assert not found.whole
    assert not differences_on_blocks(make, types, {"w": (2, 3), "b": (1,)}, wide=True)


@pytest.mark.parametrize("bound", [0.0, -1.0, np.inf])
def test_a_clip_by_a_bound_that_placer_has_not_stays_in_the_chain(bound):
    found = described(
        lambda: optax.chain(optax.clip_by_global_norm(bound), optax.sgd(0.1))
    )
    assert (found.clip, found.together) == (None, (("w", "b"),))


@pytest.mark.parametrize("shapes", [[(4, 3), (3,), (3,), (3,)], [(3, 3), (3, 3)]])
def test_a_clip_of_parameters_of_one_shape_is_found(shapes):
    types = {f"p{i}": TensorType("float32", shape) for i, shape in enumerate(shapes)}
    rest = optax.adamw(0.1, mask=lambda tree: {name: name != "p1" for name in tree})
    found = described(lambda: optax.chain(optax.clip_by_global_norm(0.25), rest), types)
    assert (found.clip, found.whole, found.together) == (0.25, {}, ())


def test_a_clip_before_frozen_parameters_is_found():
    rules = {"trained": optax.adam(0.1), "frozen": optax.set_to_zero()}
    rest = optax.multi_transform(rules, {"w": "trained", "b": "frozen"})
    found = described(lambda: optax.chain(optax.clip_by_global_norm(0.25), rest))
    assert (found.clip, found.whole, found.together) == (0.25, {}, ())


def test_a_clip_of_all_but_one_gradient_is_kept():
    def update(gradients, state, params):
        del params
        clipped, state = clip.update(gradients, state)
        return clipped | {"b": gradients["b"]}, state

    clip = optax.clip_by_global_norm(0.25)
    found = described(lambda: optax.GradientTransformation(clip.init, update))
    assert (found.clip, found.together) == (None, (("w", "b"),))


def test_a_clip_is_kept_if_other_equations_use_the_gradients():
    def with_gradients():
        clip = optax.clip_by_global_norm(0.25)

        def update(gradients, state, params):
            clipped, state = clip.update(gradients, state, params)
            return jax.tree.map(lambda c, g: c + 0.1 * g, clipped, gradients), state

        return optax.GradientTransformation(clip.init, update)

    found = described(with_gradients)
    assert found.clip is None
    assert found.together == (("w", "b"),)


def test_a_clip_of_one_gradient_is_no_clip_of_all():
    def of_one():
        masked = optax.masked(optax.clip_by_global_norm(0.25), {"w": True, "b": False})
        return optax.chain(masked, optax.sgd(0.1))

    found = described(of_one)
    assert (found.clip, {*found.whole}, found.together) == (None, {"w"}, ())


def test_another_optimizer_than_the_compiled_one_is_refused():
    blocks = make_blocks("b", (3,), (3,))
    planned = described(lambda: optax.adam(0.1))
    block_functions(lambda: optax.adam(0.1), TYPES, blocks, planned, wide=True)
    for other in (lambda: optax.adam(0.2), lambda: optax.adamax(0.1)):
        with pytest.raises(PlacerError, match="is not the optimizer that was compiled"):
            block_functions(other, TYPES, blocks, planned, wide=True)


def test_parameters_together_are_updated_in_one_table():
    make = lambda: optax.chain(optax.sgd(1.0), optax.normalize_by_update_norm())  # noqa: E731
    planned = described(make)
    assert planned.together == (("w", "b"),)
    blocks = [*make_blocks("b", (3,), (3,)), *make_blocks("w", (4, 3), (12,))]
    functions = block_functions(make, TYPES, blocks, planned, wide=True)
    rng = np.random.default_rng(0)
    b, w, db, dw = (rng.normal(size=shape) for shape in ((3,), (4, 3)) * 2)
    new, _ = functions.update([b, w], functions.init([b, w]), [db, dw], 0.1)
    norm = 1e-6 + np.sqrt((db**2).sum() + (dw**2).sum())
    np.testing.assert_allclose(new[0], b - db / norm, 1e-14)
    np.testing.assert_allclose(new[1], w - dw / norm, 1e-14)


def test_a_block_without_elements_keeps_its_state():
    make = lambda: optax.adam(0.1)  # noqa: E731
    blocks = make_blocks("b", (3,), (3, 0))
    functions = block_functions(make, TYPES, blocks, described(make), wide=True)
    values = [np.ones(3), np.ones(0)]
    new, leaves = functions.update(values, functions.init(values), values, 0.1)
    assert [each.shape for each in new] == [(3,), (0,)]
    assert {name: leaf.shape for name, leaf in leaves[1].items()} == {
        "0.mu": (0,),
        "0.nu": (0,),
        "0.count": (),
    }


def test_flops_count_products():
    cheap, costly = (
        described(make).flops
        for make in (lambda: optax.sgd(0.1), lambda: optax.contrib.muon(0.1))
    )
    assert cheap == 2
    assert costly > 50


def test_the_learning_rate_is_a_number_of_python():
    """It does not change the dtype of an update."""
    types = {"b": TensorType("bfloat16", (3,))}
    make = lambda learning_rate: optax.sgd(learning_rate)  # noqa: E731
    functions = block_functions(
        make, types, make_blocks("b", (3,), (3,)), described(make, types), wide=True
    )
    ones = [jnp.ones(3, jnp.bfloat16)]
    (new,), _ = functions.update(ones, functions.init(ones), ones, 0.1)
    expected = optax.apply_updates(ones[0], -0.1 * ones[0])
    assert new.dtype == jnp.bfloat16
    np.testing.assert_array_equal(new, expected)
