"""Steps whose reports were lost with the control node, and that are not done again."""

from __future__ import annotations

import pytest

from placer.launcher.cause import Failure
from placer.launcher.restarts import Restarts
from placer.runtime.control.events import NodeWarning, Recovered, Start, Step


@pytest.mark.parametrize(
    ("first_step", "lost"),
    [(8, ""), (9, "step 8:"), (1_011, "step 8 to 1,010:")],
)
def test_steps_that_are_not_done_again_and_were_not_reported_are_named(
    first_step, lost
):
    restarts = Restarts(1, "worker:0", None, 60.0, compares=True)
    for event in (Start(1, 2000, 10), Step(7, 1, {})):
        assert list(restarts.pass_on(event)) == [event]
    restarts.fail(Failure("worker:0", "worker:0 failed: lost", first_hand=True))
    told = [*restarts.pass_on(Start(first_step, 2000, 10, attempt=2))]
    (recovered,) = (event for event in told if isinstance(event, Recovered))
    assert (recovered.step, recovered.again) == (first_step - 1, 0)
    warnings = [event.message for event in told if isinstance(event, NodeWarning)]
    text = f"callbacks do not receive {lost} worker:0 was lost before"
    assert [text in each for each in warnings[1:]] == [True] * bool(lost)
    following = Step(first_step, 1, {})
    assert list(restarts.pass_on(following)) == [following]
