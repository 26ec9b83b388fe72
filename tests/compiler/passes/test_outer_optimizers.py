"""An outer optimizer passes the checks of every optimizer."""

import pytest
from support.small_models import load_model, two_layers

from placer.compiler.driver import lower_model
from placer.errors import PlacerError, SpecError


def model(outer, zeros=False):
    update = f"update: {{geo: {{every: 2, outer: {outer}}}}}"
    text = two_layers(optimizer=f"{{op: sgd, learning_rate: 0.1, {update}}}")
    if zeros:
        text += "\nparameters:\n  - {match: '*', init: zeros}\n"
    return load_model(text)


@pytest.mark.parametrize(
    ("outer", "message"),
    [
        (
            "{op: ftrl, learning_rate: 0.1}",
            "parameter 'h.w': the outer optimizer 'ftrl' computes values from its slots",
        ),
        ("{op: lamb, learning_rate: 0.1}", "'lamb' cannot be an outer optimizer"),
        ("nesterov", "outer must be a mapping, not the text 'nesterov'"),
        ("[nesterov]", "outer must be a mapping, not a list"),
        ("{op: sgd, learning_rate: -1.0}", "'learning_rate' must be a number from 0"),
        ("{op: sgd, learning_rate: {cosine: 1}}", "'cosine' needs a mapping"),
        (
            "{op: adam, learning_rate: 0.1, b1: 2}",
            "'b1' must be a number from 0 to less than 1",
        ),
        ("{op: sgd, momentum: 0.9, learning_rate: 0.1}", "unknown key 'momentum'"),
    ],
)
def test_a_wrong_outer_optimizer_is_an_error_with_a_position(outer, message):
    with pytest.raises(PlacerError) as caught:
        lower_model(model(outer))
    assert message in str(caught.value)
    assert "model.yaml:" in str(caught.value)


def test_the_outer_ftrl_takes_parameters_that_begin_at_zero():
    lower_model(model("{op: ftrl, learning_rate: 0.1}", zeros=True))


def test_linear_scaling_of_an_outer_optimizer_has_the_global_batch():
    rate = "{linear_scaling: {base_batch: 4, then: 0.5}}"
    (group,) = model(f"{{op: sgd, learning_rate: {rate}}}").graph.optimizers.values()
    scaling = group.attrs["update"].outer["learning_rate"]["linear_scaling"]
    assert scaling["batch"] == 8


def test_the_same_mistake_is_found_in_both_places():
    """The optimizer of workers, and that of servers."""
    for where in ("{op: sgd, learning_rate: {cosin: {}}}",):
        with pytest.raises(SpecError, match="did you mean 'cosine'"):
            model(where)
        with pytest.raises(SpecError, match="did you mean 'cosine'"):
            load_model(two_layers(optimizer=where))


@pytest.mark.parametrize(
    ("update", "hint"),
    [
        ("sync", "apply it to sparse tables only, or use adam"),
        ("{geo: {every: 2}}", "use adam"),
    ],
)
def test_the_hint_for_a_row_wise_rule_can_be_followed(update, hint):
    text = two_layers(
        optimizer=f"{{op: rowwise_adam, learning_rate: 0.1, update: {update}}}"
    )
    with pytest.raises(PlacerError) as caught:
        lower_model(load_model(text))
    assert caught.value.hint == hint
