"""Tables are not written over where a node may still evaluate while others train."""

from support.small_models import model, two_layers

from placer.analysis.in_place import Readers
from placer.compiler import lowered

ONE, OTHER = "/node:worker:0/cpu", "/node:worker:1/cpu"


def graphs(place):
    """A step of worker:0 alone, and an evaluation that takes h.w to a place as well,
    as an op may that a step does without."""
    extra = f"  - {{name: seen, op: reduce_sum, in: h.w, place: '{place}'}}\n"
    text = two_layers(first=ONE, second=ONE, extra=extra)
    text = text.replace("graph:", '  eval: {source: "npz:rows.npz"}\ngraph:')
    step, _ = lowered(model(text))
    _, evaluation = lowered(model(text.replace("[loss]", "[loss, seen]")))
    return step, evaluation


def in_place(place, *, evaluates=True):
    step, evaluation = graphs(place)
    (holder,) = step.nodes(step.producers["h.w"])
    return Readers(step, evaluation if evaluates else None).in_place(holder, ["h.w"])


def test_a_node_that_trains_has_evaluated_before():
    assert in_place(ONE)


def test_a_node_that_only_evaluates_is_not_waited_for():
    assert not in_place(OTHER)


def test_without_an_evaluation_only_the_step_counts():
    assert in_place(OTHER, evaluates=False)


def test_what_is_never_stored_may_lie_where_others_look():
    step, evaluation = graphs(OTHER)
    (holder,) = step.nodes(step.producers["h.w"])
    assert Readers(step, evaluation).in_place(holder, ["frozen"])
