"""worker:1 of transformer_pipeline: 2 workers.

Compiled by placer; change the spec, not this file.
p: parameters; g: their gradients; g_total: gradients summed over microbatches; d_NAME: the gradient
of NAME; d_NAME_from_OP: the term of d_NAME from OP, which uses NAME; NAME_res: the values that
NAME's backward needs; count: the rows of the batch on all nodes together, by which a mean loss
divides.
"""

import functools
from collections import namedtuple
from typing import NamedTuple

from placer import runtime  # first: before jax loads

import jax

from placer import ops

# Edges: the numbers of the messages between nodes, from plan.json.
ACTIVATIONS_FROM_WORKER0 = 1
ACTIVATION_GRADIENTS_TO_WORKER0 = 2
SQUARED_GRADIENT_NORMS_TO_WORKER0 = 3
CLIP_SCALES_FROM_WORKER0 = 4
EVAL_ACTIVATIONS_FROM_WORKER0 = 5
PREDICT_ACTIVATIONS_FROM_WORKER0 = 6

LayerNorm = namedtuple("LayerNorm", "scale bias")
MultiHeadAttention = namedtuple("MultiHeadAttention", "w_query w_key w_value w_output")
Fc = namedtuple("Fc", "w b")


class Dense(NamedTuple):  # table "dense"
    norm3: LayerNorm  # scale, bias float32[64]
    seen2: MultiHeadAttention  # w_query, w_key, w_value, w_output float32[64, 64]
    norm4: LayerNorm  # scale, bias float32[64]
    wide2: Fc  # w float32[64, 256], b float32[256]
    narrow2: Fc  # w float32[256, 64], b float32[64]
    norm5: LayerNorm  # scale, bias float32[64]
    logits: Fc  # w float32[64, 15], b float32[15]


def model(x2, p: Dense):
    norm3 = ops.layer_norm(x2, *p.norm3)
    seen2 = ops.multi_head_attention(norm3, *p.seen2, heads=4, causal=True)
    x3 = ops.add(x2, seen2)
    norm4 = ops.layer_norm(x3, *p.norm4)
    wide2 = ops.fc(norm4, *p.wide2, activation="gelu")
    narrow2 = ops.fc(wide2, *p.narrow2)
    x4 = ops.add(x3, narrow2)
    norm5 = ops.layer_norm(x4, *p.norm5)
    return ops.fc(norm5, *p.logits)


# the results then also wait for unused arguments: updates in place rely on it
@functools.partial(jax.jit, keep_unused=True)
def forward_backward(x2, p: Dense, next_):
    norm3, norm3_res = ops.layer_norm.forward(x2, *p.norm3)
    seen2, seen2_res = ops.multi_head_attention.forward(norm3, *p.seen2, heads=4, causal=True)
    x3, x3_res = ops.add.forward(x2, seen2)
    norm4, norm4_res = ops.layer_norm.forward(x3, *p.norm4)
    wide2, wide2_res = ops.fc.forward(norm4, *p.wide2, activation="gelu")
    narrow2, narrow2_res = ops.fc.forward(wide2, *p.narrow2)
    x4, x4_res = ops.add.forward(x3, narrow2)
    norm5, norm5_res = ops.layer_norm.forward(x4, *p.norm5)
    logits, logits_res = ops.fc.forward(norm5, *p.logits)
    loss, loss_res = ops.softmax_cross_entropy.forward(logits, next_, count=64)
    accuracy = ops.accuracy(logits, next_)
    d_logits, _ = ops.softmax_cross_entropy.backward(loss_res, next_, 1.0)
    d_norm5, *g_logits = ops.fc.backward(logits_res, norm5, p.logits.w, d_logits)
    d_x4, *g_norm5 = ops.layer_norm.backward(norm5_res, x4, p.norm5.scale, d_norm5)
    d_x3_from_x4, d_narrow2 = ops.add.backward(x4_res, d_x4)
    d_wide2, *g_narrow2 = ops.fc.backward(narrow2_res, wide2, p.narrow2.w, d_narrow2)
    d_norm4, *g_wide2 = ops.fc.backward(wide2_res, norm4, p.wide2.w, d_wide2)
    d_x3_from_norm4, *g_norm4 = ops.layer_norm.backward(norm4_res, x3, p.norm4.scale, d_norm4)
    d_x3 = ops.accumulate(d_x3_from_norm4, d_x3_from_x4)
    d_x2_from_x3, d_seen2 = ops.add.backward(x3_res, d_x3)
    d_norm3, *g_seen2 = ops.multi_head_attention.backward(seen2_res, norm3, *p.seen2, d_seen2)
    d_x2_from_norm3, *g_norm3 = ops.layer_norm.backward(norm3_res, x2, p.norm3.scale, d_norm3)
    d_x2 = ops.accumulate(d_x2_from_norm3, d_x2_from_x3)
    g = Dense(
        norm3=LayerNorm(*g_norm3),
        seen2=MultiHeadAttention(*g_seen2),
        norm4=LayerNorm(*g_norm4),
        wide2=Fc(*g_wide2),
        narrow2=Fc(*g_narrow2),
        norm5=LayerNorm(*g_norm5),
        logits=Fc(*g_logits),
    )
    return loss, accuracy, d_x2, g


@jax.jit
def squared_norm(g_total: Dense):
    return ops.sum_of_squares(
        *g_total.norm3,
        *g_total.seen2,
        *g_total.norm4,
        *g_total.wide2,
        *g_total.narrow2,
        *g_total.norm5,
        *g_total.logits,
    )


@functools.partial(jax.jit, static_argnames="count")
def eval_forward(x2, p: Dense, next_, *, count):
    logits = model(x2, p)
    loss = ops.softmax_cross_entropy(logits, next_, count=count)
    accuracy = ops.accuracy(logits, next_)
    return loss, accuracy


@jax.jit
def predict_forward(x2, p: Dense):
    logits = model(x2, p)
    return ops.softmax(logits)


def step(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    # The tasks in order, each with its microbatch: forward_backward.0, forward_backward.1,
    # forward_backward.2, forward_backward.3, forward_backward.4, forward_backward.5,
    # forward_backward.6, forward_backward.7
    for task in node.microbatches():  # calls of node in the loop use the microbatch of the task
        if task == "forward_backward":
            next_ = node.read("next")
            (x2,) = node.receive(ACTIVATIONS_FROM_WORKER0)
            loss, accuracy, d_x2, g = forward_backward(x2, p, next_)
            node.sum_microbatches(loss=loss, accuracy=accuracy, g=g)
            node.send(ACTIVATION_GRADIENTS_TO_WORKER0, d_x2)
            del next_, x2, loss, accuracy, d_x2, g
    g_total, loss_total, accuracy_total = node.microbatch_totals("g", "loss", "accuracy")
    clip_square_1 = squared_norm(g_total)
    node.record(loss=loss_total, accuracy=accuracy_total)
    node.send(SQUARED_GRADIENT_NORMS_TO_WORKER0, clip_square_1)
    (clip_scale,) = node.receive(CLIP_SCALES_FROM_WORKER0)
    node.update("dense", g_total, scale=clip_scale)  # adam, warmup and cosine learning rate


def evaluate(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    for _ in node.batches():
        next_ = node.read("next")
        (x2,) = node.receive(EVAL_ACTIVATIONS_FROM_WORKER0)
        loss, accuracy = eval_forward(x2, p, next_, count=node.count)
        node.record(loss=loss, accuracy=accuracy)


def predict(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    for _ in node.batches():
        (x2,) = node.receive(PREDICT_ACTIVATIONS_FROM_WORKER0)
        probability = predict_forward(x2, p)
        node.output(probability=probability)


if __name__ == "__main__":
    runtime.main(__file__, step, evaluate, predict)
