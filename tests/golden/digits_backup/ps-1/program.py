"""ps:1 of digits_backup: 4 workers, 2 servers. Compiled by placer; change the spec, not this file.

p: parameters; g: their gradients.
"""

import functools
from collections import namedtuple
from typing import NamedTuple

from placer import runtime  # first: before jax loads

import jax

from placer import ops

FcB = namedtuple("FcB", "b")
Fc = namedtuple("Fc", "w b")


class Dense(NamedTuple):  # table "dense"
    h1: FcB  # b float32[128]
    logits: Fc  # w float32[128, 10], b float32[10]


@functools.partial(jax.jit, keep_unused=True)
def square_norms(g: Dense):
    return ops.sum_of_squares(g.h1.b, *g.logits)


def step(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    node.offer(2, p)  # parameters to worker
    g = node.sum_of_first(4, Dense)  # gradients of the first 3 of 4 workers, summed in node order
    clip_square_1 = square_norms(g)
    node.send(5, clip_square_1)  # norms to ps:0
    (clip_scale,) = node.receive(6)  # update scales from ps:0
    node.update("dense", g, scale=clip_scale)  # adam, cosine learning rate


def evaluate(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    node.send(8, p)  # parameters to worker


def predict(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    node.send(10, p)  # parameters to worker


if __name__ == "__main__":
    runtime.main(__file__, step, evaluate, predict)
