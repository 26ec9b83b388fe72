"""ps:0 of wide_deep: 2 workers, 1 heter, 1 server.

Compiled by placer; change the spec, not this file.
p: parameters.
"""

from collections import namedtuple
from typing import NamedTuple

from placer import runtime  # first: before jax loads

# Edges: the numbers of the messages between nodes, from plan.json.
PARAMETERS_TO_WORKERS = 1
PARAMETERS_TO_HETER = 2
GRADIENTS_WIDE_TABLE_FROM_WORKERS = 6
GRADIENTS_FROM_HETER = 8
GRADIENTS_USERS_TABLE_FROM_WORKERS = 9
EVAL_PARAMETERS_TO_WORKERS = 10
EVAL_PARAMETERS_TO_HETER = 11
PREDICT_PARAMETERS_TO_WORKERS = 14
PREDICT_PARAMETERS_TO_HETER = 15

Embedding = namedtuple("Embedding", "table")
Fc = namedtuple("Fc", "w b")


class Dense(NamedTuple):  # table "dense"
    users: Embedding  # table float32[60, 8]
    items: Embedding  # table float32[40, 8]
    deep1: Fc  # w float32[20, 128], b float32[128]
    deep2: Fc  # w float32[128, 64], b float32[64]
    deep: Fc  # w float32[64, 1], b float32[1]
    wide: Embedding  # table float32[2400, 1]


def step(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    node.send(PARAMETERS_TO_WORKERS, p.users.table, p.items.table, p.wide.table)
    node.send(PARAMETERS_TO_HETER, *p.deep1, *p.deep2, *p.deep)
    # receives the gradients in chunks, adds all workers' values in node order, then adam, cosine
    # learning rate
    node.update_from_edges(
        "dense",
        GRADIENTS_WIDE_TABLE_FROM_WORKERS,
        GRADIENTS_FROM_HETER,
        GRADIENTS_USERS_TABLE_FROM_WORKERS,
    )


def evaluate(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    node.send(EVAL_PARAMETERS_TO_WORKERS, p.users.table, p.items.table, p.wide.table)
    node.send(EVAL_PARAMETERS_TO_HETER, *p.deep1, *p.deep2, *p.deep)


def predict(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    node.send(PREDICT_PARAMETERS_TO_WORKERS, p.users.table, p.items.table, p.wide.table)
    node.send(PREDICT_PARAMETERS_TO_HETER, *p.deep1, *p.deep2, *p.deep)


if __name__ == "__main__":
    runtime.main(__file__, step, evaluate, predict)
