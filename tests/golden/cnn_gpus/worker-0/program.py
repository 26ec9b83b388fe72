"""worker:0 of cnn_gpus: 1 worker.

Compiled by placer; change the spec, not this file.
p: parameters; g: their gradients; d_NAME: the gradient of NAME; d_NAME_from_OP: the term of d_NAME
from OP, which uses NAME; NAME_res: the values that NAME's backward needs; count: the rows of the
batch on all nodes together, by which a mean loss divides.
"""

import functools
from collections import namedtuple
from typing import NamedTuple

from placer import runtime  # first: before jax loads

import jax

from placer import ops

# Random streams: each seeds random numbers, with the step and the row.
THINNED_STREAM = 4556203260501262956

Conv2d = namedtuple("Conv2d", "w")
BatchNorm = namedtuple("BatchNorm", "scale bias")
Fc = namedtuple("Fc", "w b")
BatchNormState = namedtuple("BatchNormState", "running_mean running_variance")


class Dense(NamedTuple):  # table "dense"
    conv1: Conv2d  # w float32[3, 3, 1, 32]
    norm1: BatchNorm  # scale, bias float32[32]
    conv2: Conv2d  # w float32[3, 3, 32, 64]
    norm2: BatchNorm  # scale, bias float32[64]
    logits: Fc  # w float32[1024, 10], b float32[10]


class State(NamedTuple):  # table "state_gpu:0-7"
    norm1: BatchNormState  # running_mean, running_variance float32[32]
    norm2: BatchNormState  # running_mean, running_variance float32[64]


def model(image, p: Dense, state: State):
    pixels = ops.scale(image, factor=0.0625)
    picture = ops.reshape(pixels, shape=("batch", 8, 8, 1))
    conv1 = ops.conv2d(picture, p.conv1.w)
    norm1 = ops.normalize(conv1, *state.norm1, *p.norm1, epsilon=1e-05)
    h1 = ops.relu(norm1)
    conv2 = ops.conv2d(h1, p.conv2.w)
    norm2 = ops.normalize(conv2, *state.norm2, *p.norm2, epsilon=1e-05)
    h2 = ops.relu(norm2)
    flat = ops.flatten(h2)
    return ops.fc(flat, *p.logits)


@jax.jit
def forward_backward(image, p: Dense, state: State, batch_position, label):
    pixels = ops.scale(image, factor=0.0625)
    picture = ops.reshape(pixels, shape=("batch", 8, 8, 1))
    conv1, conv1_res = ops.conv2d.forward(picture, p.conv1.w)
    norm1_mean, norm1_mean_res = ops.reduce_mean.forward(conv1, axis=(0, 1, 2), count=64)
    norm1_variance, norm1_variance_res = ops.variance.forward(conv1, norm1_mean, count=64)
    norm1, norm1_res = ops.normalize.forward(
        conv1, norm1_mean, norm1_variance, *p.norm1, epsilon=1e-05
    )
    norm1_running_mean_new = ops.moving_average(state.norm1.running_mean, norm1_mean, momentum=0.9)
    norm1_running_variance_new = ops.moving_average(
        state.norm1.running_variance, norm1_variance, momentum=0.9
    )
    h1, h1_res = ops.relu.forward(norm1)
    conv2, conv2_res = ops.conv2d.forward(h1, p.conv2.w)
    norm2_mean, norm2_mean_res = ops.reduce_mean.forward(conv2, axis=(0, 1, 2), count=64)
    norm2_variance, norm2_variance_res = ops.variance.forward(conv2, norm2_mean, count=64)
    norm2, norm2_res = ops.normalize.forward(
        conv2, norm2_mean, norm2_variance, *p.norm2, epsilon=1e-05
    )
    norm2_running_mean_new = ops.moving_average(state.norm2.running_mean, norm2_mean, momentum=0.9)
    norm2_running_variance_new = ops.moving_average(
        state.norm2.running_variance, norm2_variance, momentum=0.9
    )
    h2, h2_res = ops.relu.forward(norm2)
    flat, flat_res = ops.flatten.forward(h2)
    thinned_dropped, thinned_dropped_res = ops.drop.forward(
        flat, batch_position, rate=0.4, stream=THINNED_STREAM
    )
    logits, logits_res = ops.fc.forward(thinned_dropped, *p.logits)
    loss, loss_res = ops.softmax_cross_entropy.forward(logits, label, count=64)
    accuracy = ops.accuracy(logits, label)
    d_logits, _ = ops.softmax_cross_entropy.backward(loss_res, label, 1.0)
    d_thinned, *g_logits = ops.fc.backward(logits_res, thinned_dropped, p.logits.w, d_logits)
    d_flat, _ = ops.drop.backward(thinned_dropped_res, d_thinned)
    (d_h2,) = ops.flatten.backward(flat_res, d_flat)
    (d_norm2,) = ops.relu.backward(h2_res, d_h2)
    d_conv2_from_norm2, d_norm2_used_mean, d_norm2_used_variance, *g_norm2 = ops.normalize.backward(
        norm2_res, conv2, norm2_mean, norm2_variance, p.norm2.scale, d_norm2
    )
    d_conv2_from_norm2_variance, _ = ops.variance.backward(
        norm2_variance_res, conv2, norm2_mean, d_norm2_used_variance
    )
    (d_conv2_from_norm2_mean,) = ops.reduce_mean.backward(norm2_mean_res, d_norm2_used_mean)
    d_conv2 = ops.accumulate(
        d_conv2_from_norm2_mean, d_conv2_from_norm2_variance, d_conv2_from_norm2
    )
    d_h1, d_conv2_w = ops.conv2d.backward(conv2_res, h1, p.conv2.w, d_conv2)
    (d_norm1,) = ops.relu.backward(h1_res, d_h1)
    d_conv1_from_norm1, d_norm1_used_mean, d_norm1_used_variance, *g_norm1 = ops.normalize.backward(
        norm1_res, conv1, norm1_mean, norm1_variance, p.norm1.scale, d_norm1
    )
    d_conv1_from_norm1_variance, _ = ops.variance.backward(
        norm1_variance_res, conv1, norm1_mean, d_norm1_used_variance
    )
    (d_conv1_from_norm1_mean,) = ops.reduce_mean.backward(norm1_mean_res, d_norm1_used_mean)
    d_conv1 = ops.accumulate(
        d_conv1_from_norm1_mean, d_conv1_from_norm1_variance, d_conv1_from_norm1
    )
    _, d_conv1_w = ops.conv2d.backward(conv1_res, picture, p.conv1.w, d_conv1)
    g = Dense(
        conv1=Conv2d(d_conv1_w),
        norm1=BatchNorm(*g_norm1),
        conv2=Conv2d(d_conv2_w),
        norm2=BatchNorm(*g_norm2),
        logits=Fc(*g_logits),
    )
    new = State(
        norm1=BatchNormState(norm1_running_mean_new, norm1_running_variance_new),
        norm2=BatchNormState(norm2_running_mean_new, norm2_running_variance_new),
    )
    return loss, accuracy, g, new


@functools.partial(jax.jit, static_argnames="count")
def eval_forward(image, p: Dense, state: State, label, *, count):
    logits = model(image, p, state)
    loss = ops.softmax_cross_entropy(logits, label, count=count)
    accuracy = ops.accuracy(logits, label)
    return loss, accuracy


@jax.jit
def predict_forward(image, p: Dense, state: State):
    logits = model(image, p, state)
    return ops.softmax(logits)


def step(node: runtime.Node) -> None:
    image, batch_position, label = node.read("image", "batch.position", "label")
    p = node.parameters("dense", Dense)
    state = node.parameters("state_gpu:0-7", State)
    image, batch_position, label, p = node.memcpy_h2d(
        image, batch_position, label, p, to="gpu:0-7", rows=3
    )
    loss, accuracy, g, new = forward_backward(image, p, state, batch_position, label)
    loss, accuracy, g = node.memcpy_d2h(loss, accuracy, g)
    node.store("state_gpu:0-7", new)
    node.record(loss=loss, accuracy=accuracy)
    node.update("dense", g)  # adam, cosine learning rate


def evaluate(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    state = node.parameters("state_gpu:0-7", State)
    (p,) = node.memcpy_h2d(p, to="gpu:0-7")
    for _ in node.batches():
        image, label = node.read("image", "label")
        image, label = node.memcpy_h2d(image, label, to="gpu:0-7", rows=2)
        loss, accuracy = eval_forward(image, p, state, label, count=node.count)
        loss, accuracy = node.memcpy_d2h(loss, accuracy)
        node.record(loss=loss, accuracy=accuracy)


def predict(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    state = node.parameters("state_gpu:0-7", State)
    (p,) = node.memcpy_h2d(p, to="gpu:0-7")
    for _ in node.batches():
        image = node.read("image")
        (image,) = node.memcpy_h2d(image, to="gpu:0-7", rows=1)
        probability = predict_forward(image, p, state)
        (probability,) = node.memcpy_d2h(probability)
        node.output(probability=probability)


if __name__ == "__main__":
    runtime.main(__file__, step, evaluate, predict)
