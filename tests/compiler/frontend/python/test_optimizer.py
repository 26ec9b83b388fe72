"""append_backward and optimizers: the section `train` of a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from support.builds import error_parts, program

from placer import Program, Variable, append_backward, layers, optimizer, place_guard
from placer.compiler.frontend.python.training import Optimizer, Update
from placer.errors import SpecError
from placer.plan.settings.training.optimizers import RULES


def loss_of(new_program: Program, name: str = "loss") -> Variable:
    with new_program:
        x = layers.data(f"{name}_x", "float32[batch, 4]")
        return layers.reduce_mean(layers.fc(x, 2), name=name)


def train(new_program: Program) -> dict[str, Any]:
    section: dict[str, Any] = new_program.tree().value["train"]
    return section


def test_minimize_sets_the_loss_the_rule_and_the_place() -> None:
    with program() as new_program:
        loss = loss_of(new_program)
        with place_guard("/node:ps/cpu"):
            optimizer.Adam(0.1, b2=0.99, eps=1e-8, clip={"norm": 1.0}).minimize(loss)
    assert train(new_program) == {
        "minimize": "loss",
        "optimizer": {
            "op": "adam",
            "learning_rate": 0.1,
            "b2": 0.99,
            "clip": {"norm": 1.0},
            "place": "/node:ps/cpu",
        },
    }


def test_every_rule_has_a_class() -> None:
    names = [name for name in optimizer.__all__ if name != "Optax"]
    classes = [getattr(optimizer, name) for name in names]
    assert sorted(each.rule for each in classes) == sorted(RULES)
    for each in classes:
        with program() as new_program:
            each(0.1).minimize(loss_of(new_program))
        assert train(new_program)["optimizer"] == {
            "op": each.rule,
            "learning_rate": 0.1,
        }


@dataclass(frozen=True, kw_only=True)
class Slower(optimizer.Adam):
    """Adam with another default, and modes of its own."""

    b1: float = 0.95
    update: Update = "async"


class Unnamed(Optimizer):
    """No class of placer.optimizer."""


@pytest.mark.parametrize(
    ("made", "settings"),
    [
        (Slower(0.1), {"b1": 0.95, "update": "async"}),
        (
            Slower(0.1, b1=0.9, update={"geo": {"every": 2}}),
            {"update": {"geo": {"every": 2}}},
        ),
        (type("Own", (optimizer.SGD,), {})(0.1, match="*"), {"match": "*"}),
    ],
)
def test_a_subclass_has_the_rule_of_its_class(
    made: Optimizer, settings: dict[str, Any]
) -> None:
    with program() as new_program:
        made.minimize(loss_of(new_program))
    entry = {"op": made.rule, "learning_rate": 0.1, **settings}
    assert train(new_program)["optimizer"] == entry


def test_several_optimizers_divide_the_parameters() -> None:
    with program() as new_program:
        loss = loss_of(new_program)
        with place_guard("/node:ps"):
            optimizer.SGD(0.1, match="*.b").minimize(loss)
        optimizer.Lamb({"linear": {"init": 1, "end": 0, "steps": 9}}).minimize(loss)
    entries = train(new_program)["optimizer"]
    assert [(e["op"], e.get("match"), e.get("place")) for e in entries] == [
        ("sgd", "*.b", "/node:ps"),
        ("lamb", None, None),
    ]
    groups = [
        op.attrs["group"] for op in new_program.model().graph.of_kind("parameter")
    ]
    assert groups == [1, 0]


def test_a_function_places_optimizers_by_their_rule() -> None:
    with program() as new_program:
        loss = loss_of(new_program)
        with place_guard(lambda op: "/node:ps" if op.kind == "sgd" else None):
            optimizer.SGD(0.1, match="*.b").minimize(loss)
            optimizer.Momentum(0.1).minimize(loss)
    assert [e.get("place") for e in train(new_program)["optimizer"]] == [
        "/node:ps",
        None,
    ]


@pytest.mark.parametrize("with_loss", [True, False])
def test_append_backward_places_gradients_with_or_without_a_loss(
    with_loss: bool,
) -> None:
    with program() as new_program:
        loss = loss_of(new_program)
        with place_guard("/node:worker/gpu:0"):
            append_backward(loss if with_loss else None)
        optimizer.SGD(0.1).minimize(loss)
    assert train(new_program)["backward"] == "/node:worker/gpu:0"
    assert (
        str(new_program.model().graph.of_kind("minimize")[0].place)
        == "/node:worker/gpu:0"
    )


def test_without_a_guard_append_backward_sets_no_place() -> None:
    with program() as new_program:
        loss = loss_of(new_program)
        append_backward(loss)
        optimizer.SGD(0.1).minimize(loss)
    assert train(new_program) == {
        "minimize": "loss",
        "optimizer": {"op": "sgd", "learning_rate": 0.1},
    }


def other_loss(new_program: Program, loss: Variable) -> None:
    append_backward(loss)
    optimizer.SGD(0.1).minimize(loss_of(new_program, "other"))


def twice(new_program: Program, loss: Variable) -> None:
    append_backward()
    append_backward(loss)


def too_late(new_program: Program, loss: Variable) -> None:
    optimizer.SGD(0.1).minimize(loss)
    append_backward()


def no_loss(new_program: Program, loss: Variable) -> None:
    optimizer.SGD(0.1).minimize("loss")  # type: ignore[arg-type]


def no_scalar(new_program: Program, loss: Variable) -> None:
    append_backward(layers.data("rows", "float32[batch, 4]"))


def a_metric(new_program: Program, loss: Variable) -> None:
    x = layers.data("rows", "float32[batch, 4]")
    optimizer.SGD(0.1).minimize(layers.mean_metric(x, name="seen"))


def bad_rate(new_program: Program, loss: Variable) -> None:
    optimizer.SGD({"cosine": {"init": 1.0}}).minimize(loss)


def no_rule(new_program: Program, loss: Variable) -> None:
    Unnamed(0.1).minimize(loss)


def bad_hyper(new_program: Program, loss: Variable) -> None:
    optimizer.Momentum(0.1, momentum=1.5).minimize(loss)


def bad_place(new_program: Program, loss: Variable) -> None:
    with place_guard("/node:ps:7"):
        optimizer.SGD(0.1).minimize(loss)


def bad_backward(new_program: Program, loss: Variable) -> None:
    with place_guard("/node:ps/gpu"):
        append_backward(loss)


@pytest.mark.parametrize(
    ("mistake", "message", "at", "hint"),
    [
        (
            other_loss,
            "the program already minimizes 'loss', so it cannot minimize 'other'",
            'optimizer.SGD(0.1).minimize(loss_of(new_program, "other"))',
            "minimize the sum of the two losses",
        ),
        (
            twice,
            "append_backward was already called for this program",
            "append_backward(loss)",
            "a program can have only one loss",
        ),
        (
            too_late,
            "append_backward must be called before minimize",
            "append_backward()",
            "minimize uses the place of the gradients",
        ),
        (
            no_loss,
            "a loss must be a value of the program, not 'loss'",
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
            "'seen' is a metric; a metric has no gradient, so it cannot be minimized",
            'optimizer.SGD(0.1).minimize(layers.mean_metric(x, name="seen"))',
            "minimize a loss",
        ),
        (
            bad_rate,
            "'steps' is missing in schedule 'cosine'",
            'optimizer.SGD({"cosine": {"init": 1.0}}).minimize(loss)',
            None,
        ),
        (
            no_rule,
            "Unnamed has no rule of placer.optimizer",
            "Unnamed(0.1).minimize(loss)",
            "derive it from a class of placer.optimizer, such as Adam",
        ),
        (
            bad_hyper,
            "'momentum' must be a number from 0 to less than 1, not 1.5",
            "optimizer.Momentum(0.1, momentum=1.5).minimize(loss)",
            None,
        ),
        (
            bad_place,
            "no 'ps:7' in this cluster, which declares ps: 2",
            "ps:7",
            "valid ids of 'ps' are 0-1",
        ),
        (
            bad_backward,
            "no device 'gpu' on node 'ps', which declares cpu",
            "gpu",
            "declare it for its nodes: devices: {cpu: 1, gpu: 1}",
        ),
    ],
)
def test_a_mistake_is_reported_at_its_line(
    mistake: Any, message: str, at: str, hint: str | None
) -> None:
    with program() as new_program, pytest.raises(SpecError) as caught:
        mistake(new_program, loss_of(new_program))
    assert error_parts(caught.value, __file__) == (message, at, hint)


def test_a_wrong_optimizer_does_not_change_the_program() -> None:
    with program() as new_program:
        loss = loss_of(new_program)
        other = layers.scale(loss, 2.0)
        with pytest.raises(SpecError):
            optimizer.Momentum(0.1, momentum=2).minimize(other)
        with pytest.raises(SpecError), place_guard("/node:front"):
            append_backward(other)
        optimizer.SGD(0.1).minimize(loss)
    assert train(new_program)["optimizer"] == {"op": "sgd", "learning_rate": 0.1}
    assert new_program.model().settings.train.metrics == ["loss"]
