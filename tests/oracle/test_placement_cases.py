"""R1 for placements where some nodes have no rows, no parts of values or no work."""

import pytest
from support.marks import slow_but
from support.plain_jax_checks import check_against_plain_jax, op

pytestmark = pytest.mark.usefixtures("in_float64")

ALL, W0, W1, W012 = (
    "/node:worker",
    "/node:worker:0",
    "/node:worker:1",
    "/node:worker:0-2",
)
W = (3, 1)


def weight(shape=W):
    return op("w", "parameter", shape=list(shape), init="zeros")


CASES = {
    "a metric that uses no rows": (
        {"w": W},
        [
            weight(),
            op("squares", "mul", ["w", "w"], W1),
            op("penalty", "reduce_sum", "squares"),
            op("h", "matmul", ["x", "w"], ALL),
            op("error", "mean_squared_error", ["h", "y"]),
            op("loss", "add", ["error", "penalty"]),
        ],
        ["loss", "penalty"],
    ),
    "the first node has nothing to do": (
        {"h.w": W, "h.b": (1,)},
        [
            op("h", "fc", "x", W1, size=1),
            op("loss", "mean_squared_error", ["h", "y"], W1),
        ],
        ["loss"],
    ),
    "rows of a value used on all nodes and on three": (
        {"h.w": W, "h.b": (1,), "g.w": (1, 1)},
        [
            op("h", "fc", "x", ALL, size=1, activation="tanh"),
            op("g", "fc", "h", W012, size=1, bias=False),
            op("d", "sub", ["g", "y"], W012),
            op("error", "reduce_sum", "d"),
            op("mean", "reduce_mean", "h", ALL),
            op("product", "mul", ["error", "mean"], ALL),
            op("loss", "sigmoid", "product"),
        ],
        ["loss", "mean"],
    ),
    "a sum of gradients that come from some of the nodes": (
        {"w": W},
        [
            weight(),
            op("c", "mul", ["w", "w"], ALL),
            op("h", "matmul", ["x", "c"], "/node:worker:0-1"),
            op("mean", "reduce_mean", "h"),
            op("norm", "reduce_sum", "c", "/node:worker:0-1"),
            op("loss", "add", ["mean", "norm"]),
        ],
        ["loss"],
    ),
    "a whole value sent to one node, and a short batch": (
        {"h.w": W},
        [
            op("h", "fc", "x", ALL, size=1, bias=False),
            op("p", "softmax", "h", ALL, axis=0),
            op("t", "tanh", "p", W0),
            op("v", "mul", ["t", "y"], W0),
            op("loss", "reduce_sum", "v", W0),
        ],
        ["loss"],
    ),
    "an operand that its node computes late": (
        {"g.w": W, "g.b": (1,), "k.w": W, "k.b": (1,)},
        [
            op("m", "reduce_mean", "x", W1),
            op("k", "fc", "x", ALL, size=1, activation="tanh"),
            op("n", "reduce_mean", "k", ALL),
            op("q", "tanh", "n", "/node:worker:2"),
            op("g", "fc", "x", W0, size=1),
            op("error", "mean_squared_error", ["g", "y"], ALL),
            op("both", "add", ["error", "m"], ALL),
            op("loss", "add", ["both", "q"], "/node:worker:2"),
        ],
        ["loss"],
    ),
    "all pairs of rows, computed on one node and split": (
        {"h.w": W, "h.b": (1,)},
        [
            op("h", "fc", "x", ALL, size=1),
            op("pairs", "matmul", ["h", "h"], W1, transpose_b=True),
            op("t", "tanh", "pairs", ALL),
            op("v", "matmul", ["t", "y"], ALL),
            op("loss", "reduce_mean", "v", W012),
        ],
        ["loss"],
    ),
    "a parameter used whole and as a partial sum": (
        {"h.w": W, "h.b": (1,)},
        [
            op("m", "reduce_mean", "x", "/node:worker:1-3"),
            op("h", "fc", "x", W1, size=1, activation="tanh"),
            op("d", "sub", ["m", "h.b"], ALL),
            op("norm", "reduce_sum", "d", W1),
            op("error", "mean_squared_error", ["h", "y"], ALL),
            op("loss", "add", ["error", "norm"], ALL),
        ],
        ["loss", "norm"],
    ),
    "parameters of one node and of all nodes, with gradients at different times": (
        {"k.w": W, "h.w": W, "h.b": (1,)},
        [
            op("k", "fc", "x", W1, size=1, bias=False),
            op("far", "reduce_mean", "k", W0),
            op("h", "fc", "x", ALL, size=1, activation="tanh"),
            op("error", "mean_squared_error", ["h", "y"], W0),
            op("loss", "add", ["error", "far"], W0),
        ],
        ["loss"],
    ),
    "a gradient computed on a server that stores a block of the parameter": (
        {"h.w": W, "h.b": (1,)},
        [
            op("h", "fc", "x", "/node:ps:0", size=1, activation="tanh"),
            op("d", "mul", ["h.w", "h.w"], ALL),
            op("norm", "reduce_sum", "d", W1),
            op("error", "mean_squared_error", ["h", "y"], W1),
            op("loss", "add", ["error", "norm"], W1),
        ],
        ["loss"],
    ),
    "a gradient computed on one server, of a parameter divided into blocks": (
        {"w": W},
        [
            weight(),
            op("h", "matmul", ["x", "w"], "/node:ps:1"),
            op("loss", "mean_squared_error", ["h", "y"], W1),
        ],
        ["loss"],
    ),
    "a parameter and a constant as metrics, and an unused parameter": (
        {"w": (), "idle": (2, 2), "h.w": W, "h.b": (1,)},
        [
            weight(()),
            op("idle", "parameter", shape=[2, 2], init="ones"),
            op("half", "constant", value=0.5),
            op("h", "fc", "x", "/node:worker:2", size=1),
            op("g", "mul", ["h", "w"], "/node:worker:2"),
            op("loss", "mean_squared_error", ["g", "y"], W1),
        ],
        ["loss", "w", "half"],
    ),
}


OPTIMIZERS = {
    "on servers": {"op": "momentum", "place": "/node:ps"},
    "on named servers": {"op": "lars", "place": "/node:ps:0-1"},
    "on some workers": {"op": "momentum", "place": "/node:worker:1,3"},
    "with each parameter": {"op": "lamb"},  # there are no servers
    "on devices of servers": {"op": "lamb", "place": "/node:ps/gpu"},
}


def pairs():
    """Yield each case with each optimizer that makes a difference to it."""
    for case, (_, ops, _) in CASES.items():
        computes_on_servers = "/node:ps" in str(ops)
        for where in OPTIMIZERS:
            if where == "with each parameter" and computes_on_servers:
                continue
            if where == "on devices of servers" and not computes_on_servers:
                continue
            yield case, where


def one_each():
    """Yield each case with one of its optimizers, a different one in turn."""
    for index, case in enumerate(CASES):
        optimizers = [where for other, where in pairs() if other == case]
        yield case, optimizers[index % len(optimizers)]


@pytest.mark.parametrize(("case", "where"), slow_but([*one_each()][::2], pairs()))
def test_a_case_trains_like_plain_jax(case, where, tmp_path):
    shapes, ops, metrics = CASES[case]
    servers = {"ps": {"count": 2, "devices": {"cpu": 1, "gpu": 2}}}
    if where == "with each parameter":
        servers = {}
    train = {
        "metrics": metrics,
        "slicing": {"min_block": 1},
        "optimizer": {**OPTIMIZERS[where], "learning_rate": 0.05},
    }
    nodes = {"worker": {"count": 4}, **servers}
    check_against_plain_jax(nodes, ops, shapes, train, tmp_path)
