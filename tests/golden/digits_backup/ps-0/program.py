"""ps:0 of digits_backup: 4 workers, 2 servers. Compiled by placer; change the spec, not this file.

p: parameters; g: their gradients.
"""

import functools
from collections import namedtuple
from typing import NamedTuple

from placer import runtime  # first: before jax loads

import jax

from placer import ops

Fc = namedtuple("Fc", "w")


class Dense(NamedTuple):  # table "dense"
    h1: Fc  # w float32[64, 128]


@functools.partial(jax.jit, keep_unused=True)
def square_norms(g: Dense):
    return ops.sum_of_squares(g.h1.w)


@functools.partial(jax.jit, keep_unused=True)
def clip(clip_square_0, clip_square_1):
    return ops.clip_scale(clip_square_0, clip_square_1, max_norm=1.0)


def step(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    node.offer(1, p)  # parameters to worker
    g = node.sum_of_first(3, Dense)  # gradients of the first 3 of 4 workers, summed in node order
    clip_square_0 = square_norms(g)
    (clip_square_1,) = node.receive(5)  # norms from ps:1
    clip_scale = clip(clip_square_0, clip_square_1)
    node.update("dense", g, scale=clip_scale)  # adam, cosine learning rate
    node.send(6, clip_scale)  # update scales to ps:1


def evaluate(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    node.send(7, p)  # parameters to worker


def predict(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    node.send(9, p)  # parameters to worker


if __name__ == "__main__":
    runtime.main(__file__, step, evaluate, predict)
