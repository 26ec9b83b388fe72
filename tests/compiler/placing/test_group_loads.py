"""The loads of movable groups."""

from functools import cache
from pathlib import Path

import pytest

from placer.compiler.driver import lower_model
from placer.compiler.frontend.python.read import read_model
from placer.compiler.placing.costs import DECLARED, Machine, Sample, measured_costs
from placer.compiler.placing.group_loads import fixed_loads, group_loads

SPECS = Path(__file__).parents[3] / "specs"
FC = "fc(float32[batch, 256], float32[256, 256], float32[256]) {activation = relu, residual = true}"


@cache
def step_of(name):
    model = read_model(SPECS / f"{name}.yaml", nodes=None, overrides=None, code=True)
    graph = model.graph
    ops = (op.with_place(None) for op in graph.ops)
    from dataclasses import replace

    from placer.place import Cluster, NodeKind

    one = Cluster((NodeKind("worker", 1, (("cpu", 1),)),))
    return lower_model(
        replace(model, graph=replace(graph, ops=tuple(ops), cluster=one))
    ).step


def test_the_loads_of_groups_are_those_of_their_ops():
    step = step_of("mlp_pipeline")
    single, _ = group_loads(step, DECLARED, {})
    joined, _ = group_loads(step, DECLARED, {"h1": "low", "h2": "low"})
    assert joined.keys() == single.keys() - {"h1", "h2"} | {"low"}
    for part in ("forward", "backward"):
        both = sum(getattr(single[name], part)["cpu"] for name in ("h1", "h2"))
        assert getattr(joined["low"], part)["cpu"] == pytest.approx(both, rel=1e-3)
    assert joined["low"].once == single["h1"].once + single["h2"].once
    assert single["accuracy"].backward == {}
    assert single["pixels"].once == 0


def test_each_device_kind_has_its_own_entries():
    samples = {f"cpu {FC}": [Sample(16, (9,) * 5)], f"gpu {FC}": [Sample(16, (2,) * 5)]}
    costs = measured_costs(samples, Machine("a processor", 2, {}, {}))
    loads, missing = group_loads(step_of("mlp_pipeline"), costs, {}, ("cpu", "gpu"))
    assert loads["h2"].forward == {"cpu": 9_000, "gpu": 2_000}
    assert loads["h3"].forward == loads["h2"].forward
    # Their gradients have no entry.
    assert {"h2", "h3", "logits"} <= {*missing}


def test_fixed_loads_are_those_of_messages_and_calls():
    fixed = fixed_loads(DECLARED, "adam")
    send, receive = (DECLARED.times(end, 1_000_000)[0] for end in ("send", "receive"))
    assert 2 * (fixed.per_message + fixed.per_megabyte) == pytest.approx(
        send + receive, rel=1e-6
    )
    assert fixed.stage > 0
    assert fixed.update == DECLARED.times("update", 0)[0]
