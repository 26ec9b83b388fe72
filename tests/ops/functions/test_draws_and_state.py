"""Random draws that repeat in every step, draws in evaluation, and changes of state are
refused with their line. The same models are accepted in evaluation mode."""

from __future__ import annotations

import json
from typing import Any

import equinox
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from placer.errors import PlacerError
from placer.ops.functions.cut import STEP_KEY
from placer.ops.functions.function import is_deterministic, trace_function
from placer.ops.functions.library_leaves import parameter_mask
from placer.ops.functions.mode import TRAINING
from placer.ops.special.exported_jax import in_evaluation

KEY = jax.random.key(0)
NOISE = jax.random.normal(KEY, (4,))
X = {"in": "float32[batch, 4]"}


class Net(nnx.Module):
    """Each part is used by one function."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            1, 4, dropout_rate=0.5, deterministic=False, decode=False, rngs=rngs
        )
        self.seen = nnx.Variable(jnp.zeros(()))
        self.calls = 0


def net() -> Net:
    return Net(nnx.Rngs(0))


def quiet() -> Net:
    model = net()
    model.eval()
    return model


def dropped(model: Net, x: jax.Array) -> jax.Array:
    return model.drop(x)  # line: dropped


def attended(model: Net, x: jax.Array) -> jax.Array:
    return model.attention(x[:, None])  # line: attended


def normed(model: Net, x: jax.Array) -> jax.Array:
    return model.norm(x)  # line: normed


def all_of_it(model: Net, x: jax.Array) -> jax.Array:
    return normed(model, dropped(model, attended(model, x)[:, 0]))


def evaluated_inside(model: Net, x: jax.Array) -> jax.Array:
    model.eval()
    return normed(model, x)


def viewed(model: Net, x: jax.Array) -> jax.Array:
    settings = {"deterministic": True, "use_running_average": True}
    return all_of_it(nnx.view(model, **settings), x)


def counted(model: Net, x: jax.Array) -> jax.Array:
    model.seen[...] = model.seen[...] + x.sum()  # line: counted
    return jnp.sin(x)


def called(model: Net, x: jax.Array) -> jax.Array:
    model.calls += 1
    return jnp.sin(x)


def reassigned(params: dict[str, Any], x: jax.Array) -> jax.Array:
    params["w"] = params["w"] + x.mean()  # line: reassigned
    return x * params["w"]


def replaced(params: dict[str, Any], x: jax.Array) -> jax.Array:
    params["h"] = params.pop("w") * x
    return params["h"]


def drawn(model: Net, x: jax.Array) -> jax.Array:
    jax.random.normal(model.drop.rngs(), (4,))  # an unused result
    return jnp.sin(x)


# Linen: variables are data.
class Linen(flax.linen.Module):
    train: bool

    @flax.linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return flax.linen.BatchNorm(use_running_average=not self.train)(x)


class LinenDrop(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return flax.linen.Dropout(0.5, deterministic=False)(x)  # line: linen_dropped


def linen() -> Any:
    return Linen(True).init(KEY, jnp.ones((2, 4)))


def linen_normed(variables: Any, x: jax.Array) -> jax.Array:
    return Linen(True).apply(variables, x, mutable=["batch_stats"])[0]  # line: linen


def linen_evaluated(variables: Any, x: jax.Array) -> jax.Array:
    return Linen(False).apply(variables, x)


def linen_dropped(x: jax.Array) -> jax.Array:
    return LinenDrop().apply({}, x, rngs={"dropout": KEY})


# Equinox: keys and state are arguments.
def stated() -> Any:
    make = equinox.nn.make_with_state(equinox.nn.BatchNorm)
    return make(4, axis_name="rows", mode="batch")


def stated_normed(model_and_state: Any, x: jax.Array) -> jax.Array:
    norm, state = model_and_state
    over = {"axis_name": "rows", "in_axes": (0, None), "out_axes": (0, None)}
    return jax.vmap(norm, **over)(x, state)[0]  # line: stated


def stated_evaluated(model_and_state: Any, x: jax.Array) -> jax.Array:
    norm, state = model_and_state
    norm = equinox.nn.inference_mode(norm)
    return jax.vmap(norm, in_axes=(0, None), out_axes=(0, None))(x, state)[0]


class Counter(equinox.Module):
    count: equinox.nn.StateIndex

    def __init__(self) -> None:
        self.count = equinox.nn.StateIndex(jnp.zeros(()))


def counting() -> Any:
    return equinox.nn.make_with_state(Counter)()


def set_at_once(model_and_state: Any, x: jax.Array) -> jax.Array:
    counter, state = model_and_state
    state = state.set(counter.count, state.get(counter.count) + 1)  # line: set_at_once
    return x * state.get(counter.count)


def keyed_by_row(x: jax.Array) -> jax.Array:
    keys = jax.random.split(KEY, len(x))
    drop = equinox.nn.Dropout(0.5)
    return jax.vmap(lambda row, key: drop(row, key=key))(x, keys)  # line: keyed_by_row


def keyed_not(x: jax.Array) -> jax.Array:
    return jnp.sin(equinox.nn.Dropout(0.5, inference=True)(x))


# Only JAX.
def made_inside(x: jax.Array) -> jax.Array:
    key = jax.random.PRNGKey(3)
    return x + jax.random.normal(jax.random.fold_in(key, 1), (4,))  # line: made_inside


def in_a_scan(x: jax.Array) -> jax.Array:
    def step(carry: Any, row: Any) -> Any:
        h, key = carry
        key, now = jax.random.split(key)
        h = h + row + jax.random.uniform(now, (4,))  # line: in_a_scan
        return (h, key), None

    return jax.lax.scan(step, (jnp.zeros(4), KEY), x)[0][0]


def in_a_branch(x: jax.Array) -> jax.Array:
    def noisy(x: jax.Array) -> jax.Array:
        return x + jax.random.normal(KEY, x.shape)  # line: in_a_branch

    return jax.lax.cond(x.sum() > 0, noisy, lambda x: x, x)


def in_a_loop(x: jax.Array) -> jax.Array:
    return jax.random.poisson(KEY, jnp.abs(x)) * x  # line: in_a_loop


def with_key(x: jax.Array, key: jax.Array) -> jax.Array:
    return x + jax.random.normal(key, (4,))  # line: with_key


def with_key_in_training(x: jax.Array, *, key: jax.Array, training: bool) -> jax.Array:
    return with_key(x, key) if training else jnp.sin(x)


def seeds() -> Any:
    return {"seed": jnp.zeros((), jnp.uint32)}


def with_a_seed(state: Any, x: jax.Array) -> Any:
    key = jax.random.fold_in(KEY, state["seed"])
    x = x + jax.random.normal(key, (4,))  # line: with_a_seed
    return x, {"seed": state["seed"] + 1}


def of_the_data(x: jax.Array) -> jax.Array:
    keys = jax.vmap(jax.random.key)(x[:, 0].astype(int))
    return x + jax.vmap(lambda key: jax.random.normal(key, (4,)))(keys)


def of_the_file(x: jax.Array) -> jax.Array:
    return x @ jnp.outer(NOISE, NOISE)


def unused(x: jax.Array) -> jax.Array:
    jax.random.normal(KEY, (4,))
    return jnp.sin(x)


MODEL = {"make": "net"}
W = {"dict": {"w": {"param": "float32[4]"}}}


def line(mark: str) -> int:
    with open(__file__, encoding="utf-8") as file:
        return next(i for i, each in enumerate(file, 1) if f"# line: {mark}\n" in each)


@pytest.mark.parametrize(
    ("fn", "args", "mark"),
    [
        (linen_dropped, [], "linen_dropped"),
        (keyed_by_row, [], "keyed_by_row"),
        (made_inside, [], "made_inside"),
        (in_a_scan, [], "in_a_scan"),
        (in_a_branch, [], "in_a_branch"),
        (in_a_loop, [], "in_a_loop"),
    ],
)
def test_a_key_that_is_the_same_in_every_step_is_refused(
    fn: Any, args: list[Any], mark: str
) -> None:
    with pytest.raises(PlacerError, match="the same in every step") as caught:
        trace_function(fn, json.dumps([*args, X]), 14, TRAINING)
    assert f"(test_draws_and_state.py:{line(mark)}) draws" in caught.value.message


@pytest.mark.parametrize(
    ("fn", "args", "what"),
    [
        (normed, [MODEL], "model.norm.mean is changed LINE,"),
        (counted, [MODEL], "model.seen is changed LINE,"),
        (called, [MODEL], "model is changed,"),
        (evaluated_inside, [MODEL], "model is changed,"),
        (reassigned, [W], "params.w is changed LINE,"),
        (
            linen_normed,
            [{"make": "linen"}],
            "batch_stats.BatchNorm_0.mean is changed LINE,",
        ),
        (stated_normed, [{"make": "stated"}], "an equinox.nn.State is changed LINE,"),
        (set_at_once, [{"make": "counting"}], "an equinox.nn.State is changed LINE,"),
    ],
)
def test_state_that_would_be_lost_is_refused(
    fn: Any, args: list[Any], what: str
) -> None:
    with pytest.raises(PlacerError) as caught:
        trace_function(fn, json.dumps([*args, X]), 14, TRAINING)
    marks = {linen_normed: "linen", stated_normed: "stated"}
    if "LINE" in what:
        at = line(marks.get(fn, fn.__name__))
        what = what.replace("LINE", f"(test_draws_and_state.py:{at})")
    assert caught.value.message.startswith(what)


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (all_of_it, [{"make": "quiet"}]),
        (viewed, [MODEL]),
        (drawn, [MODEL]),
        (replaced, [W]),
        (linen_evaluated, [{"make": "linen"}]),
        (stated_evaluated, [{"make": "stated"}]),
        (keyed_not, []),
        (attended, [MODEL]),
        (normed, [MODEL]),
        (stated_normed, [{"make": "stated"}]),
        (with_key_in_training, []),
        (of_the_data, []),
        (of_the_file, []),
        (unused, []),
    ],
)
def test_a_function_without_draws_and_changes_is_traced(
    fn: Any, args: list[Any]
) -> None:
    (region,) = trace_function(fn, json.dumps([*args, X]), 14).cut.regions
    assert region.closed.jaxpr.eqns


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (dropped, [MODEL]),
        (attended, [MODEL]),
        (with_key, []),
        (with_key_in_training, []),
    ],
)
def test_the_key_of_the_step_is_drawn_with_in_training(
    fn: Any, args: list[Any]
) -> None:
    (region,) = trace_function(fn, json.dumps([*args, X]), 14, TRAINING).cut.regions
    assert region.random == (STEP_KEY,)


def test_a_draw_in_evaluation_is_refused() -> None:
    with pytest.raises(
        PlacerError, match="draws random numbers in evaluation"
    ) as caught:
        trace_function(with_key, json.dumps([X]), 14)
    assert f"(test_draws_and_state.py:{line('with_key')})" in caught.value.message


class OwnNorm(nnx.Module):
    """A module of another library: `nnx.view` does not know that it has a mode."""

    def __init__(self) -> None:
        self.use_running_average = False


class OwnNet(nnx.Module):
    def __init__(self) -> None:
        self.norm = OwnNorm()


def test_modules_of_other_libraries_are_switched_as_by_eval() -> None:
    model = OwnNet()
    assert in_evaluation(model).norm.use_running_average
    assert not model.norm.use_running_average


def test_a_key_of_the_state_differs_in_each_step() -> None:
    args = json.dumps([{"state": {"make": {"fn": "seeds", "state": ["seed"]}}}, X])
    assert trace_function(with_a_seed, args, 14, TRAINING).state == 1
    with pytest.raises(PlacerError, match="in evaluation") as caught:
        trace_function(with_a_seed, args, 14)
    assert f"(test_draws_and_state.py:{line('with_a_seed')})" in caught.value.message


def test_state_of_equinox_is_not_trained() -> None:
    assert list(parameter_mask(stated())).count(True) == 2  # weight and bias


ROLLS = np.random.default_rng(0)


def rolled(x: jax.Array) -> jax.Array:
    return x * ROLLS.normal(size=4).astype(np.float32)


def test_a_function_that_draws_from_numpy_is_not_deterministic() -> None:
    assert not is_deterministic(rolled, json.dumps([X]), 14)
    assert is_deterministic(of_the_file, json.dumps([X]), 14)
