"""R1 for pipelines whose stages have one or several nodes.

The models have a skip connection, a parameter shared by two stages, dropout and a short
batch.
"""

import pytest
from support.marks import slow_but
from support.plain_jax_checks import check_against_plain_jax, op

pytestmark = pytest.mark.usefixtures("in_float64")


def stages(first, last):
    """Return a model in two stages."""
    return [
        op("a", "fc", "x", first, size=4, activation="tanh"),
        op("dropped", "dropout", "a", first, rate=0.3),
        op("b", "fc", "dropped", first, size=4, activation="tanh"),
        op("c", "fc", "b", last, size=4, activation="tanh", params={"w": "b.w"}),
        op("skip", "add", ["c", "a"], last),
        op("d", "fc", "skip", last, size=1),
        op("loss", "mean_squared_error", ["d", "y"], last),
    ]


SHAPES = {
    "a.w": (3, 4),
    "a.b": (4,),
    "b.w": (4, 4),
    "b.b": (4,),
    "c.b": (4,),
    "d.w": (4, 1),
    "d.b": (1,),
}


@pytest.mark.parametrize(
    ("first", "last", "schedule", "servers"),
    [
        pytest.param("0-1", "2-3", "1f1b", 2, id="two stages of two workers"),
        pytest.param(
            "0-1",
            "2-3",
            "gpipe",
            0,
            id="the same by gpipe, without servers",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "0-2",
            "3",
            "1f1b",
            0,
            id="three workers and one",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "0-1",
            "1-2",
            "1f1b",
            2,
            id="stages that share a worker",
            marks=pytest.mark.slow,
        ),
        pytest.param("0-3", "0-3", "gpipe", 0, id="one stage, its gradients summed"),
    ],
)
def test_a_pipeline_trains_like_plain_jax(first, last, schedule, servers, tmp_path):
    nodes = {"worker": {"count": 4}}
    if servers:
        nodes["ps"] = {"count": servers}
    graph = stages(f"/node:worker:{first}", f"/node:worker:{last}")
    train = {
        "microbatches": 3,
        "schedule": schedule,
        "optimizer": {"op": "momentum", "learning_rate": 0.05},
    }
    check_against_plain_jax(
        nodes, graph, SHAPES, train, tmp_path, batch=36, rows=(89, 31)
    )


@pytest.mark.slow
def test_the_devices_of_one_node_can_be_a_pipeline(tmp_path):
    nodes = {"worker": {"count": 1, "devices": {"gpu": 2}}}
    train = {
        "microbatches": 6,
        "optimizer": {"op": "sgd", "learning_rate": 0.05, "place": "/gpu"},
    }
    graph = stages("/gpu:0", "/gpu:1")
    check_against_plain_jax(
        nodes, graph, SHAPES, train, tmp_path, batch=36, rows=(89, 31)
    )


def test_a_shared_parameter_can_belong_to_an_op_that_the_loss_does_not_use(tmp_path):
    shared = {"w": "idle.w"}
    graph = [
        op("idle", "fc", "x", "/node:front", size=3, bias=False),
        op("a", "fc", "x", "/node:worker", size=3, bias=False, params=shared),
        op("b", "fc", "a", "/node:worker", size=3, bias=False, params=shared),
        op("loss", "reduce_sum", "b"),
    ]
    nodes = {name: {"count": 2} for name in ("worker", "front", "ps")}
    train = {
        "microbatches": 2,
        "slicing": {"min_block": 1},
        "optimizer": {"op": "sgd", "learning_rate": 0.01, "place": "/node:ps"},
    }
    check_against_plain_jax(nodes, graph, {"idle.w": (3, 3)}, train, tmp_path)


def test_ops_that_mix_rows_run_between_microbatches(tmp_path):
    """Every row attends to all rows of the batch, of all microbatches."""
    first, last = "/node:worker:0", "/node:worker:1"
    graph = [
        op("h", "fc", "x", first, size=3, activation="tanh"),
        op("pairs", "matmul", ["h", "h"], first, transpose_b=True),
        op("weights", "softmax", "pairs", first, axis=-1),
        op("mixed", "matmul", ["weights", "h"], first),
        op("out", "fc", "mixed", last, size=1),
        op("loss", "mean_squared_error", ["out", "y"], last),
    ]
    shapes = {"h.w": (3, 3), "h.b": (3,), "out.w": (3, 1), "out.b": (1,)}
    train = {"microbatches": 2, "optimizer": {"op": "sgd", "learning_rate": 0.05}}
    nodes = {"worker": {"count": 2}}
    check_against_plain_jax(nodes, graph, shapes, train, tmp_path)


@pytest.mark.parametrize("schedule", slow_but(["1f1b"], ["1f1b", "gpipe"]))
def test_all_users_of_a_value_of_all_rows_wait_for_it(schedule, tmp_path):
    """The value is computed on one node; others use it before their first
    microbatch."""
    graph = [
        op("h", "fc", "x", "/node:worker:0-1", size=3),
        op("s", "softmax", "h", "/node:worker:2", axis=0),
        op("c", "mul", ["s", "x"], "/node:worker:3"),
        op("loss", "reduce_sum", "c", "/node:worker:0"),
    ]
    train = {
        "microbatches": 2,
        "schedule": schedule,
        "optimizer": {"op": "sgd", "learning_rate": 0.1},
    }
    shapes = {"h.w": (3, 3), "h.b": (3,)}
    nodes = {"worker": {"count": 4}}
    check_against_plain_jax(nodes, graph, shapes, train, tmp_path)


@pytest.mark.parametrize("schedule", slow_but(["1f1b"], ["1f1b", "gpipe"]))
def test_users_wait_for_a_gradient_summed_over_all_microbatches(schedule, tmp_path):
    """The gradient of `q` is summed on one node after its last microbatch.

    It is sent on to a node that only has an op that runs once per step.
    """
    w = [f"/node:worker:{i}" for i in range(4)]
    graph = [
        op("a", "fc", "x", w[0], size=2),
        op("b", "fc", "x", w[0], size=2, activation="tanh"),
        op("r", "reduce_sum", "a", w[1]),
        op("q", "tanh", "r", w[2]),
        op("c", "tanh", "b", w[1]),
        op("d", "fc", "c", w[0], size=1),
        op("v", "mean_squared_error", ["d", "y"], w[3]),
        op("loss", "mul", ["v", "q"], w[3]),
    ]
    shapes = {"a.w": (3, 2), "a.b": (2,), "b.w": (3, 2), "b.b": (2,)}
    shapes |= {"d.w": (2, 1), "d.b": (1,)}
    train = {
        "microbatches": 4,
        "schedule": schedule,
        "optimizer": {"op": "sgd", "learning_rate": 0.05},
    }
    nodes = {"worker": {"count": 4}}
    check_against_plain_jax(nodes, graph, shapes, train, tmp_path)


def test_a_value_that_fewer_nodes_have_is_not_stored_for_the_others(tmp_path):
    """`s` is added once to the sum, on one of the nodes that have it."""
    nodes = {"worker": {"count": 4}}
    graph = [
        op("h", "fc", "x", "/node:worker:1", size=1, activation="tanh"),
        op("v", "reduce_mean", "h", "/node:worker:1"),
        op("half", "scale", "x", "/node:worker:3", factor=0.5),
        op("g", "fc", "half", "/node:worker:0", size=1),
        op("s", "scale", "v", "/node:worker:0,2,3", factor=0.3),
        op("f", "mul", ["s", "s"], "/node:worker:0,2,3"),
        op("error", "mean_squared_error", ["g", "y"], "/node:worker:0,1,3"),
        op("most", "add", ["error", "s"], "/node:worker:0,1,3"),
        op("loss", "add", ["most", "f"], "/node:worker:0"),
    ]
    shapes = {"h.w": (3, 1), "h.b": (1,), "g.w": (3, 1), "g.b": (1,)}
    train = {"microbatches": 2, "optimizer": {"op": "sgd", "learning_rate": 0.05}}
    check_against_plain_jax(nodes, graph, shapes, train, tmp_path)


def test_a_recomputed_scope_can_mix_rows_of_all_microbatches(tmp_path):
    block = [
        op("s", "softmax", "x", axis=0),
        op("k", "fc", "s", size=3, activation="tanh"),
        op("j", "add", ["k", "x"]),
        op("i", "gelu", "j"),
    ]
    graph = [
        {"remat": True, "place": "/node:worker:0", "ops": block},
        op("o", "fc", "i", "/node:worker:1", size=1),
        op("loss", "mean_squared_error", ["o", "y"], "/node:worker:1"),
    ]
    shapes = {"k.w": (3, 3), "k.b": (3,), "o.w": (3, 1), "o.b": (1,)}
    train = {"microbatches": 2, "optimizer": {"op": "sgd", "learning_rate": 0.05}}
    nodes = {"worker": {"count": 2}}
    check_against_plain_jax(nodes, graph, shapes, train, tmp_path)
