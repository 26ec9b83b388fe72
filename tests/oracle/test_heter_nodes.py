"""R1 for heter nodes: any number of them for any number of workers.

The models have several tasks on heter nodes, ops that depend on the order of rows,
dropout and a short batch.
"""

import pytest
from support.marks import slow_but
from support.plain_jax_checks import check_against_plain_jax, op

pytestmark = pytest.mark.usefixtures("in_float64")


WORKER, HETER = "/node:worker/cpu", "/node:heter"
OPS = [
    op("a", "fc", "x", WORKER, size=3, activation="tanh"),
    op("b", "fc", "a", HETER, size=4, activation="tanh"),
    op("dropped", "dropout", "b", HETER, rate=0.3),
    op("c", "fc", "dropped", WORKER, size=3, activation="tanh"),
    op("d", "fc", ["c"], HETER, size=1),
    op("order", "softmax", "d", HETER, axis=0),  # needs all rows on each node
    op("sum", "add", ["d", "order"], HETER),
    op("error", "mean_squared_error", ["sum", "y"], HETER),
    op("mean", "reduce_mean", "c", WORKER),
    op("loss", "add", ["error", "mean"], WORKER),
]
SHAPES = {
    "a.w": (3, 3),
    "a.b": (3,),
    "b.w": (3, 4),
    "b.b": (4,),
    "c.w": (4, 3),
    "c.b": (3,),
    "d.w": (3, 1),
    "d.b": (1,),
}


@pytest.mark.parametrize(
    ("workers", "heter", "servers"),
    [
        (1, 2, 2),
        pytest.param(3, 2, 0, marks=pytest.mark.slow),
        pytest.param(1, 1, 1, marks=pytest.mark.slow),
        pytest.param(4, 2, 1, marks=pytest.mark.slow),
        pytest.param(2, 1, 1, marks=pytest.mark.slow),
        pytest.param(4, 3, 1, marks=pytest.mark.slow),
    ],
)
def test_heter_nodes_train_like_plain_jax(workers, heter, servers, tmp_path):
    nodes = {
        "worker": {"count": workers},
        "heter": {"count": heter, "devices": {"cpu": 1, "gpu": 1}},
    }
    if servers:
        nodes["ps"] = {"count": servers}
    train = {
        "metrics": ["loss", "error"],
        "optimizer": {"op": "momentum", "learning_rate": 0.05},
    }
    check_against_plain_jax(nodes, OPS, SHAPES, train, tmp_path, rows=(41, 17))


def test_heter_nodes_without_rows_do_not_change_the_result(tmp_path):
    """Two of three heter nodes have rows; some ops run on two nodes, others on
    three."""
    graph = [
        op("h", "fc", "x", "/node:heter:0-1", size=1),
        op("s", "square", "h", "/node:heter"),
        op("t", "tanh", "s", "/node:heter:0-1"),
        op("loss", "reduce_sum", "t", "/node:heter"),
        op("total", "reduce_sum", "h", "/node:heter"),
    ]
    nodes = {"worker": {"count": 2}, "heter": {"count": 3}}
    train = {
        "metrics": ["loss", "total"],
        "optimizer": {"op": "sgd", "learning_rate": 0.1, "place": "/node:worker"},
    }
    shapes = {"h.w": (3, 1), "h.b": (1,)}
    check_against_plain_jax(nodes, graph, shapes, train, tmp_path)


@pytest.mark.parametrize("microbatches", slow_but([2], [1, 2]))
def test_a_value_sent_once_is_used_for_every_batch_and_microbatch(
    microbatches, tmp_path
):
    graph = [
        op("w", "parameter", shape=[3, 2], init="zeros"),
        op("p", "tanh", "w", "/node:worker"),
        op("h", "matmul", ["x", "p"], "/node:heter"),
        op("t", "tanh", "h", "/node:worker"),
        op("order", "softmax", "t", "/node:worker", axis=0),
        op("far", "mul", ["order", "t"], "/node:heter"),
        op("loss", "reduce_mean", "far", "/node:worker"),
    ]
    nodes = {"worker": {"count": 2}, "heter": {"count": 1}}
    train = {
        "microbatches": microbatches,
        "optimizer": {"op": "sgd", "learning_rate": 0.1},
    }
    check_against_plain_jax(nodes, graph, {"w": (3, 2)}, train, tmp_path)
