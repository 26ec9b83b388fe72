"""What the training loop does with a node between two hooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from placer.errors import RunError
from placer.readers import Order as RowOrder
from placer.runtime.asynchronous.step_workers import StepWorkers
from placer.runtime.batches.batches import Batches
from placer.runtime.exchange.worker_messages import WorkerMessage
from placer.runtime.node.asynchronous_calls import AsynchronousCalls
from placer.runtime.node.batch_calls import BatchCalls
from placer.runtime.node.driver import NodeDriver
from placer.runtime.node.learning_rates import LearningRates
from placer.runtime.node.microbatches import Microbatches
from placer.runtime.node.next_parameters import NextParameters
from placer.runtime.node.node import Node
from placer.runtime.node.position import Position

DONE = WorkerMessage(2, "worker:1", 1)


@dataclass(eq=False)
class Part:
    """Any part of a node: it writes down what is called, and returns what it is given."""

    name: str
    said: list[str]
    results: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, call: str) -> Any:
        if call in ("horizon", "staleness", "geo_staleness", "has_drains", "edges"):
            return self.results[call]

        def note(*arguments: object, **options: object) -> Any:
            numbers = [str(each) for each in arguments if isinstance(each, int | str)]
            self.said.append(" ".join((self.name, call, *numbers)))
            return self.results.get(call)

        return note


class World:
    """A node whose parts write down their calls in `said`."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.position = Position(last_step=9)

    def part(self, name: str, **results: Any) -> Any:
        return Part(name, self.said, results)

    def driver(
        self,
        ends: Mapping[int, Any] | None = None,
        service: Any = None,
        step_workers: StepWorkers | None = None,
        **parts: Any,
    ) -> NodeDriver:
        position, unused = self.position, cast(Any, None)
        exchange, table = self.part("exchange", edges={}), self.part("table")
        rates = LearningRates(position, {}, {})
        training = Batches(RowOrder(10, 4, False, 0, "keep"), None)
        node = Node(
            name="worker:0",
            position=position,
            exchange=exchange,
            tables={"t": table},
            rates=rates,
            devices=unused,
            step_workers=step_workers or StepWorkers(),
            next_parameters=NextParameters(position, exchange),
            batch_calls=BatchCalls(position, training, None, unused, unused),
            microbatch_calls=Microbatches(position),
            asynchronous_calls=AsynchronousCalls(
                position, {}, {}, rates, ends=ends or {}, service=service
            ),
        )
        return NodeDriver(node, self.serve, **parts)

    def serve(self, node: Node) -> None:
        self.said.append(f"serve {len([*node.messages()])}")


@pytest.fixture
def world() -> World:
    return World()


def test_a_step_begins_with_what_other_workers_have_sent(world: World) -> None:
    end = world.part("end", take=[DONE, DONE])
    driver = world.driver(ends={1: end, 2: end}, updates=[end])
    driver.enter_step(6, 2, 2)
    assert world.said == ["exchange new_step", "end take 6", "serve 2"]
    position = world.position
    assert (position.step, position.epoch, position.batch, position.count) == (
        6,
        2,
        2,
        2,
    )
    assert driver.node.asynchronous_calls.arrived == ()


def test_synchronous_a_drain_does_nothing(world: World) -> None:
    driver = world.driver()
    driver.enter_step(1, 1, 0)
    driver.drain(1)
    assert not driver.has_drains
    assert world.said == ["exchange new_step"]
    assert driver.horizon == 1
    assert driver.end_step()


def test_a_worker_drains_its_ends_before_it_updates_and_agrees(world: World) -> None:
    end = world.part(
        "end", take_rest=[DONE], horizon=4, staleness=Counter({0: 2, 1: 1})
    )
    other = world.part("other", horizon=3)
    driver = world.driver(
        ends={1: end, 2: end, 3: other},
        updates=[end],
        replicas=world.part("replicas"),
        has_own_steps=True,
    )
    driver.drain(5)
    assert world.said == [
        "end drain 5",
        "other drain 5",
        "end take_rest",
        "serve 1",
        "replicas agree",
    ]
    assert driver.horizon == 3
    assert driver.staleness == {0: 2, 1: 1}


def test_a_server_serves_until_all_workers_have_drained(world: World) -> None:
    driver = world.driver(
        service=world.part(
            "service", steps_of_rows={}, staleness={2: 1}, geo_staleness={3: 1}
        )
    )
    driver.drain(5)
    assert world.said == ["service start", "service drain", "service steps_of_rows"]
    assert driver.is_server
    assert driver.staleness == {2: 1}
    assert driver.geo_staleness == {3: 1}
    driver.resume(5, {"worker:1": 5})
    assert world.said[-1] == "service resume"


def test_a_server_has_not_done_the_step_that_its_workers_do_not_reach(
    world: World,
) -> None:
    driver = world.driver(service=world.part("service", wait_for_step=False))
    driver.enter_step(3, 1, 2)
    driver.node.wait_for_workers()
    assert not driver.end_step()


def test_a_part_with_backup_workers_hears_of_each_step(world: World) -> None:
    driver = world.driver(step_workers=world.part("workers", has_drains=True))
    driver.enter_step(2, 1, 1)
    driver.node.store("t", [np.zeros(1)])
    assert driver.end_step()
    driver.drain(2)
    assert world.said == [
        "exchange new_step",
        "workers begin 2 4",
        "workers store",
        "workers end 2",
        "workers drain 2",
    ]


def test_a_replayed_drain_after_another_step_is_an_error(world: World) -> None:
    order = SimpleNamespace(
        replays=True, next=lambda *event: [4], peek=lambda *event: [4]
    )
    driver = world.driver(has_own_steps=True, order=order)
    assert driver.drains_next(4)
    assert not driver.drains_next(5)
    with pytest.raises(RunError, match="drains after step 4, not 5"):
        driver.drain(5)


@pytest.mark.parametrize(("last", "expected"), [(3, []), (9, ["exchange discard"])])
def test_parameters_for_a_step_after_the_end_are_received(
    world: World, last: int, expected: list[str]
) -> None:
    driver = world.driver()
    world.position.last_step = last
    driver.node.exchange.edges[7] = SimpleNamespace(
        id=7, sent_back=True, targets=("worker:0",)
    )
    driver.discard_sent_back()  # no step has begun
    driver.enter_step(3, 1, 2)
    driver.enter_evaluation(3)
    driver.discard_sent_back()
    assert [each for each in world.said if "discard" in each] == expected
