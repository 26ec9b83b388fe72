"""W1 with TensorFlow's parameter server, which is asynchronous: its workers, its servers,
and the coordinator that gives the workers their steps.

    python tensorflow_server.py --task chief:0 --endpoints '{"worker": [...], …}' --steps 50

The coordinator prints the times when the steps after the first `--warm` ones began and
ended; `--steps` are those of each worker. Workers and servers do not end by themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from itertools import pairwise

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import numpy as np
import tensorflow as tf

ROWS, WIDTHS, BATCHES = 512, (128, 1024, 512, 256, 2), 10
RATE = 1e-4
PER_CALL = 10
"""The steps that the coordinator asks for in one message."""


class Parameter:
    """A parameter with its moments, all on a server, which Adam updates there."""

    def __init__(self, value: np.ndarray) -> None:
        self.value = tf.Variable(value)
        self.m = tf.Variable(tf.zeros_like(value))
        self.v = tf.Variable(tf.zeros_like(value))
        self.powers = tf.Variable(0.9), tf.Variable(0.999)

    def update(self, gradient: tf.Tensor) -> None:
        powers = [power.read_value() for power in self.powers]
        with tf.device(self.value.device):
            tf.raw_ops.ResourceApplyAdam(
                var=self.value.handle,
                m=self.m.handle,
                v=self.v.handle,
                beta1_power=powers[0],
                beta2_power=powers[1],
                lr=RATE,
                beta1=0.9,
                beta2=0.999,
                epsilon=1e-8,
                grad=gradient,
            )
        for power, beta in zip(self.powers, (0.9, 0.999), strict=True):
            power.assign(power * beta, read_value=False)


def coordinate(
    resolver: tf.distribute.cluster_resolver.ClusterResolver, options
) -> None:
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    random = np.random.default_rng(0)
    with strategy.scope():
        table = Parameter(random.normal(0, 0.05, (1000, 128)).astype(np.float32))
        layers = [
            (
                Parameter(random.normal(0, a**-0.5, (a, b)).astype(np.float32)),
                Parameter(np.zeros(b, np.float32)),
            )
            for a, b in pairwise(WIDTHS)
        ]
    parameters = [table, *(each for layer in layers for each in layer)]
    ids = random.integers(0, 1000, (BATCHES, ROWS)).astype(np.int32)
    labels = random.integers(0, 2, (BATCHES, ROWS)).astype(np.int32)

    @tf.function
    def steps() -> None:
        batches = tf.constant(ids), tf.constant(labels)
        for number in tf.range(PER_CALL):
            x, label = (each[number % BATCHES] for each in batches)
            values = [parameter.value.read_value() for parameter in parameters]
            with tf.GradientTape() as tape:
                tape.watch(values)
                h = tf.gather(values[0], x)
                for i in range(len(layers)):
                    h = h @ values[1 + 2 * i] + values[2 + 2 * i]
                    if i + 1 < len(layers):
                        h = tf.nn.relu(h)
                loss = tf.reduce_mean(
                    tf.nn.sparse_softmax_cross_entropy_with_logits(label, h)
                )
            gradients = tape.gradient(loss, values)
            gradients[0] = tf.convert_to_tensor(gradients[0])  # dense, as Adam needs it
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.update(gradient)

    def run(count: int) -> None:
        for _ in range(options.workers * count // PER_CALL):
            coordinator.schedule(steps)
        coordinator.join()

    run(options.warm)
    begin = time.monotonic()
    run(options.steps)
    print(begin, time.monotonic(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", required=True)
    parser.add_argument("--endpoints", type=json.loads, required=True)
    for name in ("workers", "steps", "warm"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    kind, number = options.task.split(":")
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(options.endpoints),
        task_type=kind,
        task_id=int(number),
        rpc_layer="grpc",
    )
    if kind == "chief":
        coordinate(resolver, options)
        os._exit(0)  # it would wait for workers that do not end
    # By default there are as many inter-op threads as cores. With one, a worker hangs.
    threads = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=4
    )
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=kind,
        task_index=int(number),
        protocol="grpc",
        config=threads,
    )
    server.join()


if __name__ == "__main__":
    main()
