"""Errors of state and random numbers in traced functions; following the hint works."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placer.compiler.frontend.python.read import run_builder
from placer.compiler.graph.graph import Graph
from placer.errors import PlacerError

MODELS = """\
import equinox
import flax.linen
import jax
import jax.numpy as jnp
from flax import nnx

import placer
from placer import Program, layers, optimizer

KEY = jax.random.key(0)


class Net(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(4, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.count = nnx.Variable(jnp.zeros((), jnp.int32))


def net():
    return Net(nnx.Rngs(0))


def normed(model, x):
    return model.linear(model.norm(x))


def evaluated(model, x):
    model.eval()
    return normed(model, x)  # evaluated


def scaled(model, x):
    model.linear.bias[...] = 0.5 * model.linear.bias[...]  # scaled
    return model.linear(x)


def halved(model, x, training):
    if training:
        model.count.set_value(model.count[...] * 0.5)
    return model.linear(x) * model.count[...]


def doubled(model, x, training):
    if training:
        model.count.set_value((model.count[...] * 0.5).astype("int32"))
    return model.linear(x) * model.count[...]


def counted(model, x, training):
    if training:
        model.count[...] += 1
    return model.linear(model.drop(x)) / (1 + model.count[...])


def permuted(model, x, key, training):
    x = jax.random.permutation(key, x) if training else x
    return model.linear(x)


def repeated(model, x):
    return model.linear(x + jax.random.normal(KEY, (4,)))  # repeated


def drawn(model, x, key):
    return model.linear(x + jax.random.normal(key, (4,)))  # drawn


def drawn_in_training(model, x, key, training):
    return drawn(model, x, key) if training else model.linear(x)


class Linen(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, x, training):
        return flax.linen.BatchNorm(use_running_average=not training)(x)


def variables():
    return Linen().init(KEY, jnp.ones((2, 4)), True)


def params():
    return variables()["params"]


def statistics():
    return variables()["batch_stats"]


def linen(variables, x, training):
    return Linen().apply(variables, x, training, mutable=["batch_stats"])[0]  # linen


def linen_with_state(params, stats, x, training):
    values = {"params": params, "batch_stats": stats}
    results, new = Linen().apply(values, x, training, mutable=["batch_stats"])
    return results, new["batch_stats"]


make = equinox.nn.make_with_state(equinox.nn.BatchNorm)
norm, state = make(4, axis_name="rows", mode="batch")


def equinox_with_state(norm, state, x):
    over = {"axis_name": "rows", "in_axes": (0, None), "out_axes": (0, None)}
    return jax.vmap(norm, **over)(x, state)  # equinox


def equinox_alone(norm, state, x):
    return equinox_with_state(norm, state, x)[0]


W = {"w": jnp.ones(4)}


def assigned(params, x):
    params["w"] = params["w"] + x.mean(0)  # assigned
    return x * params["w"]


def weights():
    return {"w": jnp.ones(4)}


def returned(params, x):
    return x * params["w"], {"w": params["w"] + x.mean(0)}


def build():
    data = {"train": {"source": "npz:rows.npz", "batch": 8}}
    program = Program(nodes={"worker": {"count": 2}}, data=data)
    with program:
        x = layers.data("x", "float32[batch, 4]")
        y = placer.trace(CALL, name="net")
        y = layers.mul(y, layers.parameter([4], "ones"))
        loss = layers.mean(layers.reduce_sum(y, axis=1), name="loss")
        optimizer.SGD(0.1).minimize(loss)
    return program
"""


def build(folder: Path, call: str) -> Graph:
    np.savez(folder / "rows.npz", x=np.ones((16, 4), np.float32))
    (folder / "model.py").write_text(MODELS.replace("CALL", call))
    return run_builder(f"{folder / 'model.py'}:build").model().graph


def line(mark: str) -> int:
    lines = enumerate(MODELS.splitlines(), 1)
    return next(i for i, each in lines if each.endswith(f"# {mark}"))


STATE = ", name it with state=, and return "
CASES = {
    "normalization by rows": (
        "normed, net, x, batch='rows'",
        "with batch='rows' the state 'net.norm_mean' must not depend on the rows",
        "pass batch='whole'",
        "normed, net, x, batch='whole'",
    ),
    "a module that the function switches": (
        "evaluated, net, x",
        "model is changed, and the change would be lost",
        "leave model.eval() out",
        "normed, net, x",
    ),
    "a parameter that the function assigns": (
        "scaled, net, x",
        "model.linear.bias is changed (model.py:LINE), and",
        "assign only arrays of an nnx.Variable other than nnx.Param",
        "counted, net, x",
    ),
    "a state of another type": (
        "halved, net, x",
        "model.count is int32[], but the function assigns float32[]",
        "write .astype('int32')",
        "doubled, net, x",
    ),
    "a collection of Flax linen": (
        "linen, variables, x",
        "batch_stats.BatchNorm_0.mean is changed (model.py:LINE), and",
        f"pass 'batch_stats' as an argument of its own{STATE}the results and"
        " new['batch_stats']",
        "linen_with_state, params, statistics, x, state='stats'",
    ),
    "a State of Equinox": (
        "equinox_alone, norm, state, x",
        "an equinox.nn.State is changed (model.py:LINE), and",
        f"pass the State as an argument of its own{STATE}the results and the new State",
        "equinox_with_state, norm, state, x, state='state'",
    ),
    "an entry of a dict": (
        "assigned, W, x",
        "params.w is changed (model.py:LINE), and",
        f"a global name of the file{STATE}a pair: the results, and its new value",
        "returned, weights, x, state='params'",
    ),
    "random numbers that repeat": (
        "repeated, net, x",
        "'random_bits' (model.py:LINE) draws random numbers with a key that is the same",
        "give the function an argument `key`",
        "drawn_in_training, net, x",
    ),
    "random numbers in an evaluation": (
        "drawn, net, x",
        "'random_bits' (model.py:LINE) draws random numbers in evaluation",
        "give the function an argument `training`, and draw only if it is true",
        "drawn_in_training, net, x",
    ),
}
MARKS = {
    "scaled": "scaled",
    "linen": "linen",
    "equinox_alone": "equinox",
    "assigned": "assigned",
    "repeated": "repeated",
    "drawn": "drawn",
}


@pytest.mark.parametrize("case", CASES)
def test_a_hint_about_state_and_random_numbers_works(case: str, tmp_path: Path) -> None:
    call, message, hint, good = CASES[case]
    (mark,) = [*(MARKS[k] for k in MARKS if call.startswith(f"{k},")), ""][:1]
    if mark:
        message = message.replace("LINE", str(line(mark)))
    with pytest.raises(PlacerError) as caught:
        build(tmp_path, call)
    assert caught.value.message.startswith(f"trace 'net': {message}")
    assert hint in str(caught.value.hint)
    assert caught.value.span is not None
    assert build(tmp_path, good).of_kind("call")


def test_a_permutation_of_the_batch_makes_the_function_whole(tmp_path: Path) -> None:
    assert rule_of(build(tmp_path, "permuted, net, x")) == "whole"


def test_a_counter_does_not_make_the_function_whole(tmp_path: Path) -> None:
    assert rule_of(build(tmp_path, "counted, net, x")) == "rows"


def rule_of(graph: Graph) -> str:
    """Return the batch rule of the function in training."""
    op = graph.producers["net.training"]
    return str(op.attrs.get("batch", "whole"))
