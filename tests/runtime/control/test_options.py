"""Every option of a run is one field of `Options`; the rest is made from the fields."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path

import pytest
from support.option_values import another_value

import placer
from placer import Options, PlacerError
from placer.channel.transport import CHOICES
from placer.command.cli import commands
from placer.command.run import run_command
from placer.launcher.node_command import node_arguments
from placer.runtime.control.options import OPTIONS

ALL = pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)


def options_of_node(arguments: list[str], build: Path) -> Options:
    """Return the options of a node that is started with these arguments."""
    words = [str(build), "--node", "worker:0", *arguments]
    parsed = run_command.make_context("run", words).params
    return Options(**{f.name: parsed[f.name] for f in fields(Options)})


@ALL
def test_an_option_reaches_the_process_of_a_node_unchanged(option, tmp_path):
    options = Options(**{option.name: another_value(option, tmp_path)})
    assert options != Options()
    assert options_of_node(node_arguments(options), tmp_path) == options


def test_all_options_reach_the_process_of_a_node_together(tmp_path):
    values = {o.name: another_value(o, tmp_path) for o in OPTIONS}
    options = Options(**values)
    assert options_of_node(node_arguments(options), tmp_path) == options


@ALL
@pytest.mark.parametrize("command", ["launch", "run"])
def test_the_help_of_the_commands_has_an_option(option, command, capsys):
    with pytest.raises(SystemExit):
        commands.main([command, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert f" {option.flag} " in shown
    assert option.text in shown


@ALL
def test_launch_has_an_argument_for_an_option(option):
    parameter = inspect.signature(placer.launch).parameters[option.name]
    assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
    assert parameter.default == option.default


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"steps": "4"}, "'steps' must be a whole number, not '4'"),
        ({"steps": True}, "'steps' must be a whole number, not True"),
        ({"deadline": "5m"}, "'deadline' must be a number of seconds, not '5m'"),
        ({"partial": 1}, "'partial' must be True or False, not 1"),
        ({"transport": 3}, "'transport' must be a text, not 3"),
        ({"history": 3}, "'history' must be a path, not 3"),
        (
            {"save_params": "out/p.npz"},
            "'save_params' (--save-params) writes safetensors, not '.npz'\n"
            "  hint: use the name p.safetensors",
        ),
        (
            {"history": "out/h.csv"},
            "'history' (--history) writes JSON lines, not CSV\n"
            "  hint: use the name h.jsonl",
        ),
    ],
)
def test_a_value_of_another_type_is_refused(given, message):
    with pytest.raises(PlacerError) as caught:
        Options(**given)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": 0}, "'steps' must be at least 1, not 0"),
        ({"base_port": 70_000}, "'base_port' must be at most 65535, not 70000"),
        ({"until": " "}, "'until' \\(--until\\) must be now, or the name of"),
        ({"passes": 0}, "'passes' must be at least 1, not 0"),
        ({"deadline": 0.0}, "'deadline' must be above 0 and at most 1e"),
        (
            {"transport": "shard"},
            "'shard' is not a transport\n.*did you mean 'shared'",
        ),
    ],
)
def test_a_value_that_an_option_cannot_have_is_refused(values, message):
    with pytest.raises(PlacerError, match=message):
        Options(**values)


def test_the_transports_are_those_of_the_channels():
    (transport,) = (option for option in OPTIONS if option.name == "transport")
    assert transport.choices == CHOICES
