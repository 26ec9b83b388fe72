"""Common steps: every node stops or saves after the same steps, ahead or behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from placer.channel.in_process import memory_channels
from placer.channel.interface import Aborted, Cause, Channel, Key
from placer.errors import RunError
from placer.runtime.control.common_step import Action, CommonStep

TIMEOUT = 10.0
STEPS = 400


class Plan:
    """The part of a plan that common steps use."""

    def __init__(self, count: int) -> None:
        self.nodes = [PlannedNode(f"worker:{i}") for i in range(count)]
        self.control = "worker:0"


class PlannedNode:
    def __init__(self, name: str) -> None:
        self.name = name


Step = Callable[[Channel, int], None]


Request = tuple[int, Action]
"""The node that makes a request, and for what."""


@dataclass
class Done:
    """The number of steps that a node has run, and the steps after which it saved."""

    steps: int = 0
    saves: list[int] = field(default_factory=list)


def run(
    steps: list[Step], requests: dict[int, Request], bound: int = 1 << 20
) -> list[Done]:
    """Run nodes as threads; return what each node has done.

    `steps` are the nodes' parts of a step. A request is made before a step of the node
    that makes it.
    """
    plan = Plan(len(steps))
    names = [node.name for node in plan.nodes]
    channels = memory_channels(names, bound=bound, deadline=TIMEOUT, beat=0.005)
    parts = [CommonStep(plan, channels[name]) for name in names]  # type: ignore[arg-type]
    done = [Done() for _ in steps]
    errors: list[BaseException] = []

    def act(index: int) -> bool:
        """Act until the next step has begun; return whether to stop."""
        while action := parts[index].next_action(done[index].steps):
            if action & Action.SAVE:
                done[index].saves.append(done[index].steps)
            if action & Action.STOP:
                return True
        return False

    def node(index: int) -> None:
        channel = channels[names[index]]
        try:
            for step in range(1, STEPS + 1):
                who, action = requests.get(step, (-1, Action.NONE))
                if who == index:
                    parts[index].request(action)
                if act(index):
                    break
                steps[index](channel, step)
                done[index].steps = step
            parts[index].end()
        except BaseException as error:
            errors.append(error)
            channel.abort(Cause(channel.node, "", str(error)))

    threads = [threading.Thread(target=node, args=(i,)) for i in range(len(steps))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
    return done


def send_message(channel: Channel, to: int, step: int, size: int) -> None:
    channel.send(f"worker:{to}", Key(1, step), [np.zeros(size, np.uint8)])


def await_message(channel: Channel, source: int, step: int) -> None:
    channel.receive(f"worker:{source}", Key(1, step))


def chain(count: int, size: int) -> list[Step]:
    """A pipeline: each node waits for the one before it, and the first runs ahead."""

    def part(index: int) -> Step:
        def step(channel: Channel, number: int) -> None:
            if index > 0:
                await_message(channel, index - 1, number)
            if index + 1 < count:
                send_message(channel, index + 1, number, size)

        return step

    return [part(i) for i in range(count)]


def ring(count: int, size: int) -> list[Step]:
    """Every node waits for all others, so no node is a step ahead."""

    def part(index: int) -> Step:
        others = [i for i in range(count) if i != index]

        def step(channel: Channel, number: int) -> None:
            for other in others:
                send_message(channel, other, number, size)
            for other in others:
                await_message(channel, other, number)

        return step

    return [part(i) for i in range(count)]


def alone(count: int, size: int) -> list[Step]:
    """No node waits for another."""
    return [lambda channel, number: None for _ in range(count)]


# Failures are not shrunk: a failure may be a deadlock, which takes `TIMEOUT` each time.
@settings(max_examples=60, deadline=None, phases=[Phase.generate])
@given(
    kind=st.sampled_from([chain, ring, alone]),
    backwards=st.booleans(),
    count=st.integers(1, 4),
    size=st.sampled_from([0, 100]),
    requests=st.dictionaries(
        st.integers(1, STEPS),
        st.tuples(st.integers(0, 3), st.sampled_from([Action.SAVE, Action.STOP])),
        max_size=6,
    ),
)
def test_all_nodes_act_after_the_same_steps(kind, backwards, count, size, requests):
    steps = kind(count, size)
    if backwards and kind is chain:  # the control node is the last of the pipeline
        steps = [
            lambda channel, number, part=part: part(Mirrored(channel, count), number)
            for part in reversed(steps)
        ]
    # The bound is that of two messages, so a stopped node has to acknowledge messages.
    done = run(steps, requests, bound=2 * (size + 64))
    made = {step: what for step, (node, what) in requests.items() if node < count}
    stops = [step for step, what in made.items() if what & Action.STOP]
    assert len({node.steps for node in done}) == 1, done
    last = done[0].steps
    # A request during the last step may come too late on one node, and not on another.
    saves = {tuple(step for step in node.saves if step < STEPS) for node in done}
    assert len(saves) == 1, done
    assert last == STEPS if not stops else last >= 1
    assert len(done[0].saves) <= len(made) - len(stops)
    own = [step for step, (node, _) in requests.items() if node == 0]
    if own and stops and min(own) == min(made) == min(stops):
        assert last >= min(stops) - 1


class Mirrored:
    """A channel of a pipeline whose nodes are numbered from its other end."""

    def __init__(self, channel: Channel, count: int) -> None:
        self.channel, self.count = channel, count

    def name(self, name: str) -> str:
        return f"worker:{self.count - 1 - int(name.split(':')[1])}"

    def send(self, to, key, arrays):
        self.channel.send(self.name(to), key, arrays)

    def receive(self, source, key):
        self.channel.receive(self.name(source), key)


def test_a_node_that_waits_in_a_step_gets_its_message():
    """The control node is asked to stop before step 1, which the other has started."""
    channels = memory_channels(["worker:0", "worker:1"], deadline=TIMEOUT)
    plan = Plan(2)
    control, other = (CommonStep(plan, channels[n.name]) for n in plan.nodes)
    assert other.next_action(0) is Action.NONE
    control.request(Action.STOP)
    assert control.next_action(0) is Action.NONE
    assert other.next_action(1) is Action.STOP
    assert control.next_action(1) is Action.STOP


def test_requests_before_the_decision_are_one_round():
    channels = memory_channels(["worker:0"], deadline=TIMEOUT)
    control = CommonStep(Plan(1), channels["worker:0"])
    control.request(Action.SAVE)
    control.request(Action.STOP)
    assert control.next_action(0) is Action.NONE
    assert control.next_action(1) == Action.SAVE | Action.STOP


def test_a_request_after_the_last_step_has_no_effect():
    channels = memory_channels(["worker:0"], deadline=TIMEOUT)
    control = CommonStep(Plan(1), channels["worker:0"])
    assert control.next_action(0) is Action.NONE
    control.end()
    control.request(Action.STOP)
    assert control.next_action(1) is Action.NONE


def test_a_failed_run_ends_the_wait_of_a_stopped_node():
    channels = memory_channels(["worker:0", "worker:1"], deadline=TIMEOUT)
    control = CommonStep(Plan(2), channels["worker:0"])
    control.request(Action.STOP)  # worker:1 never answers
    channels["worker:1"].abort(Cause("worker:1", "step 1", "it broke"))
    with pytest.raises(Aborted, match="it broke"):
        control.next_action(0)


def test_a_node_that_never_answers_raises_at_the_deadline():
    channels = memory_channels(["worker:0", "worker:1"], deadline=0.05)
    control = CommonStep(Plan(2), channels["worker:0"])
    control.request(Action.STOP)
    with pytest.raises(RunError, match=r"worker:0 waited 0.05 s .* from worker:1"):
        control.next_action(0)
