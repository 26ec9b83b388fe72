"""A run with `--restarts` whose nodes are killed has the bits of one that is left alone.

Most tests kill many times in one run, each time at another point.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from support.faulty_runs import Fault, calls_of, check_undisturbed
from support.marks import slow_but

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


def test_nodes_are_killed_before_each_call_of_a_step(small, whole):
    worker, server, control = (
        calls_of(whole.points[node], "step 2")
        for node in ("worker:1", "ps:0", "worker:0")
    )
    # The control node runs the program of the other worker: one call of each sort.
    control = [*{call.partition(": ")[2]: call for call in control}.values()]
    assert (len(worker), len(server), len(control)) == (12, 6, 6)
    run = small.run(
        *kills("worker:1", spread(worker, 2, each=3)),
        *kills("ps:0", spread(server, 7, each=2)),
        *kills("worker:0", spread(control, 11, each=2)),
        **OFTEN,
    )
    check_undisturbed(run, whole, restarts=24)
    killed = [each.node for each in run.result.restarts]
    assert killed == ["worker:1"] * 12 + ["ps:0"] * 6 + ["worker:0"] * 6
    first = run.result.restarts[0]
    assert re.fullmatch(
        r"worker:1 was killed by SIGKILL( at step 1 or later)?", first.what
    )
    assert first.step <= 1


@pytest.mark.parametrize("node", slow_but(["worker:0"], NODES))
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
    points += ["before resume", "state loading a checkpoint", "after resume"]
    run = small.run(*kills(node, points), **OFTEN)
    check_undisturbed(run, whole, restarts=None)
    assert len(run.restarts) > 1


@pytest.mark.filterwarnings("ignore:.*after the run had a complete result")
def test_the_control_node_is_killed_after_the_result(small, whole):
    """All files are complete. If the launcher has the result, the failure is a warning."""
    run = small.run(Fault("worker:0", "before settle"))
    check_undisturbed(run, whole, restarts=None)
    assert len(run.restarts) + run.result.failed_late == 1


@pytest.mark.parametrize("node", slow_but(["worker:0"], ["worker:0", "ps:0"]))
def test_a_node_is_killed_before_each_file_operation_of_a_checkpoint(
    small, whole, node
):
    """From step 6 on there is a best checkpoint; from step 4 on, old ones are removed."""
    points = [p for p in whole.points[node] if p.startswith("checkpoint 7: ")]
    assert len(points) > 10
    run = small.run(*kills(node, spread(points, 7)), **OFTEN)
    check_undisturbed(run, whole, restarts=len(points))


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
