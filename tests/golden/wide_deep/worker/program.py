"""workers of wide_deep: 2 workers, 1 heter, 1 server.

Compiled by placer; change the spec, not this file.
p: parameters; s: values saved for a later function; d_NAME: the gradient of NAME; NAME_res: the
values that NAME's backward needs; count: the rows of the batch on all nodes together, by which a
mean loss divides.
"""

import functools
from collections import namedtuple
from typing import NamedTuple

from placer import runtime  # first: before jax loads

import jax

from placer import ops

# Edges: the numbers of the messages between nodes, from plan.json.
PARAMETERS_FROM_PS = 1
ACTIVATIONS_TO_HETER = 3
ACTIVATIONS_FROM_HETER = 4
ACTIVATION_GRADIENTS_TO_HETER = 5
GRADIENTS_WIDE_TABLE_TO_PS = 6
ACTIVATION_GRADIENTS_FROM_HETER = 7
GRADIENTS_USERS_TABLE_TO_PS = 9
EVAL_PARAMETERS_FROM_PS = 10
EVAL_ACTIVATIONS_TO_HETER = 12
EVAL_ACTIVATIONS_FROM_HETER = 13
PREDICT_PARAMETERS_FROM_PS = 14
PREDICT_ACTIVATIONS_TO_HETER = 16
PREDICT_ACTIVATIONS_FROM_HETER = 17

Embedding = namedtuple("Embedding", "table")


class Dense(NamedTuple):  # table "dense"
    users: Embedding  # table float32[60, 8]
    items: Embedding  # table float32[40, 8]
    wide: Embedding  # table float32[2400, 1]


@jax.jit
def model(user, p: Dense, item, measured, cross):
    users = ops.embedding(user, p.users.table)
    items = ops.embedding(item, p.items.table)
    both = ops.concat(users, items, measured, axis=1)
    wide = ops.embedding(cross, p.wide.table)
    return both, wide


@jax.jit
def forward(user, p: Dense, item, measured, cross):
    s = ops.Saved()
    s_2 = ops.Saved()
    users, s.users_res = ops.embedding.forward(user, p.users.table)
    items, s.items_res = ops.embedding.forward(item, p.items.table)
    both, s.both_res = ops.concat.forward(users, items, measured, axis=1)
    s_2.wide, s_2.wide_res = ops.embedding.forward(cross, p.wide.table)
    return both, s, s_2


# the results then also wait for unused arguments: updates in place rely on it
@functools.partial(jax.jit, keep_unused=True)
def forward_backward(s_2, deep, click, cross):
    logit, logit_res = ops.add.forward(s_2.wide, deep)
    loss, loss_res = ops.sigmoid_cross_entropy.forward(logit, click, count=512)
    chance = ops.sigmoid(logit)
    auc = ops.auc(chance, click)
    d_logit, _ = ops.sigmoid_cross_entropy.backward(loss_res, logit, 1.0)
    d_wide, d_deep = ops.add.backward(logit_res, d_logit)
    _, d_wide_table = ops.embedding.backward(s_2.wide_res, cross, d_wide)
    return loss, auc, d_deep, d_wide_table


# the results then also wait for unused arguments: updates in place rely on it
@functools.partial(jax.jit, keep_unused=True)
def backward(s, d_both, item, user):
    d_users, d_items, _ = ops.concat.backward(s.both_res, d_both)
    _, d_items_table = ops.embedding.backward(s.items_res, item, d_items)
    _, d_users_table = ops.embedding.backward(s.users_res, user, d_users)
    return d_items_table, d_users_table


@functools.partial(jax.jit, static_argnames="count")
def eval_forward_auc(wide, deep, click, *, count):
    logit = ops.add(wide, deep)
    loss = ops.sigmoid_cross_entropy(logit, click, count=count)
    chance = ops.sigmoid(logit)
    auc = ops.auc(chance, click)
    return loss, auc


@jax.jit
def predict_forward_chance(wide, deep):
    logit = ops.add(wide, deep)
    return ops.sigmoid(logit)


def step(node: runtime.Node) -> None:
    user, item, measured, cross, click = node.read("user", "item", "measured", "cross", "click")
    p = node.receive(PARAMETERS_FROM_PS, Dense)
    both, s, s_2 = forward(user, p, item, measured, cross)
    (deep,) = node.send_and_recv(ACTIVATIONS_TO_HETER, both, back=ACTIVATIONS_FROM_HETER)
    loss, auc, d_deep, d_wide_table = forward_backward(s_2, deep, click, cross)
    node.record(loss=loss, auc=auc)
    node.send(GRADIENTS_WIDE_TABLE_TO_PS, d_wide_table)
    (d_both,) = node.send_and_recv(
        ACTIVATION_GRADIENTS_TO_HETER, d_deep, back=ACTIVATION_GRADIENTS_FROM_HETER
    )
    d_items_table, d_users_table = backward(s, d_both, item, user)
    node.send(GRADIENTS_USERS_TABLE_TO_PS, d_users_table, d_items_table)


def evaluate(node: runtime.Node) -> None:
    p = node.receive(EVAL_PARAMETERS_FROM_PS, Dense)
    for _ in node.batches():
        user, item, measured, cross, click = node.read("user", "item", "measured", "cross", "click")
        both, wide = model(user, p, item, measured, cross)
        (deep,) = node.send_and_recv(
            EVAL_ACTIVATIONS_TO_HETER, both, back=EVAL_ACTIVATIONS_FROM_HETER
        )
        loss, auc = eval_forward_auc(wide, deep, click, count=node.count)
        node.record(loss=loss, auc=auc)


def predict(node: runtime.Node) -> None:
    p = node.receive(PREDICT_PARAMETERS_FROM_PS, Dense)
    for _ in node.batches():
        user, item, measured, cross = node.read("user", "item", "measured", "cross")
        both, wide = model(user, p, item, measured, cross)
        (deep,) = node.send_and_recv(
            PREDICT_ACTIVATIONS_TO_HETER, both, back=PREDICT_ACTIVATIONS_FROM_HETER
        )
        chance = predict_forward_chance(wide, deep)
        node.output(chance=chance)


if __name__ == "__main__":
    runtime.main(__file__, step, evaluate, predict)
