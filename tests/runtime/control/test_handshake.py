"""Nodes compare their builds, options and versions before the first step."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.option_values import another_value

from placer import RunError
from placer.channel.cause import Aborted, Cause
from placer.channel.in_process import memory_channels
from placer.runtime.control import handshake
from placer.runtime.control.events import NodeWarning
from placer.runtime.control.handshake import agree
from placer.runtime.control.options import OPTIONS, Option, Options
from placer.runtime.control.versions import own_versions

CONTROL, OTHER = "worker:0", "ps:0"


def shake_hands(
    of_control: Mapping[str, Any], of_other: Mapping[str, Any]
) -> list[Any]:
    """Run the handshake of two nodes with these options, and return the events of the
    control node. Raises its error."""
    nodes = [SimpleNamespace(name=CONTROL), SimpleNamespace(name=OTHER)]
    plan = SimpleNamespace(nodes=nodes, control=CONTROL, digest="d")
    channels = memory_channels((CONTROL, OTHER), deadline=30)
    events: dict[str, list[Any]] = {CONTROL: [], OTHER: []}

    def run(node: str, given: Mapping[str, Any]) -> None:
        options, report = Options(**given), events[node].append
        execution = SimpleNamespace(
            plan=plan, channel=channels[node], options=options, report=report
        )
        agree(execution, {})  # type: ignore[arg-type]

    def answer() -> None:
        with suppress(Aborted):
            run(OTHER, of_other)

    thread = threading.Thread(target=answer, name=OTHER)
    thread.start()
    try:
        run(CONTROL, of_control)
    except RunError as error:
        channels[CONTROL].abort(Cause(CONTROL, "", str(error)))
        raise
    finally:
        thread.join()
    assert not events[OTHER]
    return events[CONTROL]


def options_that(*agreements: str, flags: bool = True) -> pytest.MarkDecorator:
    chosen = [
        option
        for option in OPTIONS
        if option.agreement in agreements and (flags or option.default is not False)
    ]
    return pytest.mark.parametrize("option", chosen, ids=lambda option: option.name)


@options_that("value", "given")
@pytest.mark.parametrize("has_it", [CONTROL, OTHER])
def test_an_option_that_one_node_lacks_is_refused(
    option: Option, has_it: str, tmp_path: Path
) -> None:
    given = {option.name: another_value(option, tmp_path)}
    pair = (given, {}) if has_it == CONTROL else ({}, given)
    with pytest.raises(RunError) as error:
        shake_hands(*pair)
    text = str(error.value)
    assert f"same build and options: {option.flag}: " in text
    assert f"not given on {OTHER if has_it == CONTROL else CONTROL}" in text
    assert f" on {has_it}" in text
    assert "give every node of a run the same build and options" in text


@options_that("value", flags=False)
def test_an_option_with_different_values_is_refused(
    option: Option, tmp_path: Path
) -> None:
    numbers = dict.fromkeys(("steps", "passes", "restarts"), (5, 7))
    values = {**numbers, "trace_steps": ("1:2", "3:4")}
    one, two = values.get(option.name, ("5s", "7s"))
    with pytest.raises(RunError, match=rf"{one} on {CONTROL}; {two} on {OTHER}"):
        shake_hands({option.name: one}, {option.name: two})


@options_that("given")
def test_paths_may_differ_between_machines(option: Option, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = ({option.name: tmp_path / name} for name in ("one", "two"))
    assert not shake_hands(one, two)


@options_that("control")
def test_an_option_of_the_control_node_is_not_given_to_others_only(
    option: Option, tmp_path: Path
) -> None:
    given = {option.name: another_value(option, tmp_path)}
    assert not shake_hands(given, given)
    assert not shake_hands(given, {})
    with pytest.raises(RunError, match=f"{option.flag}: not given on {CONTROL};"):
        shake_hands({}, given)


@options_that("own")
def test_each_node_may_have_its_own(option: Option, tmp_path: Path) -> None:
    assert not shake_hands({option.name: another_value(option, tmp_path)}, {})


@pytest.mark.parametrize("what", own_versions())
def test_nodes_with_other_versions_are_refused(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a warning where the last part differs."""
    others = {}

    def versions() -> dict[str, str]:
        name = threading.current_thread().name
        return own_versions() | {what: others[OTHER if name == OTHER else CONTROL]}

    monkeypatch.setattr(handshake, "own_versions", versions)
    others |= {CONTROL: "0.7.1", OTHER: "0.7.1"}
    assert not shake_hands({}, {})
    others[OTHER] = "0.7.2"
    (warning,) = shake_hands({}, {})
    assert isinstance(warning, NodeWarning)
    differ = f"different versions of {what}: 0.7.1 on worker:0; 0.7.2 on ps:0"
    assert differ in warning.message
    assert "this may change the bits of the result" in warning.message
    others[OTHER] = "0.8.1"
    with pytest.raises(
        RunError, match=r"0\.7\.1 on worker:0; 0\.8\.1 on ps:0"
    ) as error:
        shake_hands({}, {})
    assert "0.7.1" in (error.value.hint or "")
    # placer is not on an index.
    assert ("`pip install .` in a clone" in error.value.hint) == (what == "placer")
