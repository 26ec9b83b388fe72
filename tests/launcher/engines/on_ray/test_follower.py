"""How the nodes of a job on Ray are followed, with scripted answers of their actors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from support.ray_cluster import needs_ray

from placer.launcher.engines.ray.files import RayJobDescription
from placer.launcher.engines.ray.messages import Ended, Lines, Log, Message, Note
from placer.launcher.engines.ray.node import NodeOutput
from placer.runtime.control.events import Left, Start, State, read_event, write_event
from placer.runtime.control.launcher_orders import address_order

pytestmark = needs_ray
NEVER = object()
"""The answer of a call that is not answered."""
FIRST = {"ps:0": "10.0.0.1:20000", "worker:0": "10.0.0.2:20000"}
RUNS = NodeOutput([], b"a line\n", None)


def lost() -> Exception:
    from ray.exceptions import ActorUnavailableError

    return ActorUnavailableError("RpcError: Socket closed", bytes(16))


def refused() -> Exception:
    from ray.exceptions import ActorDiedError

    return ActorDiedError()


def ended(status: int) -> NodeOutput:
    return NodeOutput([], b"", status)


def events(*given: Any) -> NodeOutput:
    return NodeOutput([write_event(each).rstrip() for each in given], b"", None)


@dataclass
class Script:
    """The answers of actors, and the calls that they have received.

    Attributes:
        answers: the answers of each method of each node, such as `ps:0 read`, in order. The
            last one is repeated.
    """

    answers: dict[str, list[Any]]
    restarts: int = 0
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    told: list[Message] = field(default_factory=list)
    now: float = 0.0

    def called(self, name: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]

    def follow(self, monkeypatch: pytest.MonkeyPatch) -> Ended:
        from placer.launcher.engines.ray import follower, nodes

        fake = SimpleNamespace(
            get=self._get,
            wait=self._wait,
            kill=lambda actor, no_restart: self.calls.append(("kill", actor.name)),
            exceptions=follower.ray.exceptions,
            util=SimpleNamespace(placement_group=lambda *bundles, **how: "group"),
        )
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self._pass)
        monkeypatch.setattr(follower, "ray", fake)
        monkeypatch.setattr(nodes, "ray", fake)
        monkeypatch.setattr(follower, "time", clock)
        job = RayJobDescription(
            "a", "", "", "PACK", 1, False, {}, [], b"", self.restarts, 30.0
        )
        made = nodes.RayNodes(job)
        made.actors = {node: self._actor(node) for node in FIRST}
        made.addresses = dict(FIRST)
        head = SimpleNamespace(look=lambda: "", problem=lambda: "")
        return follower.Follower(job, made, head, self.told.append).follow()

    def _actor(self, node: str) -> SimpleNamespace:
        def method(name: str) -> SimpleNamespace:
            def remote(*arguments: Any) -> list[Any]:
                self.calls.append((f"{node} {name}", *arguments))
                answers = self.answers.get(f"{node} {name}", [None])
                return Ref(answers.pop(0) if len(answers) > 1 else answers[0])

            return SimpleNamespace(remote=remote)

        methods = {name: method(name) for name in ("read", "where", "run", "order")}
        return SimpleNamespace(name=node, **methods)

    def _get(self, ref: Ref) -> Any:
        if isinstance(ref.answer, Exception):
            raise ref.answer
        return ref.answer

    def _wait(self, refs: Sequence[Ref], timeout: float) -> tuple[list[Ref], None]:
        self._pass(timeout)
        return [ref for ref in refs if ref.answer is not NEVER], None

    def _pass(self, seconds: float) -> None:
        self.now += seconds


@dataclass(eq=False)
class Ref:
    """A reference to an answer."""

    answer: Any


def left_of(script: Script) -> list[Left]:
    lines = [
        (m.node, line) for m in script.told if isinstance(m, Lines) for line in m.lines
    ]
    found = [read_event(node, line) for node, line in lines]
    return [event for event in found if isinstance(event, Left)]


def ends_of(script: Script) -> list[Ended]:
    return [each for each in script.told if isinstance(each, Ended)]


def test_an_actor_that_does_not_answer_is_lost_and_the_others_are_followed(monkeypatch):
    reads = {"ps:0 read": [NEVER], "worker:0 read": [*[RUNS] * 100, ended(0)]}
    script = Script(reads)
    last = script.follow(monkeypatch)
    why = "its actor in Ray has not answered for 60 s"
    assert ends_of(script) == [Ended("ps:0", None, why, "10.0.0.1")]
    assert last == Ended("worker:0", 0, "", "10.0.0.2")
    assert script.told.count(Log("worker:0", b"a line\n")) == 100
    assert len(script.called("ps:0 read")) == 1
    assert not script.called("kill")


def test_a_node_whose_actor_is_lost_starts_in_the_next_one_and_others_learn_its_address(
    monkeypatch,
):
    first, second = (
        State("worker:0", "running", process=7),
        State("worker:0", "x", process=9),
    )
    begun = events(Start(1, 9, 3, attempt=2))
    reads = [events(first), begun, *[RUNS] * 20, events(second), RUNS, ended(0)]
    script = Script(
        {
            "ps:0 read": [RUNS, RUNS, lost(), RUNS, ended(0)],
            "ps:0 where": [lost(), lost(), "10.0.0.3:20001"],
            "worker:0 read": reads,
        },
        restarts=2,
    )
    last = script.follow(monkeypatch)
    assert ends_of(script) == [Ended("ps:0", 0, "", "10.0.0.3")]
    assert last == Ended("worker:0", 0, "", "10.0.0.2")
    (left,) = left_of(script)
    assert (left.node, left.attempt, left.root) == ("ps:0", 2, True)
    assert left.cause.what == "lost its actor in Ray"
    # The address before, so that the port stays the same on the same machine.
    assert script.called("ps:0 where") == [("10.0.0.1:20000",)] * 3
    ((_, _, arguments, _),) = script.called("ps:0 run")
    assert arguments[1] == "ps:0=10.0.0.3:20001,worker:0=10.0.0.2:20000"
    # Once for the running process, and once for the one that its guard has started since.
    order = address_order("ps:0", "10.0.0.3:20001")
    assert script.called("worker:0 order") == [(order,), (order,)]
    assert not script.called("ps:0 order")
    assert Note("ps:0 moves from 10.0.0.1 to 10.0.0.3") in script.told


def test_an_actor_that_is_lost_again_before_its_node_has_joined_ends_the_run(
    monkeypatch,
):
    joined = events(State("ps:0", "running"))
    script = Script(
        {
            "ps:0 read": [joined, lost(), RUNS, lost(), joined, lost(), lost(), lost()],
            "ps:0 where": [FIRST["ps:0"]],
            "worker:0 read": [*[RUNS] * 60, ended(1)],
        },
        restarts=2,
    )
    last = script.follow(monkeypatch)
    why = "lost its actor in Ray, 3 times in a row"
    assert ends_of(script) == [Ended("ps:0", None, why, "10.0.0.1")]
    assert last.node == "worker:0"
    assert len(left_of(script)) == 4
    assert not script.called("worker:0 order")


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ([lost], "lost its actor in Ray; Ray has not started it again within 30 s"),
        (
            [NEVER],
            "lost its actor in Ray; Ray has not started it again within 30 s",
        ),
        (
            [refused],
            "lost its actor in Ray; then Ray says: The actor died unexpectedly before finishing this task.",
        ),
    ],
)
def test_an_actor_that_does_not_come_back_ends_the_run(where, why, monkeypatch):
    answers = [each() if callable(each) else each for each in where]
    script = Script(
        {
            "ps:0 read": [lost()],
            "ps:0 where": answers,
            "worker:0 read": [*[RUNS] * 100, lost()],
        },
        restarts=2,
    )
    last = script.follow(monkeypatch)
    assert ends_of(script) == [Ended("ps:0", None, why, "10.0.0.1")]
    # Once the run is over, no actor is waited for.
    assert last == Ended("worker:0", None, "lost its actor in Ray", "10.0.0.2")
    assert not script.called("worker:0 where")


def test_a_guard_that_is_killed_and_an_actor_that_is_silent_are_replaced(monkeypatch):
    script = Script(
        {
            "ps:0 read": [ended(-9), RUNS, ended(128 + 9)],
            "ps:0 where": [FIRST["ps:0"]],
            "worker:0 read": [NEVER, ended(1)],
            "worker:0 where": [FIRST["worker:0"]],
        },
        restarts=2,
    )
    script.answers["ps:0 read"][1:2] = [RUNS] * 200
    last = script.follow(monkeypatch)
    whats = [left.cause.what for left in left_of(script)]
    assert whats == [
        "was lost: its guard was killed by SIGKILL",
        "was lost: its actor in Ray has not answered for 60 s",
    ]
    assert script.called("kill") == [("worker:0",)]
    assert ends_of(script) == [Ended("worker:0", 1, "", "10.0.0.2")]
    assert last == Ended("ps:0", -9, "", "10.0.0.1")
