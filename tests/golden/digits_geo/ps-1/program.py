"""ps:1 of digits_geo: 2 workers, 2 servers.

Compiled by placer; change the spec, not this file.
p: parameters; delta: the change that one worker has sent, as old - new values.
"""

from collections import namedtuple
from typing import NamedTuple

from placer import runtime  # first: before jax loads

# Edges: the numbers of the messages between nodes, from plan.json.
PARAMETERS_TO_WORKERS = 2
DELTAS_FROM_WORKERS = 4
EVAL_PARAMETERS_TO_WORKERS = 6
PREDICT_PARAMETERS_TO_WORKERS = 8

FcB = namedtuple("FcB", "b")
Fc = namedtuple("Fc", "w b")


class Dense(NamedTuple):  # table "dense"
    h1: FcB  # b float32[128]
    logits: Fc  # w float32[128, 10], b float32[10]


def step(node: runtime.Node) -> None:
    """Nothing to do: during training, `serve` handles messages of workers in its own thread."""


def serve(node: runtime.Node) -> None:
    for message in node.messages():  # of workers, as they arrive
        # a worker's request (each push makes one): the newest parameters go back
        if message.edge == PARAMETERS_TO_WORKERS:
            p = node.parameters("dense", Dense)
            node.answer(message, p)
        elif message.edge == DELTAS_FROM_WORKERS:  # the delta of one worker
            delta = node.pushed("dense", message, Dense)
            # sgd, learning rate 1: subtracts delta, (old - new values) / 2 of one worker
            node.update("dense", delta, message=message)


def evaluate(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    node.send(EVAL_PARAMETERS_TO_WORKERS, p)


def predict(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    node.send(PREDICT_PARAMETERS_TO_WORKERS, p)


if __name__ == "__main__":
    runtime.main(__file__, step, serve, evaluate, predict)
