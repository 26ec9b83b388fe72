"""Nodes that are threads of one process: `train.threads`."""

import pytest
from support.small_models import load_model, two_layers

from placer.errors import PlacerError

SERVERS = "{op: sgd, learning_rate: 0.1, place: /node:ps/cpu, update: async}"
HETER = "{worker: {count: 4}, heter: {count: 3}, ps: {count: 1}}"


def nodes(**options):
    return load_model(two_layers(**options)).graph.cluster.text()


def test_each_worker_has_so_many_threads():
    assert nodes(train="  threads: 3") == "nodes(worker: 2 with 6 threads, ps: 2)"
    assert nodes(train="  threads: 1") == "nodes(worker: 2, ps: 2)"


def test_the_number_of_workers_may_be_overridden():
    model = load_model(two_layers(train="  threads: 2"), nodes={"worker": 3})
    assert model.graph.cluster.text() == "nodes(worker: 3 with 6 threads, ps: 2)"


def test_an_asynchronous_heter_node_has_a_thread_for_each_of_its_workers():
    cluster = load_model(two_layers(nodes=HETER, optimizer=SERVERS)).graph.cluster
    assert cluster.text() == "nodes(worker: 4, heter: 3 with 4 threads, ps: 1)"
    heter = [node for node in cluster.all_nodes() if node.kind == "heter"]
    assert heter == ["heter:0.0", "heter:1.0", "heter:2.0", "heter:0.1"]
    assert nodes(nodes=HETER) == "nodes(worker: 4, heter: 3, ps: 1)"


def test_one_process_has_no_threads():
    model = load_model(two_layers(train="  threads: 2"), single_process=True)
    assert model.graph.cluster.text() == "nodes(worker: 1)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": "  threads: 0"}, "'threads' must be a whole number from 1"),
        (
            {"train": "  threads: 2", "nodes": "{front: {count: 2}}", "first": None},
            "'threads' needs nodes of kind 'worker', and the spec declares no workers",
        ),
        (
            {"train": "  threads: 90000"},
            "the number of threads of nodes 'worker' must be from 1 to 100000, not 180000",
        ),
        (
            {"train": "  threads: 2", "first": "/thread:1/cpu"},
            "a thread number needs the name of a node",
        ),
        (
            {"train": "  threads: 2", "first": "/node:worker/thread:0/cpu"},
            "a place cannot name threads",
        ),
    ],
)
def test_threads_that_there_cannot_be_are_errors(options, message):
    with pytest.raises(PlacerError) as raised:
        load_model(two_layers(**{"second": None, **options}))
    assert message in str(raised.value)
    assert "^" in str(raised.value)  # with its position
