"""workers of digits: 2 workers, 2 servers.

Compiled by placer; change the spec, not this file.
p: parameters; g: their gradients; d_NAME: the gradient of NAME; NAME_res: the values that NAME's
backward needs; count: the rows of the batch on all nodes together, by which a mean loss divides.
"""

import functools
from collections import namedtuple
from typing import NamedTuple

from placer import runtime  # first: before jax loads

import jax

from placer import ops

# Edges: the numbers of the messages between nodes, from plan.json.
PARAMETERS_FROM_PS0 = 1
PARAMETERS_FROM_PS1 = 2
GRADIENTS_TO_PS0 = 3
GRADIENTS_TO_PS1 = 4
EVAL_PARAMETERS_FROM_PS0 = 7
EVAL_PARAMETERS_FROM_PS1 = 8
PREDICT_PARAMETERS_FROM_PS0 = 9
PREDICT_PARAMETERS_FROM_PS1 = 10

Fc = namedtuple("Fc", "w b")


class Dense(NamedTuple):  # table "dense"
    h1: Fc  # w float32[64, 128], b float32[128]
    logits: Fc  # w float32[128, 10], b float32[10]


def model(image, p: Dense):
    h1 = ops.fc(image, *p.h1, activation="relu")
    return ops.fc(h1, *p.logits)


@jax.jit
def forward_backward(image, p: Dense, label):
    h1, h1_res = ops.fc.forward(image, *p.h1, activation="relu")
    logits, logits_res = ops.fc.forward(h1, *p.logits)
    loss, loss_res = ops.softmax_cross_entropy.forward(logits, label, count=128)
    accuracy = ops.accuracy(logits, label)
    d_logits, _ = ops.softmax_cross_entropy.backward(loss_res, label, 1.0)
    d_h1, *g_logits = ops.fc.backward(logits_res, h1, p.logits.w, d_logits)
    _, *g_h1 = ops.fc.backward(h1_res, image, p.h1.w, d_h1)
    g = Dense(h1=Fc(*g_h1), logits=Fc(*g_logits))
    return loss, accuracy, g


@functools.partial(jax.jit, static_argnames="count")
def eval_forward(image, p: Dense, label, *, count):
    logits = model(image, p)
    loss = ops.softmax_cross_entropy(logits, label, count=count)
    accuracy = ops.accuracy(logits, label)
    return loss, accuracy


@jax.jit
def predict_forward(image, p: Dense):
    logits = model(image, p)
    return ops.softmax(logits)


def step(node: runtime.Node) -> None:
    image, label = node.read("image", "label")
    (h1_w,) = node.receive(PARAMETERS_FROM_PS0)
    h1_b, logits_w, logits_b = node.receive(PARAMETERS_FROM_PS1)
    p = Dense(h1=Fc(h1_w, h1_b), logits=Fc(logits_w, logits_b))
    loss, accuracy, g = forward_backward(image, p, label)
    node.record(loss=loss, accuracy=accuracy)
    node.send(GRADIENTS_TO_PS0, g.h1.w)
    node.send(GRADIENTS_TO_PS1, g.h1.b, *g.logits)


def evaluate(node: runtime.Node) -> None:
    (h1_w,) = node.receive(EVAL_PARAMETERS_FROM_PS0)
    h1_b, logits_w, logits_b = node.receive(EVAL_PARAMETERS_FROM_PS1)
    p = Dense(h1=Fc(h1_w, h1_b), logits=Fc(logits_w, logits_b))
    for _ in node.batches():
        image, label = node.read("image", "label")
        loss, accuracy = eval_forward(image, p, label, count=node.count)
        node.record(loss=loss, accuracy=accuracy)


def predict(node: runtime.Node) -> None:
    (h1_w,) = node.receive(PREDICT_PARAMETERS_FROM_PS0)
    h1_b, logits_w, logits_b = node.receive(PREDICT_PARAMETERS_FROM_PS1)
    p = Dense(h1=Fc(h1_w, h1_b), logits=Fc(logits_w, logits_b))
    for _ in node.batches():
        image = node.read("image")
        probability = predict_forward(image, p)
        node.output(probability=probability)


if __name__ == "__main__":
    runtime.main(__file__, step, evaluate, predict)
