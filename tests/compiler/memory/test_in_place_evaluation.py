"""Updates in place while some nodes may still evaluate."""

from support.small_models import load_model, two_layers

from placer.compiler.driver import lower_model
from placer.compiler.memory.in_place import InPlaceAnalysis

ONE, OTHER = "/node:worker:0/cpu", "/node:worker:1/cpu"


def graphs(place):
    """A step of worker:0 alone, and an evaluation that reads h.w at a place, too."""
    extra = f"  - {{name: seen, op: reduce_sum, in: h.w, place: '{place}'}}\n"
    text = two_layers(first=ONE, second=ONE, extra=extra)
    text = text.replace("graph:", '  eval: {source: "npz:rows.npz"}\ngraph:')
    step, *_ = lower_model(load_model(text))
    _, evaluation, _ = lower_model(load_model(text.replace("[loss]", "[loss, seen]")))
    return step, evaluation


def in_place(place, *, evaluates=True):
    step, evaluation = graphs(place)
    (holder,) = step.nodes(step.producers["h.w"])
    return InPlaceAnalysis(step, evaluation if evaluates else None).can_update_in_place(
        holder, ["h.w"]
    )


def test_a_node_that_trains_has_finished_its_evaluation():
    assert in_place(ONE)


def test_a_node_that_only_evaluates_prevents_updates_in_place():
    assert not in_place(OTHER)


def test_without_an_evaluation_only_the_step_counts():
    assert in_place(OTHER, evaluates=False)


def test_a_parameter_that_never_changes_counts_as_in_place():
    step, evaluation = graphs(OTHER)
    (holder,) = step.nodes(step.producers["h.w"])
    assert InPlaceAnalysis(step, evaluation).can_update_in_place(holder, ["frozen"])
