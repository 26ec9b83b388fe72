"""Splitting the functions of a step by group."""

from pathlib import Path

from placer.compiler.frontend.python.read import read_model
from placer.measuring.builds import split_build

SPECS = Path(__file__).parents[2] / "specs"


def functions_of(groups):
    path = SPECS / "mlp_pipeline.yaml"
    model = read_model(path, nodes=None, overrides=None, code=True)
    return [*split_build(model, 16, 1, groups).segments]


def test_each_group_has_a_forward_and_a_backward_function():
    groups = {"pixels": "low", "h1": "low", "h2": "low", "logits": "h3"}
    assert functions_of({**groups, "accuracy": "loss"}) == [
        "forward_h2",
        "forward_logits",
        "forward_backward",
        "backward_h3",
        "backward_h1",
    ]


def test_a_group_of_one_op_is_the_default():
    functions = functions_of({})
    assert "forward_h1" in functions
    assert "backward_h1" in functions
    assert len(functions) == 12


def test_a_group_with_others_between_its_ops_has_a_function_for_each_op():
    functions = functions_of({"h1": "ends", "logits": "ends"})
    assert functions == functions_of({})
