"""ps:1 of digits: 2 workers, 2 servers.

Compiled by placer; change the spec, not this file.
p: parameters; g_sum: gradients summed over nodes.
"""

from collections import namedtuple
from typing import NamedTuple

from placer import runtime  # first: before jax loads

import jax

from placer import ops

# Edges: the numbers of the messages between nodes, from plan.json.
PARAMETERS_TO_WORKERS = 2
GRADIENTS_FROM_WORKERS = 4
SQUARED_GRADIENT_NORMS_TO_PS0 = 5
CLIP_SCALES_FROM_PS0 = 6
EVAL_PARAMETERS_TO_WORKERS = 8
PREDICT_PARAMETERS_TO_WORKERS = 10

FcB = namedtuple("FcB", "b")
Fc = namedtuple("Fc", "w b")


class Dense(NamedTuple):  # table "dense"
    h1: FcB  # b float32[128]
    logits: Fc  # w float32[128, 10], b float32[10]


@jax.jit
def squared_norm(g_sum: Dense):
    return ops.sum_of_squares(g_sum.h1.b, *g_sum.logits)


def step(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    node.send(PARAMETERS_TO_WORKERS, p)
    g_sum = node.receive(GRADIENTS_FROM_WORKERS, Dense)  # adds all workers' values in node order
    clip_square_1 = squared_norm(g_sum)
    node.send(SQUARED_GRADIENT_NORMS_TO_PS0, clip_square_1)
    (clip_scale,) = node.receive(CLIP_SCALES_FROM_PS0)
    node.update("dense", g_sum, scale=clip_scale)  # adam, cosine learning rate


def evaluate(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    node.send(EVAL_PARAMETERS_TO_WORKERS, p)


def predict(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    node.send(PREDICT_PARAMETERS_TO_WORKERS, p)


if __name__ == "__main__":
    runtime.main(__file__, step, evaluate, predict)
