"""R6 and the order of messages, for many placements: one transfer per value and
destination, one message per way, and no circle of waiting."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small_models import model, two_layers

from placer.compiler import lowered
from placer.errors import GraphError
from placer.resources import find
from placer.spec import load

SPECS = sorted(path.stem for path in find("specs").glob("*.yaml"))
PLACES = [
    f"/node:worker{ids}/cpu" for ids in ("", ":0", ":1", ":3", ":0-1", ":2-3", ":0,2")
]
OPTIMIZERS = [
    "/node:ps/cpu",
    "/node:ps:1/cpu",
    "/node:worker/cpu",
    "/node:worker:0/cpu",
]


def check(graph):
    listens = {op.attrs["edge"]: op for op in graph.of_kind("listen_and_serv")}
    arrived, ways = set(), set()
    for send in graph.of_kind("send"):
        listen = listens[send.attrs["edge"]]
        for operand, result in zip(send.operands, listen.results, strict=True):
            for node in graph.nodes(listen):
                key = operand, result.layout, graph.nodes(listen), node
                assert key not in arrived, key
                arrived.add(key)
        depends = level(graph, send)
        way = (send.place, listen.place, depends, graph.is_repeated(send))
        assert way not in ways, way
        ways.add(way)


def level(graph, send):
    """How many messages must have come before the send can go."""
    known, sent = {}, {}
    for op in graph.ops:
        if op.kind == "listen_and_serv":
            depth = sent[op.attrs["edge"]] + 1
        else:
            depth = max((known[name] for name in op.operands), default=0)
        if op.kind == "send":
            sent[op.attrs["edge"]] = depth
        known.update((value.name, depth) for value in op.results)
    return sent[send.attrs["edge"]]


def runs_to_its_end(graph):
    """Each node runs its ops in order; a receive waits for every sender it needs."""
    queues = {
        node: [op for op in graph.ops if node in graph.nodes(op)]
        for node in graph.cluster.all_nodes()
    }
    sent = set()
    while any(queues.values()):
        moved = False
        for node, queue in queues.items():
            while queue:
                op = queue[0]
                if op.kind == "listen_and_serv":
                    edge = op.attrs["edge"]
                    senders = graph.cluster.nodes(op.attrs["from"])
                    if not all((edge, sender) in sent for sender in senders):
                        break
                if op.kind == "send":
                    sent.add((op.attrs["edge"], node))
                queue.pop(0)
                moved = True
        if not moved:
            return False
    return True


@pytest.mark.parametrize("name", SPECS)
def test_specs_send_each_value_once_and_never_wait_in_a_circle(name):
    for graph in lowered(load(find(f"specs/{name}.yaml"))):
        check(graph)
        assert runs_to_its_end(graph)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.sampled_from(PLACES),
    st.sampled_from(PLACES),
    st.sampled_from(OPTIMIZERS),
    st.booleans(),
    st.booleans(),
)
def test_any_placement_sends_once_and_never_waits_in_a_circle(
    first, second, optimizer, clipped, rooted
):
    text = two_layers(
        nodes="{worker: {count: 4}, ps: {count: 2}}",
        first=first,
        second=second,
        optimizer=f"{{op: sgd, learning_rate: 0.1, place: '{optimizer}'}}",
        train="  slicing: {min_block: 40}"
        + ("\n  clip: {global_norm: 1.0}" if clipped else ""),
        extra="  - {name: root, op: sqrt, in: loss}" if rooted else "",
    )
    if rooted:
        text = text.replace("minimize: loss", "minimize: root")
    try:
        graph, _ = lowered(model(text))
    except GraphError as error:
        if "cannot go from" not in error.message:
            raise
        return
    check(graph)
    assert runs_to_its_end(graph)


def test_a_circle_would_be_found():
    graph, _ = lowered(load(find("specs/two_workers.yaml")))
    ops = list(graph.ops)
    send = next(i for i, op in enumerate(ops) if op.kind == "send")
    last = max(i for i, op in enumerate(ops) if op.kind == "listen_and_serv")
    ops.insert(last + 1, ops.pop(send))
    assert not runs_to_its_end(graph.with_ops(ops))
