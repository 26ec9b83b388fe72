"""The choice of servers for ops without a server: memory, bytes moved, FLOPs."""

from collections import Counter

from support.small_models import load_model

from placer.compiler.driver import compile as compile_model
from placer.compiler.driver import lower_model

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
    """Embeddings of these numbers of rows on any server, and a layer on the workers."""
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


def stored_elements(text):
    """The number of parameter elements on each server."""
    step, *_ = lower_model(load_model(text))
    found = Counter({f"ps:{i}": 0 for i in range(step.cluster.kind("ps").count)})
    for op in step.of_kind("parameter"):
        for node in step.nodes(op):
            found[node] += step.tensor_type(op.name).numel()
    return found


def test_equal_tables_are_spread_over_all_servers():
    layer = 8 * 8 * 4 + 4  # h.w and h.b, which are not sliced
    assert sorted(stored_elements(tables(*[1000] * 8)).values()) == [
        16_000,
        16_000,
        16_000 + 4,
        16_000 + layer - 4,
    ]


def test_a_large_table_has_its_own_server():
    layer = 4 * 8 * 4 + 4
    assert stored_elements(tables(9000, 1000, 1000, 1000, servers=2)) == {
        "ps:0": 72_000,
        "ps:1": 24_000 + layer,
    }


def test_a_parameter_of_the_workers_goes_to_the_smaller_server():
    text = spec(
        "name: t, op: embedding, in: id, size: [100, 8], place: /node:ps",
        "name: both, op: concat, in: [t, x], axis: 1, place: /node:worker",
        "name: h, op: fc, in: both, size: 4, place: /node:worker",
        "name: loss, op: softmax_cross_entropy, in: [h, y], place: /node:worker",
        servers=2,
    )
    assert stored_elements(text) == {"ps:0": 800, "ps:1": 24 * 4 + 4}


def test_a_frozen_table_can_be_on_a_server_without_updates():
    text = tables(
        100, servers=2, optimizer="{op: sgd, learning_rate: 0.1, place: /node:worker}"
    ).replace(
        "train:\n", "parameters: [{match: t0.table, trainable: false}]\ntrain:\n", 1
    )
    assert stored_elements(text)["ps:0"] == 800


def test_ops_with_a_given_server_count_there():
    text = tables(1000, 1000, servers=2).replace(
        "size: [1000, 8], place: /node:ps", "size: [1000, 8], place: /node:ps:0", 1
    )
    assert min(stored_elements(text).values()) >= 8000


def test_flops_count_as_memory_does():
    """An op with many FLOPs and no parameters goes to a server without a table."""
    products = "op: einsum, in: [x, x], equation: 'bi,bj->bij', place: /node:ps"
    text = tables(1000, 1000, servers=3).replace(
        "  - {name: all,", f"  - {{name: p, {products}}}\n  - {{name: all,"
    )
    seen = {}
    lower_model(load_model(text), lambda name, graph: seen.setdefault(name, graph))
    at = {op.name: str(op.place) for op in seen["place"].ops}
    assert len({at["t0"], at["t1"], at["p"]}) == 3


def test_the_state_of_the_optimizer_counts():
    """adam has two slots for each element, and sgd none."""
    step, *_ = lower_model(load_model(tables(1000, 1000, 1000, 1000, servers=2)))
    whys = {op.name: op.why for op in step.of_kind("embedding")}
    assert f"store {3 * 1000 * 8 * 4:,} bytes" in whys["t0"]
    sgd = tables(1000, optimizer="{op: sgd, learning_rate: 0.1, place: /node:ps}")
    step, *_ = lower_model(load_model(sgd))
    (op,) = step.of_kind("embedding")
    assert f"store {1000 * 8 * 4:,} bytes" in op.why


def test_the_plan_contains_the_loads(tmp_path):
    plan = compile_model(load_model(tables(1000, 1000, servers=1)), tmp_path / "build")
    why = {choice.what: choice.why for choice in plan.choices}
    # Rows go to the workers, and gradients come back: 2 x 8 rows of 8 float32.
    assert why["t0 (embedding) at /node:ps/cpu"] == (
        "specified as /node:ps: this server then has the least load. The op and the ops"
        " connected to it store 96,000 bytes of parameters and slots. Per step they move"
        " 512 bytes and compute 0 FLOPs. Before, the server had no load"
    )
    assert why["t1 (embedding) at /node:ps/cpu"].endswith(
        "the server had 96,000 bytes stored, 512 bytes moved"
    )


def test_the_plan_names_servers_without_ops(tmp_path):
    plan = compile_model(load_model(tables(1000, servers=9)), tmp_path / "build")
    why = {choice.what: choice.why for choice in plan.choices}
    assert why["ps:3, ps:4, ps:5 and 3 more of 9 servers"].startswith(
        "idle, without parameter blocks and ops"
    )
    plan = compile_model(load_model(tables(1000, servers=3)), tmp_path / "three")
    assert not any("of 3 servers" in choice.what for choice in plan.choices)
