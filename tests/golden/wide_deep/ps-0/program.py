"""ps:0 of wide_deep: 2 workers, 1 heter, 1 server. Compiled by placer; change the spec, not this file.

p: parameters.
"""

from collections import namedtuple
from typing import NamedTuple

from placer import runtime  # first: before jax loads

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
    node.send(1, p.users.table, p.items.table, p.wide.table)  # parameters to worker
    node.send(2, *p.deep1, *p.deep2, *p.deep)  # parameters to heter
    # adam, cosine learning rate: gradients from worker, heter, as they arrive
    node.update_from_edges("dense", 6, 8, 9)


def evaluate(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    node.send(10, p.users.table, p.items.table, p.wide.table)  # parameters to worker
    node.send(11, *p.deep1, *p.deep2, *p.deep)  # parameters to heter


def predict(node: runtime.Node) -> None:
    p = node.parameters("dense", Dense)
    node.send(14, p.users.table, p.items.table, p.wide.table)  # parameters to worker
    node.send(15, *p.deep1, *p.deep2, *p.deep)  # parameters to heter


if __name__ == "__main__":
    runtime.main(__file__, step, evaluate, predict)
