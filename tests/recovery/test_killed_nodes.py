"""A run with `--restarts` whose nodes are killed has the bits of one that is left alone.

Most tests kill many times in one run, each time at another point.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence

import pytest
from support.faulty_runs import Fault, Run, calls_of, check_undisturbed

from placer.checkpoint.attempts import AttemptBegun, read_attempts
from placer.runtime.control.events import Event, Left, State

OFTEN = {"restarts": 100}
NOT_AGAIN = ("checkpoint 0: open checkpoints 2", "checkpoint 0: fsync checkpoints 1")
"""Operations that only the process that creates `attempts.jsonl` does."""
AFTER_RESULT = ("before settle", "after settle", "state done")
NODES = ("worker:0", "worker:1", "ps:0")


def spread(points: Sequence[str], first: int, each: int = 1) -> list[str]:
    """Move points of a step or checkpoint to the steps from `first`, `each` to a step."""
    return [
        re.sub(r"^(step|checkpoint) \d+", rf"\1 {first + i // each}", point)
        for i, point in enumerate(points)
    ]


def kills(node: str, points: Sequence[str]) -> list[Fault]:
    return [Fault(node, point) for point in points]


def test_nodes_are_killed_before_each_call_of_a_step_and_in_states_of_each_kind(
    small, whole
):
    worker, server = (
        calls_of(whole.points[node], "step 2") for node in ("worker:1", "ps:0")
    )
    assert (len(worker), len(server)) == (12, 6)
    control = [
        *("program", "state connecting", "after begin_attempt", "state comparing rows"),
        *("state loading a checkpoint", "state ready", "step 11, call 6: record"),
        "checkpoint 13: write checkpoints/.step-N.N.tmp/manifest.json 1",
        "checkpoint 14: rename checkpoints/.step-N.N.tmp 1",
        "checkpoint 15: replace checkpoints/.best.tmp 1",
        "checkpoint 16: rmtree checkpoints/.step-N.old.tmp 1",
        *("evaluation after step 18, call 9", "after gather_parameters", "before save"),
    ]
    run = small.run(
        *kills("worker:1", spread(worker, 2, each=3)),
        *kills("ps:0", spread(server, 7, each=2)),
        *kills("worker:0", control),
        **OFTEN,
    )
    check_undisturbed(run, whole, restarts=None)
    killed = [each.node for each in run.result.restarts]
    # Failures that are closer together than the reports of the nodes are one restart.
    assert 9 <= killed.count("worker:1") <= 12
    assert 4 <= killed.count("ps:0") <= 6
    assert len(killed) > 18
    first = next(each for each in run.result.restarts if each.node == "worker:1")
    assert re.fullmatch(
        r"worker:1 (was killed by SIGKILL|failed: seen from ps:\d: lost).*", first.what
    )


@pytest.mark.slow
def test_the_control_node_is_killed_before_each_call_of_a_step(small, whole):
    points = spread(calls_of(whole.points["worker:0"], "step 2"), 2)
    run = small.run(*kills("worker:0", points), **OFTEN)
    check_undisturbed(run, whole, restarts=len(points))


@pytest.mark.slow
@pytest.mark.parametrize("node", NODES)
def test_a_node_is_killed_in_each_state(small, whole, node):
    """From the import of its program to its last writing, and while it loads a
    checkpoint."""
    points = [
        point
        for point in whole.points[node]
        if not point.startswith(("step", "evaluation"))
        and point not in (*NOT_AGAIN, *AFTER_RESULT)
        and (": " not in point or point.startswith("checkpoint 0"))
    ]
    if node != "worker:0":  # the control node may have the result
        points.remove("after finish")
    points += ["before resume", "state loading a checkpoint", "after resume"]
    run = small.run(*kills(node, points), **OFTEN)
    check_undisturbed(run, whole, restarts=None)
    assert len(run.restarts) > 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*after the run had a complete result")
def test_the_control_node_is_killed_after_the_result(small, whole):
    """All files are complete. If the launcher has the result, the failure is a warning."""
    run = small.run(Fault("worker:0", "before settle"))
    check_undisturbed(run, whole, restarts=None)
    assert len(run.restarts) + run.result.failed_late == 1


@pytest.mark.slow
@pytest.mark.parametrize("node", ["worker:0", "ps:0"])
def test_a_node_is_killed_before_each_file_operation_of_a_checkpoint(
    small, whole, node
):
    """From step 6 on there is a best checkpoint; from step 4 on, old ones are removed."""
    points = [p for p in whole.points[node] if p.startswith("checkpoint 7: ")]
    assert len(points) > 10
    run = small.run(*kills(node, spread(points, 7)), **OFTEN)
    check_undisturbed(run, whole, restarts=len(points))


@pytest.mark.slow
def test_several_nodes_are_killed_at_once(small, whole):
    processes = ("worker:0", "worker:1", "ps:0", "ps:1")
    run = small.run(
        Fault("worker:1", "step 3, call 2: receive", to=("worker:0", "ps:1")),
        Fault("ps:1", "evaluation after step 6", to=("worker:1",)),
        Fault("ps:0", "step 8, call 5: update", to=processes),
        Fault("worker:0", "step 12, call 3: receive", to=("fork server",)),
    )
    check_undisturbed(run, whole, restarts=4)
    two, one, four, _ = run.restarts
    assert all(f"{node} was killed by SIGKILL" in two for node in ("worker:0", "ps:1"))
    assert all(f"{node} was killed by SIGKILL" in four for node in processes)
    assert one.startswith("worker:1 was killed by SIGKILL")
    assert "fork server" in run.restarts[-1]


@pytest.mark.slow
def test_all_processes_are_new_after_a_second_failure(small, whole):
    """The last process of the failed attempt is killed when it has left the attempt."""
    processes: dict[str, int] = {}
    run = Run()

    def watch(event: Event) -> None:
        run.events.append(event)
        if isinstance(event, State):
            processes[event.node] = event.process
        is_first = sum(isinstance(each, Left) for each in run.events) == 1
        if isinstance(event, Left) and event.node == "worker:0" and is_first:
            os.kill(processes["worker:0"], signal.SIGKILL)

    small.prepare([Fault("ps:0", "step 8, call 1", to=("ps:1", "worker:1", "ps:0"))])
    small.go_on(run, watch=watch)
    check_undisturbed(run, whole, restarts=1)
    assert 0 < run.result.restarts[0].step < 9
    kept = read_attempts(small.files / "checkpoints")
    numbers = [each.number for each in kept if isinstance(each, AttemptBegun)]
    assert numbers == sorted({*numbers})
