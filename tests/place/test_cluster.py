"""A cluster resolves places to devices, and reports those that it does not have."""

from __future__ import annotations

import pytest

from placer.errors import PlaceError, Span
from placer.place import Cluster, Location, NodeKind, Place

CLUSTER = Cluster((NodeKind("worker", 2, (("cpu", 1), ("gpu", 8))), NodeKind("ps", 3)))
PLAIN = Cluster((NodeKind("worker", 2), NodeKind("ps", 2)))


def resolved(text: str) -> list[str]:
    return [str(location) for location in CLUSTER.resolve(Place.parse(text))]


def test_a_place_resolves_to_its_devices_by_node_id_and_then_device_id() -> None:
    assert resolved("/node:worker/gpu:6-7") == [
        "/node:worker:0/gpu:6",
        "/node:worker:0/gpu:7",
        "/node:worker:1/gpu:6",
        "/node:worker:1/gpu:7",
    ]
    assert resolved("/node:ps:2,0/cpu") == ["/node:ps:0/cpu:0", "/node:ps:2/cpu:0"]
    assert len(resolved("/node:worker:*/gpu:*")) == 16


def test_a_location_has_a_node_name() -> None:
    assert Location("worker", 1, "gpu", 3).node_name == "worker:1"


def test_nodes_returns_the_distinct_nodes_of_a_place_in_order() -> None:
    nodes = CLUSTER.nodes
    assert nodes(Place.parse("/node:worker/gpu:0-3")) == ("worker:0", "worker:1")
    assert nodes(Place.parse("/node:ps:0,2/cpu")) == ("ps:0", "ps:2")
    assert nodes(Place.parse("/node:ps")) == ("ps:0", "ps:1", "ps:2")


def test_all_nodes_are_in_the_order_of_declaration() -> None:
    assert CLUSTER.all_nodes() == ("worker:0", "worker:1", "ps:0", "ps:1", "ps:2")


def test_a_place_is_completed_by_default_nodes_and_the_default_device() -> None:
    def completed(text: str, nodes: str = "") -> str:
        default = Place.parse(nodes) if nodes else None
        return str(CLUSTER.complete(Place.parse(text), default))

    assert completed("/node:worker:1") == "/node:worker:1/gpu"
    assert completed("/node:worker:0-1/cpu") == "/node:worker/cpu"
    assert completed("/node:ps") == "/node:ps/cpu"
    assert completed("/gpu:2", "/node:worker:0/cpu") == "/node:worker:0/gpu:2"
    assert str(CLUSTER.complete(Place(), Place("ps", (1,)))) == "/node:ps:1/cpu"
    # The place has nodes, so those of the other one do not count.
    assert completed("/node:ps:0", "/node:worker/gpu") == "/node:ps:0/cpu"


def test_the_union_of_places_has_all_nodes_and_the_devices_of_the_first() -> None:
    def union(*texts: str) -> Place | None:
        return CLUSTER.union(map(Place.parse, texts))

    assert str(union("/node:ps:2/cpu", "/node:ps:0/cpu")) == "/node:ps:0,2/cpu"
    assert str(union("/node:worker:1/gpu:3", "/node:worker:0/cpu")) == (
        "/node:worker/gpu:3"
    )
    assert union("/node:ps/cpu") == Place.parse("/node:ps/cpu")
    assert union("/node:ps/cpu", "/node:worker/cpu") is None
    assert union() is None


def test_a_sum_is_at_the_place_of_its_terms_or_at_the_first_node_of_the_first() -> None:
    both, second = Place.parse("/node:worker/gpu"), Place.parse("/node:worker:1/gpu")
    assert CLUSTER.place_of_sum([both, both]) == both
    assert str(CLUSTER.place_of_sum([both, second])) == "/node:worker:0/gpu"
    assert CLUSTER.place_of_sum([second, both]) == second
    assert CLUSTER.first_node(second) == second


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("/node:worker:0-1/gpu:0-7", "/node:worker/gpu"),
        ("/node:worker:*/gpu:*", "/node:worker/gpu"),
        ("/node:worker:0/gpu:0-6", "/node:worker:0/gpu:0-6"),
        ("/node:ps/cpu:0", "/node:ps/cpu"),
        ("/node:ps:0-2", "/node:ps"),
        ("/gpu:*", "/gpu"),
        ("/gpu:0-7", "/gpu:0-7"),  # the nodes are unknown
    ],
)
def test_the_canonical_place_drops_ids_that_name_all(text: str, canonical: str) -> None:
    assert str(CLUSTER.canonical(Place.parse(text))) == canonical


@pytest.mark.parametrize(
    ("text", "pointed", "message", "hint"),
    [
        (
            "/node:wroker/cpu",
            "wroker",
            "no node 'wroker' in this cluster, which declares "
            "worker: 2 {cpu: 1, gpu: 8}, ps: 3",
            "did you mean 'worker'?",
        ),
        (
            "/node:ps:1,3-4/cpu",
            "ps:1,3-4",
            "no 'ps:3-4' in this cluster, which declares ps: 3",
            "valid ids of 'ps' are 0-2",
        ),
        (
            "/node:ps/gpu",
            "gpu",
            "no device 'gpu' on node 'ps', which declares cpu",
            "declare it for its nodes: devices: {cpu: 1, gpu: 1}",
        ),
        (
            "/node:ps/cuda",
            "cuda",
            "no device 'cuda' on node 'ps', which declares cpu",
            "write 'gpu', and declare it for its nodes: devices: {cpu: 1, gpu: 1}",
        ),
        (
            "/node:worker/rocm",
            "rocm",
            "no device 'rocm' on node 'worker', which declares cpu, gpu",
            "write 'gpu'",
        ),
        (
            "/node:worker:1/gpu:8",
            "gpu:8",
            "no 'gpu:8' on node 'worker', which declares 8 'gpu'",
            "valid ids of 'gpu' are 0-7",
        ),
        (
            "/job:worker/device:GPU:8",
            "/job:worker/device:GPU:8",
            "no 'gpu:8' on node 'worker', which declares 8 'gpu'",
            "valid ids of 'gpu' are 0-7",
        ),
        (
            "/node:worker",
            "/node:worker",
            "the place '/node:worker' has no device",
            "write both, for example /node:worker/cpu",
        ),
        (
            "/gpu:1",
            "/gpu:1",
            "the place '/gpu:1' has no node",
            "write both, for example /node:worker/cpu",
        ),
    ],
)
def test_an_error_names_and_points_at_what_the_cluster_lacks(
    text: str, pointed: str, message: str, hint: str
) -> None:
    line = f"  - {{name: worker, place: {text}}}"
    span = Span("model.yaml", 3, line.index(text) + 1, len(text), line)
    with pytest.raises(PlaceError) as caught:
        CLUSTER.resolve(Place.parse(text), span=span)
    error = caught.value
    assert (error.message, error.hint) == (message, hint)
    column = line.index(text) + text.index(pointed) + 1
    assert error.span == Span("model.yaml", 3, column, len(pointed), line)


def test_without_a_file_the_error_points_at_the_place() -> None:
    with pytest.raises(PlaceError) as caught:
        CLUSTER.resolve(Place.parse("/node:worker/tpu"))
    assert caught.value.span == Span("<place>", 1, 14, 3, "/node:worker/tpu")


def test_a_place_with_one_part_is_checked() -> None:
    CLUSTER.check(Place.parse("/gpu:7"))
    CLUSTER.check(Place.parse("/node:ps:2"))
    with pytest.raises(PlaceError, match="no 'gpu:8' on any node"):
        CLUSTER.check(Place.parse("/gpu:8"))
    with pytest.raises(PlaceError, match="no device 'tpu' on any node"):
        CLUSTER.check(Place.parse("/tpu"))


def test_nodes_of_a_place_that_the_cluster_lacks_are_an_error() -> None:
    with pytest.raises(PlaceError, match="no 'ps:3'"):
        CLUSTER.nodes(Place.parse("/node:ps:3/cpu"))
    with pytest.raises(PlaceError, match="has no node"):
        CLUSTER.nodes(Place.parse("/cpu"))


def test_kind_returns_a_kind_by_name_or_names_the_nearest() -> None:
    assert CLUSTER.kind("ps") == NodeKind("ps", 3)
    with pytest.raises(PlaceError, match="did you mean 'worker'"):
        CLUSTER.kind("workers")


def test_a_cluster_prints_as_in_the_text_of_a_graph() -> None:
    assert PLAIN.text() == "nodes(worker: 2, ps: 2)"
    assert str(CLUSTER) == "nodes(worker: 2 {cpu: 1, gpu: 8}, ps: 3)"
    assert Cluster.parse("nodes()") == Cluster(())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nodes",
        "nodes(worker: 2",
        "nodes(worker: 2,)",
        "nodes(worker)",
        "nodes(worker: -1)",
        "nodes(worker: 02)",
        "nodes(worker: 0)",
        "nodes(worker: 2 {})",
        "nodes(worker: 2 {cpu: 1, cpu: 2})",
        "nodes(worker: 2, worker: 2)",
        "nodes(worker: 2 {node: 1})",
        "nodes(worker: 2)\n",
        "nodes(worker: 2 {cpu: 1} ps: 2)",
        "nodes(worker: 9999999)",
        "nodes(worker: 100000 {gpu: 100000})",
    ],
)
def test_other_text_is_not_a_cluster(text: str) -> None:
    with pytest.raises(PlaceError):
        Cluster.parse(text)


def test_an_error_of_a_cluster_text_points_to_its_position() -> None:
    span = Span("graph.txt", 1, 15, 5, "graph @digits nodes")
    with pytest.raises(PlaceError) as caught:
        Cluster.parse("nodes", span=span)
    assert caught.value.span == span
