"""Options that a command does not have: the error says what to write instead."""

from __future__ import annotations

import inspect
import re
import shlex
from typing import Any

import pytest

import placer
from placer.command.cli import main
from placer.compiler.frontend.parse import load
from placer.compiler.frontend.setting_names import find_setting, setting_paths
from placer.compiler.frontend.yaml.overrides import read_override
from placer.errors import PlacerError, SpecError, SpecErrors
from placer.plan.settings.training.optimizers import RULES
from placer.system.resources import find_file

DIGITS = str(find_file("specs/digits.yaml"))


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the last line of the error of a command line."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ("--epoch 3", "--set train.epochs=3"),
        ("--epochs=3", "--set train.epochs=3"),
        ("--num-epochs 3", "--set train.epochs=3"),
        ("--lr 0.1", "--set train.optimizer.learning_rate=0.1"),
        ("--learning-rate 0.1", "--set train.optimizer.learning_rate=0.1"),
        ("--learing-rate 0.1", "--set train.optimizer.learning_rate=0.1"),
        ("--batch 8", "--set data.train.batch=8"),
        ("--batch-size 8", "--set data.train.batch=8"),
        ("--shuffle", "--set data.train.shuffle=VALUE"),
        ("--optimizer 'my rule'", "--set 'train.optimizer.op=my rule'"),
        ("--momentum 0.5", "--set train.optimizer.momentum=0.5"),
        ("--seed 7 --steps 1", "--set seed=7"),
        ("--workers 4", "--nodes worker=4"),
        ("--num-workers --quiet", "--nodes worker=N"),
    ],
)
def test_a_key_of_the_spec_is_set_with_set(
    words: str, instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = shlex.split(words)
    name = given[0].partition("=")[0]
    expected = f"No such option '{name}'. Did you mean {instead}?"
    assert error_of(capsys, "train", DIGITS, *given) == f"Error: {expected}"
    for command in ("compile", "check"):
        assert expected in error_of(capsys, command, DIGITS, *given)
    for command in ("launch", "run"):
        error = error_of(capsys, command, "build", *given)
        assert error.endswith(f"placer compile SPEC --out BUILD {instead}."), error


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "launch build --set seed=1",
            "It is an option of: placer train, placer compile,",
        ),
        (f"train {DIGITS} --hosts h", "It is an option of: placer launch, placer run."),
        ("key --epochs", "No such option '--epochs'."),
        ("launch build --plain", "No such option '--plain'. Did you mean --"),
        (f"train {DIGITS} --step 1", "Did you mean --steps or "),
    ],
)
def test_other_options(
    words: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in error_of(capsys, *words.split())


def test_the_keys_that_are_suggested_are_keys_of_a_spec() -> None:
    rules = {name for rule in RULES.values() for name in rule.__struct_fields__}
    refused = [
        f"{name}: {path}" for name, path in setting_paths().items() if not takes(path)
    ]
    assert not [each for each in refused if each.partition(":")[0] not in rules]
    assert not takes("train.epoch")
    for name, path in setting_paths().items():
        assert find_setting(f"--{name.replace('_', '-')}") == path


def takes(path: str) -> bool:
    """Return whether the spec of digits can have a key."""
    try:
        load(DIGITS, overrides=[read_override(f"{path}={{}}")])
    except (SpecError, SpecErrors) as error:
        return "unknown key" not in str(error)
    return True


@pytest.mark.parametrize(
    ("option", "of_train", "of_launch"),
    [
        (
            {"epochs": 3},
            "did you mean overrides={'train.epochs': 3}?",
            "compile its spec again with overrides={'train.epochs': 3}",
        ),
        (
            {"workers": 4},
            "did you mean nodes={'worker': 4}?",
            "compile its spec again with nodes={'worker': 4}",
        ),
        (
            {"overrides": {"train.epochs": 3}},
            None,
            "compile its spec again with overrides={'train.epochs': 3}",
        ),
        (
            {"set": {"train.epochs": 3}},
            "did you mean overrides={'train.epochs': 3}?",
            "compile its spec again with overrides={'train.epochs': 3}",
        ),
        ({"stepz": 4}, "did you mean 'steps'?", "did you mean 'steps'?"),
        ({"hosts": "h"}, "it is an argument of: placer.launch", None),
        ({"keys": ["id"]}, *["it is an argument of: placer.predict"] * 2),
        ({"params": {}}, *["did you mean 'init_params'?"] * 2),
    ],
)
def test_options_of_python(
    option: dict[str, Any], of_train: str | None, of_launch: str | None
) -> None:
    (name,) = option
    for function, spec, hint in (
        ("train", DIGITS, of_train),
        ("launch", "build", of_launch),
    ):
        if hint is not None:
            message = f"placer.{function} has no argument '{name}'\n  hint: "
            with pytest.raises(PlacerError, match=f"^{message}.*{re.escape(hint)}$"):
                getattr(placer, function)(spec, **option)


@pytest.mark.parametrize(
    ("function", "name", "hint"),
    [
        ("compile", "epochs", "did you mean overrides={'train.epochs': 3}?"),
        ("compile", "workers", "did you mean nodes={'worker': 3}?"),
        ("compile", "node", "did you mean 'nodes'?"),
        ("compile", "steps", "it is an argument of: placer.train, placer.launch"),
        ("predict", "output", "did you mean 'outputs'?"),
        ("predict", "init_params", "did you mean 'params'?"),
        ("predict", "steps", "it is an argument of: placer.train, placer.launch"),
        ("predict", "history", "it is an argument of: placer.train, placer.launch"),
        ("predict", "lr", "compile its spec again with overrides="),
        ("export", "raw", "it is an argument of: placer.predict"),
        ("export", "output", "did you mean 'outputs'?"),
    ],
)
def test_arguments_of_other_functions(function: str, name: str, hint: str) -> None:
    call = getattr(placer, function)
    given = {name: 3} if function == "compile" else {"params": "p", name: 3}
    message = f"placer.{function} has no argument '{name}'\n  hint: "
    with pytest.raises(PlacerError, match=f"^{message}.*{re.escape(hint)}"):
        call("build", "out", **given)
    assert "unknown" not in inspect.signature(call).parameters
