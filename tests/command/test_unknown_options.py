"""Options that a command does not have: the error says what to write instead."""

from __future__ import annotations

import re
import shlex

import pytest

import placer
from placer.command.cli import main
from placer.config.optimizers import RULES
from placer.errors import PlacerError, SpecError, SpecErrors
from placer.resources import find_file
from placer.spec.overrides import read_override
from placer.spec.parse import load
from placer.spec.setting_names import find_setting, setting_paths

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
        (f"train {DIGITS} --step 1", "Did you mean"),
    ],
)
def test_other_options(
    words: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in error_of(capsys, *words.split())


def test_the_keys_that_are_suggested_are_keys_of_a_spec() -> None:
    rules = {name for rule in RULES.values() for name in rule.hyper}
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
        ({"stepz": 4}, "did you mean 'steps'?", "did you mean 'steps'?"),
    ],
)
def test_options_of_python(
    option: dict[str, int], of_train: str, of_launch: str
) -> None:
    with pytest.raises(PlacerError, match=re.escape(of_train)):
        placer.train(DIGITS, **option)
    with pytest.raises(PlacerError, match=re.escape(of_launch)):
        placer.launch("build", **option)
