"""A run that gets no further says which node failed, how often, and with which error."""

from __future__ import annotations

import json
import time

import pytest
from msgspec.structs import replace

from placer.channel.cause import Cause
from placer.checkpoint.attempts import AttemptBegun, AttemptFailed, Line, why_no_further
from placer.launcher.cause import Failure, failure_from_report
from placer.launcher.restarts import Restarts
from placer.report.outcome import result_json, result_lines
from placer.runtime.control.events import (
    CheckpointSaved,
    Event,
    Left,
    NodeFailure,
    Recovered,
    Start,
    Step,
)
from placer.runtime.control.result import Restart, Result


def lines(*failures: tuple[str, str], step: int = 480) -> list[Line]:
    """The lines of attempts that begin after a step, each with its node and its error. The
    first node adds no failure of its own process."""
    found: list[Line] = []
    for number, (node, what) in enumerate(failures, start=1):
        found.append(AttemptBegun("a", number, step, 0.0))
        if node:
            failed = AttemptFailed(
                "a", number, node, "step 5", what, what != "lost", 0.0
            )
            found.append(failed)
    return [*found, AttemptBegun("a", len(failures) + 1, step, 0.0)]


@pytest.mark.parametrize(
    ("failures", "step", "text"),
    [
        ([("ps:0", "lost")], 480, ""),
        (
            [("ps:0", "lost")] * 2,
            480,
            "ps:0 failed 2 times in a row after step 480, with 1 restart",
        ),
        ([("ps:0", "lost"), ("ps:1", "lost")], 0, "before the first checkpoint"),
        (
            [("", ""), ("", "")],
            4000,
            "worker:0 failed 2 times in a row after step 4,000",
        ),
        ([("ps:0", "lost"), ("", "")], 9, "2 attempts in a row failed after step 9"),
        ([("ps:0", "bad")] * 2, 4, "ps:0 failed again at the same step, with the same"),
    ],
)
def test_the_reason_names_a_node_that_fails_each_time(failures, step, text):
    why = why_no_further(lines(*failures, step=step), restarts=1, writer="worker:0")
    assert text in why
    assert bool(why) is bool(text)


def test_the_last_failure_is_told_as_the_launcher_knows_it():
    restarts = Restarts(1, "worker:0", lambda child: child, 60.0, compares=True)
    for event in (Start(1, 900, 10), Step(497, 1, {})):
        assert list(restarts.pass_on(event)) == [event]
    why = "ps:0 failed 2 times in a row after step 480"
    told = f"{why}\n  the last failure: ps:0: seen from worker:0: lost"
    end = failure_from_report(NodeFailure(Cause("", "", told), root=True))
    assert restarts.explain(end) == end  # nothing has failed before
    restarts.fail(Failure("ps:0", "ps:0 was killed by SIGKILL", first_hand=True))
    explained = restarts.explain(end)
    assert explained.node == "ps:0"
    assert explained.text.splitlines() == [
        f"{why}: was killed by SIGKILL",
        "  the run got no further than step 497",
    ]
    other = Failure("", "2 attempts in a row failed\n  x", first_hand=True)
    assert restarts.explain(other).text.splitlines()[:2] == [
        "2 attempts in a row failed",
        "  the last failure: ps:0 was killed by SIGKILL",
    ]
    assert restarts.explain(explained) == explained
    other = Failure("worker:0", "worker:0 failed: rows differ", first_hand=True)
    assert restarts.explain(other).text.splitlines() == [
        "worker:0 failed: rows differ",
        "  the last failure: ps:0 was killed by SIGKILL",
    ]


def test_restarts_without_a_new_checkpoint_are_counted():
    restarts = Restarts(2, "worker:0", lambda child: child, 60.0, compares=True)

    def told(*events: Event) -> str:
        for event in (Start(1, 900, 10, attempt=len(restarts.done) + 1), *events):
            list(restarts.pass_on(event))
        restarts.fail(Failure("ps:0", "ps:0 was killed", first_hand=True))
        (warning,) = restarts.news()
        list(restarts.finish(1))  # all nodes train again
        return warning.message.removeprefix("ps:0 was killed; all nodes go back ")

    saved = CheckpointSaved(1, "step-000001")
    assert [told(), told(), told(saved), told(), told(), told()] == [
        "(restart 1 of 2 without a new checkpoint)",
        "(restart 2 of 2 without a new checkpoint)",
        "(restart 3)",
        "(restart 1 of 2 without a new checkpoint, 4 in all)",
        "(restart 2 of 2 without a new checkpoint, 5 in all)",
        "ps:0 was killed; failure 3 in a row without a new checkpoint",
    ]


def test_a_stream_that_fails_again_has_longer_pauses():
    """The last one is cut to half of the time to join; the last failure ends the run."""
    restarts = Restarts(3, "worker:0", lambda child: child, 60.0, compares=True)
    restarts.longest_pause = 50.0
    list(restarts.pass_on(Start(1, 900, 10)))
    list(restarts.pass_on(CheckpointSaved(1, "step-000001")))
    cause = Cause("worker:1", "", "no broker", is_error=True, is_outage=True)
    pauses = []
    for attempt in range(1, 6):
        left = Left("worker:1", attempt, cause, root=True)
        restarts.note_left(left, failure_from_report(left), set())
        before = time.monotonic()
        assert (
            restarts.note_exit("worker:1", failure_from_report(left), joined=True)
            is None
        )
        (warning,) = restarts.news()
        for pause in (0, 2, 6, 18, 50):
            if "worker:1" in restarts.due(time.monotonic() + pause):
                break
        assert time.monotonic() < before + 1
        pauses.append(pause)
        assert (
            f"all nodes go back after a pause of {pause} s (restart" in warning.message
        ) is (attempt < 5)
        list(restarts.pass_on(Start(2, 900, 10, attempt=attempt + 1)))
        restarts.joined.add("worker:1")
        list(restarts.news())
    assert pauses == [2, 6, 18, 50, 0]


def test_a_job_that_starts_again_may_forget_an_attempt_that_was_not_counted():
    """All processes are new, and have only the list of counted attempts."""
    restarts = Restarts(1, "worker:0", None, 60.0, compares=True)
    lost = Cause("ps:0", "", "lost its task")
    failure = Failure("ps:0", "ps:0 lost its task", first_hand=True)
    assert len([*restarts.pass_on(Start(1, 9, 9))]) == 1
    for node, attempt, root in [
        ("worker:0", 1, False),
        ("worker:0", 2, False),
        ("ps:0", 2, True),
        ("worker:0", 2, True),
    ]:
        restarts.note_left(Left(node, attempt, lost, root), failure, set())
    assert not [*restarts.pass_on(Start(3, 9, 9, attempt=2))]  # not all have joined
    restarts.joined |= {"worker:0", "ps:0"}
    _, recovered = restarts.news()
    assert isinstance(recovered, Recovered)
    assert (recovered.attempt, recovered.step) == (2, 2)


def test_a_restart_is_one_line_with_the_first_line_of_its_failure():
    restart = Restart("ps:0", "ps:0 failed: bad\n  program.py:3", 480, 1_017, 1.26)
    one = "ps:0 failed: bad (1,017 steps again, 1.3 s)"
    assert str(restart) == one
    result = Result(1, {}, {}, 0.0, {}, restarts=(restart,))
    assert [*result_lines(result)][1:] == [f"  restarts    {one}"]
    assert json.loads(result_json(result))["restarts"][0]["again"] == 1017
    lines = [*result_lines(replace(result, restarts=(restart,) * 12))][1:]
    assert lines[0] == "  restarts    12: 12,204 steps again, 15.1 s"
    assert [line.strip() for line in lines[1:]] == ["2 before", *[one] * 10]
