"""ps:0 of digits_geo: 2 workers, 2 servers.

Compiled by placer; change the spec, not this file.
p: parameters; delta: the change of one worker's parameters.
"""

from collections import namedtuple
from typing import NamedTuple

from placer import runtime  # first: before jax loads

# Edges: the numbers of the messages between nodes, from plan.json.
PARAMETERS_TO_WORKERS = 1
DELTAS_FROM_WORKERS = 3
EVAL_PARAMETERS_TO_WORKERS = 5
PREDICT_PARAMETERS_TO_WORKERS = 7

Fc = namedtuple("Fc", "w")


class Dense(NamedTuple):  # table "dense"
    h1: Fc  # w float32[64, 128]


def step(node: runtime.Node) -> None:
    """Nothing to do: `serve` handles the messages of workers."""


def serve(node: runtime.Node) -> None:
    for message in node.messages():  # of workers, as they arrive
        if message.edge == PARAMETERS_TO_WORKERS:  # a worker needs the newest parameters
            p = node.parameters("dense", Dense)
            node.answer(message, p)
        elif message.edge == DELTAS_FROM_WORKERS:  # of one worker
            delta = node.pushed("dense", message, Dense)
            node.update("dense", delta, message=message)  # sgd, learning rate 1


def evaluate(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    node.send(EVAL_PARAMETERS_TO_WORKERS, p)


def predict(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    node.send(PREDICT_PARAMETERS_TO_WORKERS, p)


if __name__ == "__main__":
    runtime.main(__file__, step, serve, evaluate, predict)
