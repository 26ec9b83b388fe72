"""heter:0 of wide_deep: 2 workers, 1 heter, 1 server. Compiled by placer; change the spec, not this file.

p: parameters; g: their gradients; s: values saved for a later function; d_x: the gradient of x.
"""

import functools
from collections import namedtuple
from typing import NamedTuple

from placer import runtime  # first: before jax loads

import jax

from placer import ops

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


@functools.partial(jax.jit, keep_unused=True)
def forward(both, p: Dense):
    s = ops.Saved()
    s.deep1, s.deep1_res = ops.fc.forward(both, *p.deep1, activation="gelu")
    s.deep2, s.deep2_res = ops.fc.forward(s.deep1, *p.deep2, activation="gelu")
    deep, s.deep_res = ops.fc.forward(s.deep2, *p.deep)
    return deep, s


@functools.partial(jax.jit, keep_unused=True)
def backward(s, p: Dense, d_deep, both):
    d_deep2, *g_deep = ops.fc.backward(s.deep_res, s.deep2, p.deep.w, d_deep)
    d_deep1, *g_deep2 = ops.fc.backward(s.deep2_res, s.deep1, p.deep2.w, d_deep2)
    d_both, *g_deep1 = ops.fc.backward(s.deep1_res, both, p.deep1.w, d_deep1)
    g = Dense(deep1=Fc(*g_deep1), deep2=Fc(*g_deep2), deep=Fc(*g_deep))
    return d_both, g


def step(node: runtime.Node) -> None:
    p = node.receive(2, Dense)  # parameters from ps
    (p,) = node.memcpy_h2d(p, to="gpu:0")
    (both,) = node.receive(3)  # activations from worker, rows concatenated
    (both,) = node.memcpy_h2d(both, to="gpu:0")
    deep, s = forward(both, p)
    (deep,) = node.memcpy_d2h(deep)
    node.send(4, deep)  # activations to worker
    (d_deep,) = node.receive(5)  # gradients from worker, rows concatenated
    (d_deep,) = node.memcpy_h2d(d_deep, to="gpu:0")
    d_both, g = backward(s, p, d_deep, both)
    g, d_both = node.memcpy_d2h(g, d_both)
    node.send(7, d_both)  # gradients to worker
    node.send(8, g)  # gradients to ps


def evaluate(node: runtime.Node) -> None:
    p = node.receive(11, Dense)  # parameters from ps
    (p,) = node.memcpy_h2d(p, to="gpu:0")
    for _ in node.batches():
        (both,) = node.receive(12)  # activations from worker, rows concatenated
        (both,) = node.memcpy_h2d(both, to="gpu:0")
        deep = model(both, p)
        (deep,) = node.memcpy_d2h(deep)
        node.send(13, deep)  # activations to worker


def predict(node: runtime.Node) -> None:
    p = node.receive(15, Dense)  # parameters from ps
    (p,) = node.memcpy_h2d(p, to="gpu:0")
    for _ in node.batches():
        (both,) = node.receive(16)  # activations from worker, rows concatenated
        (both,) = node.memcpy_h2d(both, to="gpu:0")
        deep = model(both, p)
        (deep,) = node.memcpy_d2h(deep)
        node.send(17, deep)  # activations to worker


if __name__ == "__main__":
    runtime.main(__file__, step, evaluate, predict)
