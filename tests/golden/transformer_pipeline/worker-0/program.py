"""worker:0 of transformer_pipeline: 2 workers.

Compiled by placer; change the spec, not this file.
p: parameters; g: their gradients; g_total: gradients summed over microbatches; s: values saved for
a later function; d_NAME: the gradient of NAME; d_NAME_from_OP: the term of d_NAME from OP, which
uses NAME; NAME_res: the values that NAME's backward needs.
"""

import functools
from collections import namedtuple
from typing import NamedTuple

from placer import runtime  # first: before jax loads

import jax

from placer import ops

# Edges: the numbers of the messages between nodes, from plan.json.
ACTIVATIONS_TO_WORKER1 = 1
ACTIVATION_GRADIENTS_FROM_WORKER1 = 2
SQUARED_GRADIENT_NORMS_FROM_WORKER1 = 3
CLIP_SCALES_TO_WORKER1 = 4
EVAL_ACTIVATIONS_TO_WORKER1 = 5
PREDICT_ACTIVATIONS_TO_WORKER1 = 6

Embedding = namedtuple("Embedding", "table")
PositionEmbedding = namedtuple("PositionEmbedding", "table")
LayerNorm = namedtuple("LayerNorm", "scale bias")
MultiHeadAttention = namedtuple("MultiHeadAttention", "w_query w_key w_value w_output")
Fc = namedtuple("Fc", "w b")


class Dense(NamedTuple):  # table "dense"
    characters: Embedding  # table float32[15, 64]
    x: PositionEmbedding  # table float32[48, 64]
    norm1: LayerNorm  # scale, bias float32[64]
    seen1: MultiHeadAttention  # w_query, w_key, w_value, w_output float32[64, 64]
    norm2: LayerNorm  # scale, bias float32[64]
    wide1: Fc  # w float32[64, 256], b float32[256]
    narrow1: Fc  # w float32[256, 64], b float32[64]


@jax.jit
def model(text, p: Dense):
    characters = ops.embedding(text, p.characters.table)
    x = ops.position_embedding(characters, p.x.table)
    norm1 = ops.layer_norm(x, *p.norm1)
    seen1 = ops.multi_head_attention(norm1, *p.seen1, heads=4, causal=True)
    x1 = ops.add(x, seen1)
    norm2 = ops.layer_norm(x1, *p.norm2)
    wide1 = ops.fc(norm2, *p.wide1, activation="gelu")
    narrow1 = ops.fc(wide1, *p.narrow1)
    return ops.add(x1, narrow1)


@jax.jit
def forward(text, p: Dense):
    s = ops.Saved()
    characters, s.characters_res = ops.embedding.forward(text, p.characters.table)
    s.x, s.x_res = ops.position_embedding.forward(characters, p.x.table)
    s.norm1, s.norm1_res = ops.layer_norm.forward(s.x, *p.norm1)
    seen1, s.seen1_res = ops.multi_head_attention.forward(s.norm1, *p.seen1, heads=4, causal=True)
    s.x1, s.x1_res = ops.add.forward(s.x, seen1)
    s.norm2, s.norm2_res = ops.layer_norm.forward(s.x1, *p.norm2)
    s.wide1, s.wide1_res = ops.fc.forward(s.norm2, *p.wide1, activation="gelu")
    narrow1, s.narrow1_res = ops.fc.forward(s.wide1, *p.narrow1)
    x2, s.x2_res = ops.add.forward(s.x1, narrow1)
    return x2, s


# the results then also wait for unused arguments: updates in place rely on it
@functools.partial(jax.jit, keep_unused=True)
def backward(d_x2, s, p: Dense, text):
    d_x1_from_x2, d_narrow1 = ops.add.backward(s.x2_res, d_x2)
    d_wide1, *g_narrow1 = ops.fc.backward(s.narrow1_res, s.wide1, p.narrow1.w, d_narrow1)
    d_norm2, *g_wide1 = ops.fc.backward(s.wide1_res, s.norm2, p.wide1.w, d_wide1)
    d_x1_from_norm2, *g_norm2 = ops.layer_norm.backward(s.norm2_res, s.x1, p.norm2.scale, d_norm2)
    d_x1 = ops.accumulate(d_x1_from_norm2, d_x1_from_x2)
    d_x_from_x1, d_seen1 = ops.add.backward(s.x1_res, d_x1)
    d_norm1, *g_seen1 = ops.multi_head_attention.backward(s.seen1_res, s.norm1, *p.seen1, d_seen1)
    d_x_from_norm1, *g_norm1 = ops.layer_norm.backward(s.norm1_res, s.x, p.norm1.scale, d_norm1)
    d_x = ops.accumulate(d_x_from_norm1, d_x_from_x1)
    d_characters, d_x_table = ops.position_embedding.backward(s.x_res, d_x)
    _, d_characters_table = ops.embedding.backward(s.characters_res, text, d_characters)
    return Dense(
        characters=Embedding(d_characters_table),
        x=PositionEmbedding(d_x_table),
        norm1=LayerNorm(*g_norm1),
        seen1=MultiHeadAttention(*g_seen1),
        norm2=LayerNorm(*g_norm2),
        wide1=Fc(*g_wide1),
        narrow1=Fc(*g_narrow1),
    )


@jax.jit
def compute_clip_scale(g_total: Dense, clip_square_1):
    clip_square_0 = ops.sum_of_squares(
        g_total.characters.table,
        g_total.x.table,
        *g_total.norm1,
        *g_total.seen1,
        *g_total.norm2,
        *g_total.wide1,
        *g_total.narrow1,
    )
    return ops.clip_scale(clip_square_0, clip_square_1, max_norm=1.0)


def step(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    # The tasks in order, each with its microbatch: forward.0, forward.1, backward.0, forward.2,
    # backward.1, forward.3, backward.2, forward.4, backward.3, forward.5, backward.4, forward.6,
    # backward.5, forward.7, backward.6, backward.7
    for task in node.microbatches():  # calls of node in the loop use the microbatch of the task
        if task == "forward":
            text = node.read("text")
            x2, s = forward(text, p)
            node.send(ACTIVATIONS_TO_WORKER1, x2)
            node.keep_values(s=s, text=text)
            del text, x2, s
        elif task == "backward":
            s, text = node.pop_values("s", "text")
            (d_x2,) = node.receive(ACTIVATION_GRADIENTS_FROM_WORKER1)
            g = backward(d_x2, s, p, text)
            node.sum_microbatches(g=g)
            del s, text, d_x2, g
    (g_total,) = node.microbatch_totals("g")
    (clip_square_1,) = node.receive(SQUARED_GRADIENT_NORMS_FROM_WORKER1)
    clip_scale = compute_clip_scale(g_total, clip_square_1)
    node.update("dense", g_total, scale=clip_scale)  # adam, warmup and cosine learning rate
    node.send(CLIP_SCALES_TO_WORKER1, clip_scale)


def evaluate(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    for _ in node.batches():
        text = node.read("text")
        x2 = model(text, p)
        node.send(EVAL_ACTIVATIONS_TO_WORKER1, x2)


def predict(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    for _ in node.batches():
        text = node.read("text")
        x2 = model(text, p)
        node.send(PREDICT_ACTIVATIONS_TO_WORKER1, x2)


if __name__ == "__main__":
    runtime.main(__file__, step, evaluate, predict)
