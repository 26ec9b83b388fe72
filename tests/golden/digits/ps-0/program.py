"""ps:0 of digits: 2 workers, 2 servers.

Compiled by placer; change the spec, not this file.
p: parameters; g_sum: gradients summed over nodes.
"""

from collections import namedtuple
from typing import NamedTuple

from placer import runtime  # first: before jax loads

import jax

from placer import ops

# Edges: the numbers of the messages between nodes, from plan.json.
PARAMETERS_TO_WORKERS = 1
GRADIENTS_FROM_WORKERS = 3
SQUARED_GRADIENT_NORMS_FROM_PS1 = 5
CLIP_SCALES_TO_PS1 = 6
EVAL_PARAMETERS_TO_WORKERS = 7
PREDICT_PARAMETERS_TO_WORKERS = 9

Fc = namedtuple("Fc", "w")


class Dense(NamedTuple):  # table "dense"
    h1: Fc  # w float32[64, 128]


@jax.jit
def squared_norm(g_sum: Dense):
    return ops.sum_of_squares(g_sum.h1.w)


@jax.jit
def compute_clip_scale(clip_square_0, clip_square_1):
    return ops.clip_scale(clip_square_0, clip_square_1, max_norm=1.0)


def step(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    node.send(PARAMETERS_TO_WORKERS, p)
    g_sum = node.receive(GRADIENTS_FROM_WORKERS, Dense)  # adds all workers' values in node order
    clip_square_0 = squared_norm(g_sum)
    (clip_square_1,) = node.receive(SQUARED_GRADIENT_NORMS_FROM_PS1)
    clip_scale = compute_clip_scale(clip_square_0, clip_square_1)
    node.update("dense", g_sum, scale=clip_scale)  # adam, cosine learning rate
    node.send(CLIP_SCALES_TO_PS1, clip_scale)


def evaluate(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    node.send(EVAL_PARAMETERS_TO_WORKERS, p)


def predict(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    node.send(PREDICT_PARAMETERS_TO_WORKERS, p)


if __name__ == "__main__":
    runtime.main(__file__, step, evaluate, predict)
