"""R1 with a GPU on every node, emulated, and real if the machine has one."""

import pytest
from support.gpu import needs_gpu
from support.marks import slow_but
from support.plain_jax_checks import CLASSES, check_against_plain_jax, op

pytestmark = pytest.mark.usefixtures("in_float64")


def model(first, last):
    """Return a model: an embedding and layers, with a skip connection."""
    return [
        op("e", "embedding", "id", first, size=[CLASSES, 4]),
        op("h", "concat", ["e", "x"], first, axis=1),
        op("a", "fc", "h", last, size=6, activation="gelu"),
        op("dropped", "dropout", "a", last, rate=0.3),
        op("b", "fc", "dropped", last, size=7, activation="tanh"),
        op("sum", "add", ["b", "h"], first),
        op("out", "fc", "sum", first, size=1),
        op("loss", "mean_squared_error", ["out", "y"], first),
    ]


SHAPES = {
    "e.table": (CLASSES, 4),
    "a.w": (7, 6),
    "a.b": (6,),
    "b.w": (6, 7),
    "b.b": (7,),
    "out.w": (7, 1),
    "out.b": (1,),
}
CPU, GPU = "/node:worker/cpu", "/node:worker/gpu"
CASES = {
    "optimizer in memory": (GPU, GPU, "/node:worker/cpu", 1),
    "all on GPUs": (GPU, GPU, "/node:worker/gpu", 1),
    "layers on GPUs, and servers": (CPU, GPU, "/node:ps/cpu", 1),
    "heter nodes": (CPU, "/node:heter/gpu", "/node:ps/cpu", 1),
    "a pipeline": ("/node:worker:0/gpu", "/node:worker:1/gpu", None, 3),
}
"""The places of the first and last ops and of the optimizer, and the microbatches."""
IN_EVERY_RUN = ("all on GPUs", "layers on GPUs, and servers")


@pytest.mark.parametrize(
    "emulate",
    [
        True,
        pytest.param(False, marks=needs_gpu),
    ],
    ids=["emulated", "real"],
)
@pytest.mark.parametrize("case", slow_but([*IN_EVERY_RUN][:1], CASES))
def test_a_model_on_gpus_trains_like_plain_jax(case, emulate, tmp_path):
    first, last, optimizer, microbatches = CASES[case]
    devices = {"cpu": 1, "gpu": 1}
    nodes = {"worker": {"count": 2, "devices": devices}, "ps": {"count": 1}}
    if "heter" in last:
        nodes["heter"] = {"count": 1, "devices": devices}
    rule = {"op": "lamb", "learning_rate": 0.05}
    train = {
        "microbatches": microbatches,
        "optimizer": rule | ({"place": optimizer} if optimizer else {}),
    }
    check_against_plain_jax(
        nodes, model(first, last), SHAPES, train, tmp_path, emulate=emulate
    )
