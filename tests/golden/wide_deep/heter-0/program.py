"""heter:0 of wide_deep: 2 workers, 1 heter, 1 server.

Compiled by placer; change the spec, not this file.
p: parameters; g: their gradients; s: values saved for a later function; d_NAME: the gradient of
NAME; NAME_res: the values that NAME's backward needs.
"""

import functools
from collections import namedtuple
from typing import NamedTuple

from placer import runtime  # first: before jax loads

import jax

from placer import ops

# Edges: the numbers of the messages between nodes, from plan.json.
PARAMETERS_FROM_PS = 2
ACTIVATIONS_FROM_WORKERS = 3
ACTIVATIONS_TO_WORKERS = 4
ACTIVATION_GRADIENTS_FROM_WORKERS = 5
ACTIVATION_GRADIENTS_TO_WORKERS = 7
GRADIENTS_TO_PS = 8
EVAL_PARAMETERS_FROM_PS = 11
EVAL_ACTIVATIONS_FROM_WORKERS = 12
EVAL_ACTIVATIONS_TO_WORKERS = 13
PREDICT_PARAMETERS_FROM_PS = 15
PREDICT_ACTIVATIONS_FROM_WORKERS = 16
PREDICT_ACTIVATIONS_TO_WORKERS = 17

Fc = namedtuple("Fc", "w b")


class Dense(NamedTuple):  # table "dense"
    deep1: Fc  # w float32[20, 128], b float32[128]
    deep2: Fc  # w float32[128, 64], b float32[64]
    deep: Fc  # w float32[64, 1], b float32[1]


@jax.jit
def model(both, p: Dense):
    deep1 = ops.fc(both, *p.deep1, activation="gelu")
    deep2 = ops.fc(deep1, *p.deep2, activation="gelu")
    return ops.fc(deep2, *p.deep)


# the results then also wait for unused arguments: updates in place rely on it
@functools.partial(jax.jit, keep_unused=True)
def forward(both, p: Dense):
    s = ops.Saved()
    s.deep1, s.deep1_res = ops.fc.forward(both, *p.deep1, activation="gelu")
    s.deep2, s.deep2_res = ops.fc.forward(s.deep1, *p.deep2, activation="gelu")
    deep, s.deep_res = ops.fc.forward(s.deep2, *p.deep)
    return deep, s


# the results then also wait for unused arguments: updates in place rely on it
@functools.partial(jax.jit, keep_unused=True)
def backward(s, p: Dense, d_deep, both):
    d_deep2, *g_deep = ops.fc.backward(s.deep_res, s.deep2, p.deep.w, d_deep)
    d_deep1, *g_deep2 = ops.fc.backward(s.deep2_res, s.deep1, p.deep2.w, d_deep2)
    d_both, *g_deep1 = ops.fc.backward(s.deep1_res, both, p.deep1.w, d_deep1)
    g = Dense(deep1=Fc(*g_deep1), deep2=Fc(*g_deep2), deep=Fc(*g_deep))
    return d_both, g


def step(node: runtime.Node) -> None:
    p = node.receive(PARAMETERS_FROM_PS, Dense)
    (p,) = node.memcpy_h2d(p, to="gpu:0")
    (both,) = node.receive(ACTIVATIONS_FROM_WORKERS)  # rows concatenated
    (both,) = node.memcpy_h2d(both, to="gpu:0")
    deep, s = forward(both, p)
    (deep,) = node.memcpy_d2h(deep)
    node.send(ACTIVATIONS_TO_WORKERS, deep)  # each node gets its rows
    (d_deep,) = node.receive(ACTIVATION_GRADIENTS_FROM_WORKERS)  # rows concatenated
    (d_deep,) = node.memcpy_h2d(d_deep, to="gpu:0")
    d_both, g = backward(s, p, d_deep, both)
    g, d_both = node.memcpy_d2h(g, d_both)
    node.send(ACTIVATION_GRADIENTS_TO_WORKERS, d_both)  # each node gets its rows
    node.send(GRADIENTS_TO_PS, g)


def evaluate(node: runtime.Node) -> None:
    p = node.receive(EVAL_PARAMETERS_FROM_PS, Dense)
    (p,) = node.memcpy_h2d(p, to="gpu:0")
    for _ in node.batches():
        (both,) = node.receive(EVAL_ACTIVATIONS_FROM_WORKERS)  # rows concatenated
        (both,) = node.memcpy_h2d(both, to="gpu:0")
        deep = model(both, p)
        (deep,) = node.memcpy_d2h(deep)
        node.send(EVAL_ACTIVATIONS_TO_WORKERS, deep)  # each node gets its rows


def predict(node: runtime.Node) -> None:
    p = node.receive(PREDICT_PARAMETERS_FROM_PS, Dense)
    (p,) = node.memcpy_h2d(p, to="gpu:0")
    for _ in node.batches():
        (both,) = node.receive(PREDICT_ACTIVATIONS_FROM_WORKERS)  # rows concatenated
        (both,) = node.memcpy_h2d(both, to="gpu:0")
        deep = model(both, p)
        (deep,) = node.memcpy_d2h(deep)
        node.send(PREDICT_ACTIVATIONS_TO_WORKERS, deep)  # each node gets its rows


if __name__ == "__main__":
    runtime.main(__file__, step, evaluate, predict)
