"""Frozen nodes of a run with `--restarts`, and a launcher that is killed."""

from __future__ import annotations

import signal

import pytest
from support.checkpointed import lines
from support.faulty_runs import Fault, check_undisturbed
from support.marks import slow_but
from support.real_runs import processes_of, running_launch, wait_for_exit

LOST_AFTER = 4
"""Seconds; a busy machine must not delay the signs of life of another node for so long."""
POINT = "step 5, call 2: "
NODES = ("worker:0", "worker:1", "ps:0")
POINTS = (
    *((node, POINT) for node in NODES),
    ("worker:1", "state connecting"),
    ("ps:1", "state connecting"),
    ("worker:1", "state comparing rows"),
    ("ps:0", "state compiling"),
    ("worker:1", "evaluation after step 6"),
    ("worker:0", "checkpoint 7: "),
    ("ps:0", "checkpoint 7: "),
    ("ps:1", "before settle"),
    ("worker:0", "before settle"),
)


@pytest.mark.parametrize(("node", "point"), slow_but([], POINTS))
def test_a_node_that_is_frozen_for_a_while_goes_on(small, whole, node, point):
    run = small.run(Fault(node, point, "freeze 5"))
    check_undisturbed(run, whole, restarts=0)


@pytest.mark.filterwarnings("ignore:.*after the run had a complete result")
@pytest.mark.parametrize(("node", "point"), slow_but([("ps:0", POINT)], POINTS))
def test_a_frozen_node_is_replaced(small, whole, node, point):
    run = small.run(Fault(node, point, "freeze"), lost_after=LOST_AFTER)
    check_undisturbed(run, whole, restarts=None)
    if point == "before settle":  # all files are complete
        warning, *_ = run.result.warnings
        assert warning.startswith(f"{node} did not end")
    else:
        assert node in [each.node for each in run.result.restarts]


@pytest.mark.parametrize("node", slow_but([], NODES))
def test_a_node_that_continues_when_the_others_have_left_joins_them(small, whole, node):
    """It is frozen for longer than --lost-after, and continues before it is replaced."""
    run = small.run(Fault(node, POINT, "freeze 6"), lost_after=LOST_AFTER)
    check_undisturbed(run, whole, restarts=None)
    assert run.restarts


@pytest.mark.parametrize(
    "points",
    slow_but(
        [],
        [
            ["step 9, call 2: receive"],
            ["state comparing rows", "state loading a checkpoint", "before save"],
            ["state connecting", "state compiling", "evaluation after step 12, call 5"],
        ],
    ),
)
def test_the_command_of_a_killed_launcher_continues_the_run(small, whole, points):
    """Each time at another point; at one of them a node was killed before."""
    small.prepare()
    kept = small.files / "checkpoints"
    options = [
        f"--checkpoint={kept}",
        f"--resume={kept}",
        "--checkpoint-every=1",
        "--restarts=3",
        f"--history={small.files / 'history'}",
        f"--save-params={small.files / 'params'}",
    ]
    for point in points:
        killed = Fault("worker:1", "state running")
        small.plant([killed, Fault("worker:0", point, to=("launcher",))])
        with running_launch(small.build, *options) as run:
            (small.folder / "launcher").write_text(str(run.process.pid))
            assert run.wait().status == -signal.SIGKILL
        wait_for_exit(processes_of(small.build))
    small.plant([])
    with running_launch(small.build, *options) as run:
        assert run.wait().status == 0
    assert (small.files / "params").read_bytes() == whole.params
    assert lines(small.files / "history") == whole.history
