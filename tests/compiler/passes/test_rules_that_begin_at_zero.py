"""FTRL computes values from its slots alone, so that they begin at 0."""

import pytest
from support.small_models import load_model, two_layers

from placer.compiler.driver import lower_model
from placer.errors import GraphError

FTRL = "{op: ftrl, learning_rate: 0.1, match: 'out.*'}"
REST = "{op: sgd, learning_rate: 0.1}"


def model(init):
    text = two_layers(optimizer=f"[{FTRL}, {REST}]")
    return load_model(f"{text}\nparameters:\n  - {{match: 'out.*', init: {init}}}\n")


@pytest.mark.parametrize("init", ["zeros", "{constant: 0.0}"])
def test_parameters_that_begin_at_zero_have_the_rule(init):
    step, *_ = lower_model(model(init))
    assert any(op.kind == "ftrl" for op in step.ops)


def test_other_initial_values_are_an_error_at_the_parameter():
    with pytest.raises(GraphError) as caught:
        lower_model(model("ones"))
    assert caught.value.message == (
        "parameter 'out.w': 'ftrl' computes values from its slots, so it needs init:"
        " zeros, not ones"
    )
    assert caught.value.hint == (
        "write - {match: \"out.w\", init: zeros} in 'parameters'"
    )
    assert caught.value.span is not None
    assert "name: out" in caught.value.span.text
