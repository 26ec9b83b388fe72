"""The places of ops without a place, and models that cannot be placed."""

import pytest
from support.small_models import load_model, two_layers

from placer.compiler.driver import lower_model
from placer.compiler.graph.structural_ops import is_update
from placer.errors import GraphError

W, W0, W1 = "/node:worker/cpu", "/node:worker:0/cpu", "/node:worker:1/cpu"


def after(name, text):
    """The graph after one pass."""
    graphs = {}
    lower_model(load_model(text), lambda at, graph: graphs.setdefault(at, graph))
    return graphs[name]


def places(text, at="place"):
    graph = after(at, text)
    return {op.name: str(op.place) for op in graph.ops}


def test_an_op_without_a_place_has_that_of_its_scope():
    text = two_layers(first=None, second=None)
    inside = text.replace(
        "  - {name: h,", "  - place: /node:worker:1\n    ops:\n      - {name: h,"
    )
    assert places(inside)["h"] == W1


def test_an_op_outside_scopes_is_with_its_first_placed_operand():
    found = places(two_layers(first=W1, second=None))
    assert found["out"] == found["loss"] == W1


def test_an_op_without_placed_operands_is_on_the_first_node_kind():
    text = two_layers(
        nodes="{back: {count: 1}, worker: {count: 2}}", first=None, second=None
    )
    found = places(text)
    assert {found[name] for name in ("h", "out", "loss")} == {"/node:back/cpu"}


@pytest.mark.parametrize("single_process", [False, True])
def test_the_first_node_kind_is_one_that_computes(single_process):
    text = two_layers(
        nodes="{ps: {count: 1}, worker: {count: 2, devices: {gpu: 1}}}",
        first=None,
        second=None,
    )
    step, *_ = lower_model(load_model(text, single_process=single_process))
    computed = {str(op.place) for op in step.ops if op.is_computed}
    assert computed == {"/node:worker/gpu"}


@pytest.mark.parametrize(
    ("devices", "best"),
    [("{cpu: 1, gpu: 1}", "gpu"), ("{cpu: 1}", "cpu"), ("{tpu: 1, cpu: 1}", "tpu")],
)
def test_a_place_without_a_device_is_on_the_best_device_of_its_node(devices, best):
    text = two_layers(
        nodes=f"{{worker: {{count: 2, devices: {devices}}}, ps: {{count: 1}}}}",
        first="/node:worker",
        second="/node:worker",
    )
    found = places(text)
    assert found["h"] == f"/node:worker/{best}"


def test_a_server_without_a_device_is_on_its_cpu():
    text = two_layers(
        nodes="{worker: {count: 2}, ps: {count: 1, devices: {gpu: 1, cpu: 1}}}",
        optimizer="{op: sgd, learning_rate: 0.1, place: /node:ps}",
    )
    assert places(text)["h.w"] == "/node:ps/cpu"


def test_a_place_without_a_node_is_with_its_first_placed_operand():
    text = two_layers(
        nodes="{worker: {count: 2, devices: {cpu: 1, gpu: 1}}, ps: {count: 1}}",
        first="/node:worker:1/gpu",
        second="/gpu",
    )
    found = places(text)
    assert found["out"] == "/node:worker:1/gpu"


def test_a_gradient_op_is_with_its_forward_op():
    graph = after("place", two_layers(first=W0, second=W1))
    for op in graph.ops:
        if op.is_gradient:
            forward = graph.producers[op.operands[0]]
            assert op.place == forward.place


@pytest.mark.parametrize(
    "at", ["/node:ps/cpu", "/node:ps:1/cpu", "/node:worker/cpu", "/node:worker:1/cpu"]
)
def test_a_parameter_and_its_update_are_with_the_optimizer(at):
    graph = after(
        "place",
        two_layers(optimizer=f"{{op: adam, learning_rate: 0.1, place: '{at}'}}"),
    )
    kinds = ("parameter", "adam", "store")
    ops = [op for op in graph.ops if op.kind in kinds]
    assert len(ops) == 12
    assert {str(op.place) for op in ops} == {at}


def test_a_parameter_on_a_given_server_is_not_sliced():
    graph = after(
        "slice",
        two_layers(
            width=128,
            optimizer="{op: sgd, learning_rate: 0.1, place: '/node:ps:1'}",
            train="  slicing: {min_block: 100}",
        ),
    )
    found = {op.name: str(op.place) for op in graph.of_kind("parameter")}
    assert found == dict.fromkeys(["h.w", "h.b", "out.w", "out.b"], "/node:ps:1/cpu")


def test_a_parameter_on_some_servers_is_sliced_over_these():
    graph = after(
        "slice",
        two_layers(
            nodes="{worker: {count: 1}, ps: {count: 4}}",
            width=128,
            optimizer="{op: sgd, learning_rate: 0.1, place: '/node:ps:1,3'}",
        ),
    )
    found = {graph.nodes(op) for op in graph.of_kind("parameter")}
    assert found == {("ps:1",), ("ps:3",)}
    blocks = [op.name for op in graph.of_kind("parameter") if ".block" in op.name]
    assert blocks == ["h.w.block0", "h.w.block1"]


SERVERS = "{worker: {count: 2}, ps: {count: 3}}"


def on_servers(**widths):
    """Layers of x of these widths, on servers without a number."""
    layers = "".join(
        f"  - {{name: {name}, op: fc, in: x, size: {width}, place: /node:ps/cpu}}\n"
        for name, width in widths.items()
    )
    return two_layers(nodes=SERVERS, extra=layers)


def test_ops_on_any_server_are_assigned_by_their_loads():
    found = places(on_servers(a=4, b=32, c=8, d=2, e=1))
    assigned = {name: found[name] for name in "abcde"}
    server = "/node:ps:{}/cpu".format
    assert assigned == dict(
        zip("abcde", map(server, (2, 0, 1, 2, 2)), strict=True)
    )  # the largest first, each to the server with the least load


def test_connected_ops_on_any_server_are_on_one_server():
    text = on_servers(a=32, b=32) + ""
    chain = (
        "  - {name: t, op: tanh, in: a}\n"  # with its operand
        "  - {name: c, op: fc, in: [t], size: 4, place: /node:ps}\n"
    )
    found = places(text.replace("train:\n  minimize", f"{chain}train:\n  minimize"))
    assert found["a"] == found["t"] == found["c"] == "/node:ps:0/cpu"
    assert found["b"] == "/node:ps:1/cpu"


def test_a_given_server_and_all_servers_are_kept_as_written():
    text = two_layers(nodes=SERVERS, batch=9, first="/node:ps:1", second="/node:ps:*")
    found = places(text)
    assert (found["h"], found["out"]) == ("/node:ps:1/cpu", "/node:ps/cpu")


def test_a_parameter_that_one_server_uses_is_not_sliced():
    text = two_layers(
        nodes=SERVERS,
        first="/node:ps:1",
        width=128,
        optimizer="{op: sgd, learning_rate: 0.1, place: /node:ps}",
    )
    graph = after("slice", text)
    nodes = {op.name: graph.nodes(op) for op in graph.of_kind("parameter")}
    assert nodes["h.w"] == nodes["h.b"] == ("ps:1",)
    assert "h.w.block0" not in nodes


def test_gradients_from_two_node_kinds_are_summed_on_the_first_kind():
    text = two_layers(
        nodes="{worker: {count: 2}, other: {count: 1}, ps: {count: 1}}",
        extra="  - {name: again, op: fc, in: x, size: 16, place: /node:other,"
        " params: {w: h.w, b: h.b}}\n"
        "  - {name: sum, op: reduce_sum, in: again}\n"
        "  - {name: both, op: add, in: [loss, sum]}",
    ).replace("minimize: loss", "minimize: both")
    graph = after("place", text)
    sums = {op.name: str(op.place) for op in graph.of_kind("accumulate")}
    assert sums["h.w.grad"] == "/node:worker/cpu"


def test_gradients_from_two_kinds_of_devices_are_summed_on_the_first_kind():
    text = two_layers(
        nodes="{worker: {count: 2, devices: {cpu: 1, gpu: 1}}, ps: {count: 1}}",
        first="/node:worker:0/cpu",
        second="/node:worker:0/cpu",
        extra="  - {name: again, op: fc, in: x, size: 16, place: '/node:worker:1/gpu',"
        " params: {w: h.w, b: h.b}}\n"
        "  - {name: sum, op: reduce_sum, in: again}\n"
        "  - {name: both, op: add, in: [loss, sum]}",
    ).replace("minimize: loss", "minimize: both")
    found = places(text)
    assert found["h.w.grad"] == "/node:worker/cpu"


def test_an_optimizer_without_a_place_is_on_the_servers():
    graph = after("place", two_layers())
    assert {str(op.place) for op in graph.ops if is_update(op.kind)} == {"/node:ps/cpu"}


def test_without_servers_an_optimizer_is_with_the_first_op_of_its_parameter():
    text = two_layers(nodes="{worker: {count: 2}}", first=W0, second=W1)
    found = places(text)
    assert {found[f"h.{p}.new"] for p in "wb"} == {W0}
    assert {found[f"out.{p}.new"] for p in "wb"} == {W1}


def test_without_servers_a_parameter_of_two_workers_is_on_the_first():
    text = two_layers(
        nodes="{worker: {count: 2}}",
        first=W0,
        second=W1,
        extra=f"  - {{name: again, op: fc, in: x, size: 16, params: {{w: h.w, b: h.b}},"
        f" place: '{W1}'}}",
    )
    assert places(text)["h.w"] == W0


def test_a_metric_is_with_the_value_that_it_records():
    assert places(two_layers(first=W0, second=W1))["record.loss"] == W1


def test_the_plan_contains_the_choices(tmp_path):
    from placer.compiler.driver import compile as compile_model

    plan = compile_model(load_model(two_layers(first=None, second=None)), tmp_path)
    choices = {choice.what: choice.why for choice in plan.choices}
    assert choices["h (fc) at /node:worker/cpu"] == (
        "it has no place, so it follows its first placed operand, else is on /node:worker"
    )
    assert choices["h.w (parameter) at /node:ps:0/cpu"] == (
        "a parameter is stored with its optimizer (sgd)"
    )
    sends = [what for what in choices if "(send)" in what]
    assert len(sends) == 4
    assert "the short tail of a training epoch" in choices


def test_the_plan_contains_the_choice_of_a_server(tmp_path):
    from placer.compiler.driver import compile as compile_model

    text = two_layers(nodes=SERVERS, first="/node:ps/cpu")
    plan = compile_model(load_model(text), tmp_path)
    choices = {choice.what: choice.why for choice in plan.choices}
    alone = "unsliced, on the only server that uses it"
    assert choices["h.w (parameter) at /node:ps:0/cpu"] == alone
    assert choices["h.w.new (sgd) at /node:ps:0/cpu"] == (
        f"it has no place, so it follows its parameter: {alone}"
    )
    assert choices["h (fc) at /node:ps:0/cpu"].startswith(
        "specified as /node:ps/cpu: this server then has the least load"
    )


GPUS = "{worker: {count: 2, devices: {cpu: 1, gpu: 2}}, ps: {count: 1}}"
BACKWARD = "  backward: /node:worker:1/gpu:0"


def test_ops_without_a_place_are_with_their_gradients_at_train_backward():
    extra = "  - {name: seen, op: reduce_max, in: h}"
    found = places(
        two_layers(nodes=GPUS, first=None, second=W0, train=BACKWARD, extra=extra)
    )
    assert found["h"] == found["h.w.grad"] == "/node:worker:1/gpu:0"
    assert found["seen"] == "/node:worker:1/gpu:0"  # with its first placed operand
    assert found["out"] == found["h.grad"] == W0
    assert found["loss"] == "/node:worker:1/gpu:0"


def test_an_incomplete_place_of_train_backward_is_completed():
    found = places(
        two_layers(nodes=GPUS, first=W1, second=None, train="  backward: /gpu:1")
    )
    assert found["out"] == found["h.grad"] == "/node:worker:1/gpu:1"


def test_a_single_process_ignores_train_backward():
    text = two_layers(nodes=GPUS, first=None, second=None, train=BACKWARD)
    step, *_ = lower_model(load_model(text, single_process=True))
    assert {str(op.place) for op in step.ops if op.is_computed} == {"/node:worker/cpu"}


def test_the_plan_contains_why_an_op_is_with_its_gradient(tmp_path):
    from placer.compiler.driver import compile as compile_model

    text = two_layers(nodes=GPUS, first=None, second=W0, train=BACKWARD)
    plan = compile_model(load_model(text), tmp_path)
    choices = {choice.what: choice.why for choice in plan.choices}
    assert choices["h (fc) at /node:worker:1/gpu:0"] == (
        "it has no place, so it follows its gradient op at /node:worker:1/gpu:0"
    )


REFUSED = {
    "a batch that cannot be split": (
        two_layers(nodes="{worker: {count: 3}, ps: {count: 1}}"),
        "5:3: a batch of 8 rows cannot be split evenly over the 3 nodes of "
        "/node:worker/cpu, as 'x' needs",
        "use batch: 6 or batch: 9",
    ),
    "nothing to train": (
        two_layers(
            extra="  - {name: other, op: reduce_mean, in: y}",
        ).replace("minimize: loss", "minimize: other"),
        "13:12: 'other' depends on no trainable parameter, so minimizing it"
        " has no effect",
        None,
    ),
    "an optimizer whose parameters the loss does not depend on": (
        two_layers(
            extra="  - {name: side, op: fc, in: h, size: 4}",
            optimizer="[{op: adam, learning_rate: 0.1, match: 'side.*'},"
            " {op: sgd, learning_rate: 0.1}]",
        ),
        "19:16: this optimizer trains nothing: 'loss' does not depend on 'side.w' and "
        "1 more",
        "minimize a loss that depends on them, or set trainable: false",
    ),
    "two clips": (
        two_layers(
            train="  clip: {global_norm: 1.0}",
            optimizer="{op: sgd, learning_rate: 0.1, clip: {global_norm: 2.0}}",
        ),
        "19:15: both train.clip and the clip of an optimizer are set",
        "keep one of them; train.clip is a single norm over all optimizers",
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_model_that_cannot_be_placed_is_refused(mistake):
    text, message, hint = REFUSED[mistake]
    with pytest.raises(GraphError) as caught:
        lower_model(load_model(text))
    error = caught.value
    assert f"{error.span.line}:{error.span.column}: {error.message}" == message
    assert error.hint == hint
    assert error.span.text == text.splitlines()[error.span.line - 1]
