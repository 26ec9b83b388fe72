"""Readers have the rows of each step of a run whose nodes are killed."""

from __future__ import annotations

import random

import pytest
from support.faulty_runs import Fault, Run, check_undisturbed, make_faulty
from support.published import TABLES, Follower, build_published

from placer.publishing.served import load
from placer.runtime.control.events import Event

FAULTS = (
    Fault("worker:1", "step 3, call 1"),
    Fault("ps:0", "step 5, call 1"),
    Fault("worker:0", "step 8, call 1", to=("worker:0", "ps:1")),
    Fault("worker:0", "before save"),
)


@pytest.mark.parametrize(
    "every", [1, pytest.param("epoch", marks=pytest.mark.slow)], ids=str
)
def test_a_reader_follows_a_run_whose_nodes_are_killed(tmp_path, every):
    built = build_published(
        tmp_path, table="counted", workers=2, publish={"every": every}
    )
    options = {"checkpoint_keep": 99, "restarts": 9}
    faulty, serving = make_faulty(built, **options), tmp_path / "serving"
    whole = faulty.run(publish=tmp_path / "whole")
    faulty.prepare(FAULTS)
    run, follower = Run(), Follower(serving)

    def watch(event: Event) -> None:
        run.events.append(event)
        follower(event)

    faulty.go_on(run, watch=watch, publish=serving)
    check_undisturbed(run, whole, restarts=None)
    follower.check(faulty.files / "checkpoints")
    numbers = [event.number for event in follower.events]
    assert numbers == [*range(1, len(numbers) + 1)]
    assert run.result.published == follower.events[-1].path
    assert load(serving).state.step == 12


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_a_reader_follows_fifty_publications_with_random_kills(tmp_path, table):
    """Some publications become bases, and old ones go meanwhile."""
    draw = random.Random(table)
    publish = {"every": 1, "base": 7, "keep": 2}
    built = build_published(
        tmp_path, table=table, workers=2, publish=publish, epochs=15
    )
    faulty = make_faulty(built, checkpoint_keep=99, restarts=99)
    whole = faulty.run(publish=tmp_path / "whole")
    nodes = ("worker:0", "worker:1", "ps:0", "ps:1")
    faulty.prepare(
        Fault(draw.choice(nodes), f"step {step}, call {draw.randint(1, 4)}")
        for step in draw.sample(range(2, 60), 10)
    )
    run, follower = Run(), Follower(tmp_path / "serving")

    def watch(event: Event) -> None:
        run.events.append(event)
        follower(event)

    faulty.go_on(run, watch=watch, publish=follower.folder)
    check_undisturbed(run, whole, restarts=None)
    assert len(follower.events) >= 50
    follower.check(faulty.files / "checkpoints")
