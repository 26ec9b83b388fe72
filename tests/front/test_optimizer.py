"""append_backward and optimizers: what a program says of its training."""

from __future__ import annotations

from typing import Any

import pytest
from support.builds import program, told

from placer import Program, Variable, append_backward, layers, optimizer, place_guard
from placer.errors import SpecError


def loss_of(made: Program, name: str = "loss") -> Variable:
    with made:
        x = layers.data(f"{name}_x", "float32[batch, 4]")
        return layers.reduce_mean(layers.fc(x, 2), name=name)


def train(made: Program) -> dict[str, Any]:
    found: dict[str, Any] = made.tree().value["train"]
    return found


def test_minimize_says_the_loss_the_rule_and_where_it_stands() -> None:
    with program() as made:
        loss = loss_of(made)
        with place_guard("/node:ps/cpu"):
            optimizer.Adam(0.1, b2=0.99, eps=1e-8, clip={"norm": 1.0}).minimize(loss)
    assert train(made) == {
        "minimize": "loss",
        "optimizer": {
            "op": "adam",
            "learning_rate": 0.1,
            "b2": 0.99,
            "clip": {"norm": 1.0},
            "place": "/node:ps/cpu",
        },
    }


def test_several_optimizers_part_the_parameters() -> None:
    with program() as made:
        loss = loss_of(made)
        with place_guard("/node:ps"):
            optimizer.SGD(0.1, match="*.b").minimize(loss)
        optimizer.Lamb({"linear": {"init": 1, "end": 0, "steps": 9}}).minimize(loss)
    entries = train(made)["optimizer"]
    assert [(e["op"], e.get("match"), e.get("place")) for e in entries] == [
        ("sgd", "*.b", "/node:ps"),
        ("lamb", None, None),
    ]
    groups = [op.attrs["group"] for op in made.model().graph.of_kind("parameter")]
    assert groups == [1, 0]


def test_a_function_places_optimizers_by_their_rule() -> None:
    with program() as made:
        loss = loss_of(made)
        with place_guard(lambda op: "/node:ps" if op.kind == "sgd" else None):
            optimizer.SGD(0.1, match="*.b").minimize(loss)
            optimizer.Momentum(0.1).minimize(loss)
    assert [e.get("place") for e in train(made)["optimizer"]] == ["/node:ps", None]


@pytest.mark.parametrize("said", [True, False])
def test_append_backward_places_gradients_with_a_loss_or_without(said: bool) -> None:
    with program() as made:
        loss = loss_of(made)
        with place_guard("/node:worker/gpu:0"):
            append_backward(loss if said else None)
        optimizer.SGD(0.1).minimize(loss)
    assert train(made)["backward"] == "/node:worker/gpu:0"
    assert str(made.model().graph.of_kind("minimize")[0].place) == "/node:worker/gpu:0"


def test_without_a_guard_append_backward_says_nothing() -> None:
    with program() as made:
        loss = loss_of(made)
        append_backward(loss)
        optimizer.SGD(0.1).minimize(loss)
    assert train(made) == {
        "minimize": "loss",
        "optimizer": {"op": "sgd", "learning_rate": 0.1},
    }


def other_loss(made: Program, loss: Variable) -> None:
    append_backward(loss)
    optimizer.SGD(0.1).minimize(loss_of(made, "other"))


def twice(made: Program, loss: Variable) -> None:
    append_backward()
    append_backward(loss)


def too_late(made: Program, loss: Variable) -> None:
    optimizer.SGD(0.1).minimize(loss)
    append_backward()


def no_loss(made: Program, loss: Variable) -> None:
    optimizer.SGD(0.1).minimize("loss")  # type: ignore[arg-type]


def no_scalar(made: Program, loss: Variable) -> None:
    append_backward(layers.data("rows", "float32[batch, 4]"))


def a_metric(made: Program, loss: Variable) -> None:
    x = layers.data("rows", "float32[batch, 4]")
    optimizer.SGD(0.1).minimize(layers.mean_metric(x, name="seen"))


def bad_rate(made: Program, loss: Variable) -> None:
    optimizer.SGD({"cosine": {"init": 1.0}}).minimize(loss)


def bad_hyper(made: Program, loss: Variable) -> None:
    optimizer.Momentum(0.1, momentum=1.5).minimize(loss)


def bad_place(made: Program, loss: Variable) -> None:
    with place_guard("/node:ps:7"):
        optimizer.SGD(0.1).minimize(loss)


def bad_backward(made: Program, loss: Variable) -> None:
    with place_guard("/node:ps/gpu"):
        append_backward(loss)


@pytest.mark.parametrize(
    ("mistake", "message", "at", "hint"),
    [
        (
            other_loss,
            "the loss is 'loss', and 'other' another",
            'optimizer.SGD(0.1).minimize(loss_of(made, "other"))',
            "add the two: one is minimized",
        ),
        (
            twice,
            "append_backward has been called for this program",
            "append_backward(loss)",
            "a program has one loss",
        ),
        (
            too_late,
            "append_backward comes before minimize",
            "append_backward()",
            "minimize needs the gradients",
        ),
        (
            no_loss,
            "a loss is a value of the program, not 'loss'",
            'optimizer.SGD(0.1).minimize("loss")',
            None,
        ),
        (
            no_scalar,
            "unknown loss 'rows'",
            'append_backward(layers.data("rows", "float32[batch, 4]"))',
            "one of: loss",
        ),
        (
            a_metric,
            "'seen' is a metric: it has no gradient to minimise by",
            'optimizer.SGD(0.1).minimize(layers.mean_metric(x, name="seen"))',
            "minimise a loss",
        ),
        (
            bad_rate,
            "schedule 'cosine': 'steps' is missing",
            'optimizer.SGD({"cosine": {"init": 1.0}}).minimize(loss)',
            None,
        ),
        (
            bad_hyper,
            "'momentum' must be less than 1, not 1.5",
            "optimizer.Momentum(0.1, momentum=1.5).minimize(loss)",
            None,
        ),
        (
            bad_place,
            "no 'ps:7' in this cluster, which declares ps: 2",
            "ps:7",
            "ids of 'ps' are 0-1",
        ),
        (
            bad_backward,
            "no device 'gpu' on node 'ps': declared are cpu",
            "gpu",
            "where a node has one, say devices: {cpu: 1, gpu: 1}",
        ),
    ],
)
def test_a_mistake_is_told_at_its_line(
    mistake: Any, message: str, at: str, hint: str | None
) -> None:
    with program() as made, pytest.raises(SpecError) as caught:
        mistake(made, loss_of(made))
    assert told(caught.value, __file__) == (message, at, hint)


def test_a_wrong_optimizer_leaves_the_program_as_it_was() -> None:
    with program() as made:
        loss = loss_of(made)
        other = layers.scale(loss, 2.0)
        with pytest.raises(SpecError):
            optimizer.Momentum(0.1, momentum=2).minimize(other)
        with pytest.raises(SpecError), place_guard("/node:front"):
            append_backward(other)
        optimizer.SGD(0.1).minimize(loss)
    assert train(made)["optimizer"] == {"op": "sgd", "learning_rate": 0.1}
    assert made.model().metrics == ("loss",)
