"""docs/reference/runs.md lists the keys of the files of a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from placer.report.run_files import KEPT, Command, RunEnd
from placer.report.step.works import WORK
from placer.runtime.control.events import (
    CheckpointSaved,
    Event,
    Output,
    Predicted,
    Step,
)
from placer.runtime.control.result import PredictionResult, Result
from placer.runtime.control.table_counts import TableCounts
from placer.runtime.timeline.recorder import RECEIVE, SEND, WAIT

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "runs.md").read_text()
OF_OTHER_FILES = (Step, Result, PredictionResult, Predicted, Output)
"""Events that are not in events.jsonl."""
EVENTS = [each for each in get_args(Event) if each not in OF_OTHER_FILES]


def section_of(file: str) -> str:
    return PAGE.partition(f"### {file}\n")[2].partition("\n### ")[0]


def keys_of(file: str) -> set[str]:
    """Return the words in code style of the section about a file."""
    return {*re.findall(r"`([a-z_]+)`", section_of(file))}


def test_the_page_names_all_files() -> None:
    for file in KEPT:
        assert keys_of(file), file


def test_the_page_has_the_keys_of_the_command_and_of_the_result() -> None:
    assert {*Command.__struct_fields__} <= keys_of("command.json")
    keys = {*RunEnd.__struct_fields__, *Result.__struct_fields__}
    assert keys <= keys_of("result.json")


def test_the_page_and_the_docstring_have_the_keys_of_shares() -> None:
    (row,) = re.findall(r"^\| `shares` .*$", section_of("result.json"), re.M)
    _, _, text = (Result.__doc__ or "").partition("        shares: ")
    for text_of in (row, text.partition("        tables: ")[0]):
        keys = {*re.findall(r"`([a-z]+)`", text_of)} - {"shares", "other"}
        assert keys == {*WORK, SEND, RECEIVE, WAIT}


def test_the_page_has_the_counts_of_a_table() -> None:
    assert TableCounts().as_dict().keys() <= keys_of("history.jsonl")


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_the_page_has_the_keys_of_an_event(event: type[CheckpointSaved]) -> None:
    tag = event.__struct_config__.tag
    (row,) = re.findall(rf"^\|.*`{tag}`.*\|.*$", section_of("events.jsonl"), re.M)
    fields = {*event.__struct_fields__}
    if tag == "state":  # The record leaves out counts, which the history has.
        fields = {"node", "state", "step"}
    assert fields <= {*re.findall(r"`([a-z_]+)`", row)}
