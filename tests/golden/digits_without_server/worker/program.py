"""workers of digits_without_server: 2 workers.

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
GRADIENTS_TO_ALL_WORKERS = 1

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
    d_h1, d_logits_w, d_logits_b = ops.fc.backward(logits_res, h1, p.logits.w, d_logits)
    _, d_h1_w, d_h1_b = ops.fc.backward(h1_res, image, p.h1.w, d_h1)
    # this node has 1 / 2 of the rows: limits the joint norm of these gradients to 1.0 / 2
    d_h1_w, d_h1_b, d_logits_w, d_logits_b = ops.clip_part(
        d_h1_w, d_h1_b, d_logits_w, d_logits_b, global_norm=1.0, share=1 / 2
    )
    g = Dense(h1=Fc(d_h1_w, d_h1_b), logits=Fc(d_logits_w, d_logits_b))
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
    p = node.parameters("dense", Dense)
    loss, accuracy, g = forward_backward(image, p, label)
    node.record(loss=loss, accuracy=accuracy)
    node.push(GRADIENTS_TO_ALL_WORKERS, g)


def serve(node: runtime.Node) -> None:
    for message in node.messages():  # received since the last step
        if message.edge == GRADIENTS_TO_ALL_WORKERS:  # the sum of the received gradients
            node.update_from("dense", message)  # adam, cosine learning rate


def evaluate(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    for _ in node.batches():
        image, label = node.read("image", "label")
        loss, accuracy = eval_forward(image, p, label, count=node.count)
        node.record(loss=loss, accuracy=accuracy)


def predict(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    for _ in node.batches():
        image = node.read("image")
        probability = predict_forward(image, p)
        node.output(probability=probability)


if __name__ == "__main__":
    runtime.main(__file__, step, serve, evaluate, predict)
