"""Rules of transfers, for many placements: a value goes once to a node, there is one
message between two places per level, and nodes do not wait for each other in a
cycle."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small_models import load_model, two_layers, with_optax

from placer.compiler.driver import lower_model
from placer.compiler.frontend import load
from placer.errors import GraphError
from placer.system.resources import find_file

SPECS = sorted(path.stem for path in find_file("specs").glob("*.yaml"))
PLACES = [
    f"/node:worker{ids}/cpu" for ids in ("", ":0", ":1", ":3", ":0-1", ":2-3", ":0,2")
]
OPTIMIZERS = [
    "/node:ps/cpu",
    "/node:ps:1/cpu",
    "/node:worker/cpu",
    "/node:worker:0/cpu",
]


def segmented(model):
    """The graphs of a step and of an evaluation in which every message is one `send` and
    one `listen_and_serv`: those before `send_and_recv`."""
    graphs = []
    lower_model(model, lambda name, graph: graphs.append((name, graph)))
    return [graph for name, graph in graphs if name == "segment"]


def check(graph):
    listens = graph.receives
    arrived, routes = set(), set()
    for send in graph.of_kind("send"):
        listen = listens[send.attrs["edge"]]
        for operand, result in zip(send.operands, listen.results, strict=True):
            for node in graph.nodes(listen):
                key = operand, result.layout, graph.nodes(listen), node
                assert key not in arrived, key
                arrived.add(key)
        depth = level(graph, send)
        values = (*(graph.values[name] for name in send.operands), *listen.results)
        flats = [value.flat for value in values if value.flat is not None]
        assert len(flats) in (0, len(send.operands))
        # The ranges of one group are a message of their own.
        group = (
            (flats[0].total, "F" in {v.layout for v in listen.results}, send.operands)
            if flats
            else None
        )
        route = (send.place, listen.place, depth, graph.is_repeated(send), group)
        assert route not in routes, route
        routes.add(route)


def level(graph, send):
    """The number of messages that the send has to wait for, one after the other."""
    depths, sent = {}, {}
    for op in graph.ops:
        if op.kind == "listen_and_serv":
            depth = sent[op.attrs["edge"]] + 1
        else:
            depth = max((depths[name] for name in op.operands), default=0)
        if op.kind == "send":
            sent[op.attrs["edge"]] = depth
        depths.update((value.name, depth) for value in op.results)
    return sent[send.attrs["edge"]]


def finishes(graph):
    """Whether all nodes finish, if each runs its ops in order and a receive waits for
    all its senders."""
    queues = {
        node: [op for op in graph.ops if node in graph.nodes(op)]
        for node in graph.cluster.all_nodes()
    }
    sent = set()
    while any(queues.values()):
        progress = False
        for node, queue in queues.items():
            while queue:
                op = queue[0]
                if op.sent_edge is not None:
                    sent.add((op.sent_edge, node))
                if (edge := op.received_edge) is not None:
                    senders = graph.nodes(graph.sends[edge])
                    if not all((edge, sender) in sent for sender in senders):
                        break
                queue.pop(0)
                progress = True
        if not progress:
            return False
    return True


@pytest.mark.parametrize("name", SPECS)
def test_specs_send_each_value_once_without_deadlock(name):
    model = with_optax(load(find_file(f"specs/{name}.yaml")))
    for graph in segmented(model):
        check(graph)
        assert finishes(graph)
    assert all(map(finishes, filter(None, lower_model(model))))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.sampled_from(PLACES),
    st.sampled_from(PLACES),
    st.sampled_from(OPTIMIZERS),
    st.booleans(),
    st.booleans(),
)
def test_any_placement_sends_each_value_once_without_deadlock(
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
        model = load_model(text)
        (graph,) = segmented(model)
    except GraphError as error:
        if "cannot go from" not in error.message:
            raise
        return
    check(graph)
    assert finishes(graph)


def test_a_deadlock_is_detected():
    graph, *_ = lower_model(load(find_file("specs/two_workers.yaml")))
    ops = list(graph.ops)
    send = next(i for i, op in enumerate(ops) if op.kind == "send")
    last = max(i for i, op in enumerate(ops) if op.kind == "listen_and_serv")
    ops.insert(last + 1, ops.pop(send))
    assert not finishes(graph.with_ops(ops))
