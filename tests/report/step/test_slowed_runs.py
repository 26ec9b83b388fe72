"""Real runs with one slow part: the longest chain names it first."""

import re

import pytest
from support.slowed_runs import compile_slowed

import placer
from placer.plan.plan import read_plan
from placer.report.run_about import load_text
from placer.report.step.lines import step_lines
from placer.report.step.step_time import read_step_time


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize(
    ("mode", "slow", "first", "advice"),
    [
        ("sync", {"reader": 1}, r"reading rows on worker:\d", "Reading rows takes"),
        ("async", {"reader": 0}, r"reading rows on worker:\d", "Reading rows takes"),
        ("pipeline", {"op": "worker:1"}, "forward on worker:1", None),
    ],
)
def test_the_slow_part_is_named_first(tmp_path, mode, slow, first, advice):
    build = compile_slowed(tmp_path, mode, **slow)
    trace = tmp_path / "trace.json"
    # The first steps use rows that were read while the programs compiled.
    placer.launch(build, in_process=True, trace=trace, trace_steps="12:18", steps=18)
    found = read_step_time(trace, read_plan(build), None)
    # Nodes of one process take turns to read, so each may wait for the slow reader.
    assert re.fullmatch(first, found.parts[0].name)
    assert re.search(f"Its longest parts: {first}", found.sentence)
    assert advice is None or any(each.startswith(advice) for each in found.advice)
    if mode == "sync":
        lines = step_lines(trace, build, read_plan(build), load_text(1.5, 2))
        assert (
            "  Other programs used 1.5 of 2 cores, which may have slowed the run."
            in lines
        )
