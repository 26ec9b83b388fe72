"""On which server ops and parameters stand that name none: memory, bytes moved, FLOPs."""

from collections import Counter

from support.small_models import model

from placer.compiler import compile as compile_model
from placer.compiler import lowered

ADAM = "{op: adam, learning_rate: 0.1, place: /node:ps}"


def spec(*ops, servers=4, optimizer=ADAM):
    lines = "".join(f"  - {{{op}}}\n" for op in ops)
    return f"""
name: m
nodes: {{worker: {{count: 2}}, ps: {{count: {servers}}}}}
inputs: {{id: "int32[batch]", x: "float32[batch, 16]", y: "int32[batch]"}}
data: {{train: {{source: "npz:x.npz", batch: 8}}}}
graph:
{lines}train:
  minimize: loss
  optimizer: {optimizer}
"""


def tables(*sizes, **settings):
    """Embeddings on some server, of so many rows each, and a layer on the workers."""
    names = [f"t{i}" for i in range(len(sizes))]
    return spec(
        *(
            f"name: {name}, op: embedding, in: id, size: [{size}, 8], place: /node:ps"
            for name, size in zip(names, sizes, strict=True)
        ),
        f"name: all, op: concat, in: [{', '.join(names)}], axis: 1, place: /node:worker",
        "name: h, op: fc, in: all, size: 4, place: /node:worker",
        "name: loss, op: softmax_cross_entropy, in: [h, y], place: /node:worker",
        **settings,
    )


def held(text):
    """Elements of parameters on each server."""
    step, _ = lowered(model(text))
    found = Counter({f"ps:{i}": 0 for i in range(step.cluster.kind("ps").count)})
    for op in step.of_kind("parameter"):
        for node in step.nodes(op):
            found[node] += step.tensor(op.name).numel()
    return found


def test_equal_tables_lie_on_all_servers():
    layer = 8 * 8 * 4 + 4  # h.w and h.b, which are not cut
    assert sorted(held(tables(*[1000] * 8)).values()) == [
        16_000,
        16_000,
        16_000 + 4,
        16_000 + layer - 4,
    ]


def test_a_large_table_has_a_server_of_its_own():
    layer = 4 * 8 * 4 + 4
    assert held(tables(9000, 1000, 1000, 1000, servers=2)) == {
        "ps:0": 72_000,
        "ps:1": 24_000 + layer,
    }


def test_a_parameter_of_the_workers_goes_where_little_lies():
    text = spec(
        "name: t, op: embedding, in: id, size: [100, 8], place: /node:ps",
        "name: both, op: concat, in: [t, x], axis: 1, place: /node:worker",
        "name: h, op: fc, in: both, size: 4, place: /node:worker",
        "name: loss, op: softmax_cross_entropy, in: [h, y], place: /node:worker",
        servers=2,
    )
    assert held(text) == {"ps:0": 800, "ps:1": 24 * 4 + 4}


def test_a_frozen_table_may_lie_on_a_server_that_updates_nothing():
    text = tables(
        100, servers=2, optimizer="{op: sgd, learning_rate: 0.1, place: /node:worker}"
    ).replace(
        "train:\n", "parameters: [{match: t0.table, trainable: false}]\ntrain:\n", 1
    )
    assert held(text)["ps:0"] == 800


def test_what_names_its_server_counts_there():
    text = tables(1000, 1000, servers=2).replace(
        "size: [1000, 8], place: /node:ps", "size: [1000, 8], place: /node:ps:0", 1
    )
    assert min(held(text).values()) >= 8000


def test_flops_count_beside_memory():
    """What stores nothing and computes much has a server without a table."""
    products = "op: einsum, in: [x, x], equation: 'bi,bj->bij', place: /node:ps"
    text = tables(1000, 1000, servers=3).replace(
        "  - {name: all,", f"  - {{name: p, {products}}}\n  - {{name: all,"
    )
    seen = {}
    lowered(model(text), lambda name, graph: seen.setdefault(name, graph))
    at = {op.name: str(op.place) for op in seen["place"].ops}
    assert len({at["t0"], at["t1"], at["p"]}) == 3


def test_the_optimizer_s_state_counts():
    """Of each element adam keeps two numbers, and sgd none."""
    step, _ = lowered(model(tables(1000, 1000, 1000, 1000, servers=2)))
    brings = {op.name: op.attrs["server"]["brings"] for op in step.of_kind("embedding")}
    assert brings["t0"][0] == 3 * 1000 * 8 * 4
    sgd = tables(1000, optimizer="{op: sgd, learning_rate: 0.1, place: /node:ps}")
    step, _ = lowered(model(sgd))
    (op,) = step.of_kind("embedding")
    assert op.attrs["server"]["brings"][0] == 1000 * 8 * 4


def test_the_figures_that_decided_are_in_the_plan(tmp_path):
    plan = compile_model(model(tables(1000, 1000, servers=1)), tmp_path / "build")
    why = {choice.what: choice.why for choice in plan.choices}
    # Rows go to the workers, and their gradients come back: 2 x 8 rows of 8 float32.
    assert why["t0 (embedding) at /node:ps/cpu"] == (
        "written as /node:ps: of the servers, the one that is then loaded the least. The "
        "op, with those that it shares values with, stores 96,000 bytes of parameters "
        "and optimizer state, and in a step moves 512 bytes and computes 0 FLOPs; the "
        "server had nothing before"
    )
    assert why["t1 (embedding) at /node:ps/cpu"].endswith(
        "the server had 96,000 bytes stored, 512 bytes moved before"
    )


def test_servers_that_hold_nothing_are_named_in_the_plan(tmp_path):
    plan = compile_model(model(tables(1000, servers=9)), tmp_path / "build")
    why = {choice.what: choice.why for choice in plan.choices}
    assert why["ps:3, ps:4, ps:5 and 3 more of 9 servers"].startswith(
        "nothing is there"
    )
    plan = compile_model(model(tables(1000, servers=3)), tmp_path / "three")
    assert not any("of 3 servers" in choice.what for choice in plan.choices)
