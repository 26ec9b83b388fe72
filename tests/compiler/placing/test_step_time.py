"""The simulation of a step: cores, links, waiting, and steps that follow each other."""

import pytest

from placer.compiler.placing.costs import STEPS
from placer.compiler.placing.step_items import Item, StepItems
from placer.compiler.placing.step_time import Links, simulate
from placer.errors import PlacerError

AT_ONCE = Links(latency=0)


def work(ns, kind="compute"):
    return Item("work", {kind: (ns,) * STEPS})


def route(edge, source, target, microbatch=None):
    return edge, microbatch, source, target


def send(way, nbytes=1, ns=0):
    return Item("send", {"messages": (ns,) * STEPS}, (), ((way, nbytes),))


def receive(*ways, ns=0):
    return Item("receive", {"messages": (ns,) * STEPS}, ways)


def time_of(items, **options):
    options.setdefault("links", AT_ONCE)
    return simulate(StepItems(items), **options)


def test_a_single_node_takes_the_sum_of_its_items():
    step = time_of({"worker:0": [work(300), work(200, "calls")]})
    assert step.nanoseconds == 500
    assert step.busy["worker:0"] == {
        "compute": 300,
        "sums": 0,
        "messages": 0,
        "calls": 200,
    }
    assert step.cpu("worker:0") == 500


def chain(microbatches, first, second):
    """Two stages, of which the second answers the first, as a pipeline does."""
    there = [route(1, "worker:0", "worker:1", m) for m in range(microbatches)]
    back = [route(2, "worker:1", "worker:0", m) for m in range(microbatches)]
    return {
        "worker:0": [
            *(item for way in there for item in (work(first), send(way))),
            *(receive(way) for way in back),
        ],
        "worker:1": [
            item
            for there_m, back_m in zip(there, back, strict=True)
            for item in (receive(there_m), work(second), send(back_m))
        ],
    }


@pytest.mark.parametrize(
    ("microbatches", "first", "second", "expected"),
    [
        (1, 100, 70, 170),
        (4, 100, 70, 4 * 100 + 70),  # the first stage is the slowest
        (4, 70, 100, 70 + 4 * 100),
    ],
)
def test_a_pipeline_takes_its_slowest_stage_and_the_time_to_fill(
    microbatches, first, second, expected
):
    assert time_of(chain(microbatches, first, second)).nanoseconds == expected


def test_processes_share_cores():
    items = {f"worker:{i}": [work(100)] for i in range(4)}
    assert time_of(items).nanoseconds == 100
    assert time_of(items, cores=2).nanoseconds == 200
    assert time_of(items, cores=1).nanoseconds == 400


def test_a_waiting_process_needs_no_core():
    assert time_of(chain(1, 100, 70), cores=1).nanoseconds == 170


def test_a_link_has_a_bandwidth_and_a_latency():
    items = chain(1, 100, 70)
    slow = Links(bytes_per_second=10**9, latency=1_000)
    # One byte takes a nanosecond, there and back.
    assert time_of(items, links=slow).nanoseconds == 170 + 2 * (1_000 + 1)


def test_messages_of_one_link_follow_each_other():
    ways = [route(i, "worker:0", "worker:1") for i in range(3)]
    done = route(9, "worker:1", "worker:0")
    items = {
        "worker:0": [*(send(way, 1_000) for way in ways), receive(done)],
        "worker:1": [receive(*ways), send(done, 0)],
    }
    links = Links(bytes_per_second=10**9, latency=0)
    step = time_of(items, links=links)
    assert step.nanoseconds == 3_000
    assert step.link_bytes == {("worker:0", "worker:1"): 3_000}


def test_a_step_begins_before_the_last_one_has_ended_elsewhere():
    there = route(1, "worker:0", "worker:1")
    items = {
        "worker:0": [work(100), send(there)],
        "worker:1": [receive(there), work(90)],
    }
    assert time_of(items).nanoseconds == 100


def test_a_stage_also_waits_for_the_slow_steps_of_another():
    # Both take 0 and 200 in turn, at different steps: one is always slow.
    there, back = route(1, "worker:0", "worker:1"), route(2, "worker:1", "worker:0")
    varying = Item("work", {"compute": (0, 200) * (STEPS // 2)})
    lists = {
        "worker:0": [varying, send(there), receive(back)],
        "worker:1": [varying, send(back), receive(there)],
    }
    step = time_of(lists)
    assert step.cpu("worker:0") == step.cpu("worker:1") == 100
    assert step.nanoseconds == 200


def test_nodes_that_wait_for_each_other_are_an_error():
    there, back = route(1, "worker:0", "worker:1"), route(2, "worker:1", "worker:0")
    items = {
        "worker:0": [receive(back), send(there)],
        "worker:1": [receive(there), send(back)],
    }
    with pytest.raises(PlacerError, match="wait for each other"):
        time_of(items)
