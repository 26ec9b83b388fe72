"""The state of an optimizer in a checkpoint is compared with that of a run."""

from __future__ import annotations

import pytest

from placer.checkpoint.manifest import AVERAGED, OLD, OUTER, VALUES, StoredLeaf
from placer.plan.settings.training.transformations import (
    RESERVED,
    Leaf,
    Transformation,
)
from placer.runtime.saving.optimizer_state import OptimizerState, first_difference

COUNT = {"0.count": StoredLeaf("int32", ())}
ADAM = OptimizerState("optax", {"0.mu": "float32", "0.nu": "float32"}, COUNT)
CLASSIC = OptimizerState("adam", {"mu": "float32", "nu": "float32"})
SGD = OptimizerState("sgd")


@pytest.mark.parametrize(
    ("stored", "own", "difference"),
    [
        (ADAM, ADAM, ""),
        (CLASSIC, CLASSIC, ""),
        (ADAM, SGD, ""),
        (SGD, SGD, ""),
        (OptimizerState(), SGD, ""),
        (CLASSIC, ADAM, "adam, not optax"),
        (OptimizerState(), ADAM, "None, not optax"),
        (
            OptimizerState("optax", {"0.trace": "float32"}),
            ADAM,
            "'0.mu' is not in the checkpoint",
        ),
        (
            OptimizerState("optax", {**ADAM.slots, "0.nu": "bfloat16"}, COUNT),
            ADAM,
            "'0.nu' is bfloat16 for each element, not float32 for each element",
        ),
        (
            OptimizerState("optax", ADAM.slots, {"0.count": StoredLeaf("int32", (2,))}),
            ADAM,
            "'0.count' is int32[2], not int32[]",
        ),
        (
            OptimizerState(
                "optax", ADAM.slots, COUNT | {"1.n": StoredLeaf("int8", ())}
            ),
            ADAM,
            "the optimizer has no '1.n'",
        ),
        (ADAM, OptimizerState("optax"), "the optimizer has no '0.mu'"),
    ],
)
def test_the_first_difference_names_the_array(stored, own, difference):
    assert first_difference(stored, own) == difference


def test_leaves_of_a_parameter_are_its_own_and_the_shared_ones():
    mu, other, count = (
        Leaf(name="0.mu", kind="slot", dtype="float32", shape=(3,), parameter="w"),
        Leaf(name="0.v", kind="own", dtype="float32", shape=(2,), parameter="x"),
        Leaf(name="0.count", kind="shared", dtype="int32", shape=()),
    )
    described = Transformation(
        fn="optimizers:make",
        takes_rate=False,
        parameters=("w", "x"),
        leaves=(mu, other, count),
        fingerprint="",
    )
    assert described.leaves_of("w") == (mu, count)
    assert described.leaves_of("x") == (other, count)


def test_array_names_of_checkpoints_are_no_names_of_leaves():
    assert {VALUES, AVERAGED, OLD, OUTER.rstrip(".")} == RESERVED
