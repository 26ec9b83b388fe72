"""The models of valid specs."""

import textwrap
from pathlib import Path

import pytest

from placer.compiler.driver import compile
from placer.compiler.frontend import load, load_text
from placer.compiler.frontend.single_process import to_single_process
from placer.compiler.graph.text import parse_graph, print_graph
from placer.errors import SpecError
from placer.place.types import TensorType
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.training.update_modes import Sync
from placer.system.resources import find_file

SPECS = ("digits", "diabetes", "seed_ctr", "two_workers")

DIGITS = """\
graph @digits nodes(worker: 2, ps: 2) batch(128) evaluation(128) {
  %image: float32[batch, 64] = read() {input = image}
  %h1.w: float32[64, 128] = parameter() {init = xavier_uniform, group = 0}
  %h1.b: float32[128] = parameter() {init = zeros, group = 0}
  %h1: float32[batch, 128] = fc(%image, %h1.w, %h1.b) {activation = relu} @/node:worker/cpu
  %logits.w: float32[128, 10] = parameter() {init = xavier_uniform, group = 0}
  %logits.b: float32[10] = parameter() {init = {constant = 0.0}, group = 0}
  %logits: float32[batch, 10] = fc(%h1, %logits.w, %logits.b) @/node:worker/cpu
  %label: int32[batch] = read() {input = label}
  %loss: float32[] = softmax_cross_entropy(%logits, %label) @/node:worker/cpu
  %accuracy: int32[3] = accuracy(%logits, %label) @/node:worker/cpu
  %probability: float32[batch, 10] = softmax(%logits) @/node:worker/cpu
  record(%loss) {metric = loss}
  record(%accuracy) {metric = accuracy, final = ratio}
  optimizer() {group = 0, rule = adam, learning_rate = {cosine = {init = 0.01, steps = 220}}, update = sync, slicing = {min_block = 8192, rounding = ceil, dispatch = balanced}} @/node:ps/cpu
  minimize(%loss) {clip = {global_norm = 1.0}}
  output(%probability) {output = probability}
}
"""


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("single_process", [False, True])
def test_the_specs_load_and_their_graphs_round_trip(name, single_process):
    model = load(find_file(f"specs/{name}.yaml"))
    model = to_single_process(model) if single_process else model
    assert parse_graph(print_graph(model.graph)) == model.graph
    assert model.graph.name == name


def test_the_graph_of_digits():
    assert print_graph(load(find_file("specs/digits.yaml")).graph) == DIGITS


def test_the_rows_of_digits():
    model = load(find_file("specs/digits.yaml"))
    columns = {"image": "data", "label": "target"}
    assert model.train == RowSource(
        "sklearn:digits", "train", columns, True, 7, batch=128, remainder="drop"
    )
    assert model.eval == RowSource(
        "sklearn:digits", "test", columns, False, 0, batch=128, remainder="keep"
    )
    assert model.inputs == {
        "image": TensorType("float32", ("batch", 64)),
        "label": TensorType("int32", ("batch",)),
    }
    assert (
        model.settings.train.epochs,
        model.settings.seed,
        model.settings.precision,
    ) == (20, 0, "float32")
    assert model.settings.train.metrics == ["loss", "accuracy"]
    assert model.modules == ()


def test_ops_have_the_positions_of_their_source():
    path = find_file("specs/digits.yaml")
    lines = path.read_text(encoding="utf-8").splitlines()
    for op in load(path).graph.ops:
        assert op.source is not None
        written = lines[op.source.line - 1][op.source.column - 1 :]
        start = "op" if op.kind == "optimizer" else op.name.split(".")[-1]
        if op.kind in ("record", "minimize", "parameter"):
            start = op.name.split(".")[op.kind != "parameter"]
        assert written.startswith(start), op


def test_a_single_process_has_one_worker_and_no_places():
    model = to_single_process(load(find_file("specs/digits.yaml")))
    assert str(model.graph.cluster) == "nodes(worker: 1)"
    assert all(op.place is None for op in model.graph.ops)
    placed = load(find_file("specs/digits.yaml")).graph
    bare = [(o.kind, o.operands, o.results, o.attrs) for o in model.graph.ops]
    assert bare == [(o.kind, o.operands, o.results, o.attrs) for o in placed.ops]


def test_places_are_checked_for_a_single_process_too(tmp_path):
    spec = tmp_path / "model.yaml"
    digits = find_file("specs/digits.yaml").read_text(encoding="utf-8")
    spec.write_text(digits.replace("/node:worker", "/node:wroker"), encoding="utf-8")
    with pytest.raises(SpecError, match="no node 'wroker'"):
        compile(spec, tmp_path / "build", single_process=True)


def test_node_counts_can_be_overridden():
    model = load(find_file("specs/seed_ctr.yaml"), nodes={"worker": 4, "ps": 2})
    assert str(model.graph.cluster) == "nodes(worker: 4, ps: 2)"


def test_the_module_of_a_python_source_is_part_of_the_model():
    assert load(find_file("specs/seed_ctr.yaml")).modules == ("seed_ctr_rows",)


def test_the_number_of_dense_parameters_of_seed_ctr():
    graph = load(find_file("specs/seed_ctr.yaml")).graph
    sizes = {op.name: op.result.type.numel() for op in graph.of_kind("parameter")}
    assert sizes.pop("embedding.table") == 1000 * 128
    assert sum(sizes.values()) == 788738


def _load(tmp_path, ops="", place="/node:worker", loss="h", head="", train="", **how):
    """Load a model with `ops` in a scope, after an op `h` of shape [batch, 4]."""
    spec = f"""
nodes: {{worker: {{count: 2, devices: {{cpu: 1, gpu: 2}}}}, ps: {{count: 2}}}}
inputs: {{x: "float32[batch, 4]", n: "int32[batch]"}}
data: {{train: {{source: "npz:rows.npz", batch: 8}}}}
{textwrap.dedent(head)}
graph:
  - place: {place}
    ops:
      - {{name: h, op: fc, in: x, size: 4}}
{textwrap.indent(textwrap.dedent(ops), "      ")}
      - {{name: loss, op: reduce_mean, in: {loss}}}
train:
  minimize: loss
{textwrap.indent(textwrap.dedent(train), "  ")}
"""
    if "optimizer" not in train:
        spec += "  optimizer: {op: sgd, learning_rate: 0.1}\n"
    return load_text(spec, str(tmp_path / "my-model.yaml"), tmp_path, **how)


def _line(model, name):
    text = print_graph(model.graph)
    (line,) = [s for s in text.splitlines() if s.startswith(f"  %{name}:")]
    return line.strip()


def test_defaults_of_missing_keys(tmp_path):
    model = _load(tmp_path)
    assert model.graph.name == "my_model"
    assert model.train.remainder == "drop"
    assert model.train.columns == {"x": "x", "n": "n"}
    assert model.eval is None
    assert model.settings.train.epochs == 1
    assert model.settings.train.metrics == ["loss"]
    assert "n" not in model.graph.values  # an input that no op uses is not read
    (optimizer,) = model.graph.of_kind("optimizer")
    assert optimizer.place is None
    assert optimizer.attrs["slicing"] == {
        "min_block": 8192,
        "rounding": "ceil",
        "dispatch": "balanced",
    }
    (minimize,) = model.graph.of_kind("minimize")
    assert minimize.attrs == {}


def test_places_of_nested_scopes_merge(tmp_path):
    model = _load(
        tmp_path,
        """
        - place: /gpu:1
          ops:
            - {name: a, op: relu, in: h}
            - {name: b, op: relu, in: a, place: "/node:worker:1"}
            - {name: c, op: relu, in: b, place: /node:ps/cpu}
        """,
        loss="c",
    )
    places = {n: str(model.graph.producers[n].place) for n in "habc"}
    assert places == {
        "h": "/node:worker",
        "a": "/node:worker/gpu:1",
        "b": "/node:worker:1/gpu:1",
        "c": "/node:ps/cpu",
    }


def test_parameters_can_be_shared(tmp_path):
    model = _load(
        tmp_path,
        "- {name: g, op: fc, in: h, size: 4, bias: false, params: {w: h.w}}",
        loss="g",
    )
    assert _line(model, "g").startswith("%g: float32[batch, 4] = fc(%h, %h.w) @")
    assert [op.name for op in model.graph.of_kind("parameter")] == ["h.w", "h.b"]


def test_a_parameter_can_be_an_operand(tmp_path):
    model = _load(tmp_path, "- {name: square, op: mul, in: [h.w, h.w]}", loss="square")
    assert model.graph.producers["square"].operands == ("h.w", "h.w")


def test_ops_parameter_and_constant(tmp_path):
    model = _load(
        tmp_path,
        """
        - {name: w1, op: parameter, shape: [4, 2], init: {normal: 0.1}}
        - {name: half, op: constant, value: 0.5, shape: []}
        - {name: y, op: matmul, in: [h, w1]}
        - {name: z, op: mul, in: [y, half]}
        """,
        loss="z",
    )
    assert (
        _line(model, "w1")
        == "%w1: float32[4, 2] = parameter() {init = {normal = 0.1}, group = 0}"
    )
    assert _line(model, "half") == (
        "%half: float32[] = constant() {value = 0.5} @/node:worker"
    )


def test_the_first_matching_rule_applies(tmp_path):
    head = """
    parameters:
      - {match: "h.b", trainable: false}
      - {match: "h.*", init: ones}
    """
    model = _load(tmp_path, head=head)
    assert "{init = zeros, trainable = false}" in _line(model, "h.b")
    assert "{init = ones, group = 0}" in _line(model, "h.w")


def test_the_first_matching_optimizer_applies(tmp_path):
    train = """
    clip: {global_norm: 5}
    slicing: {rounding: floor}
    optimizer:
      - {op: momentum, learning_rate: 1, match: "*.b", momentum: 0.5, clip: {global_norm: 2}}
      - {op: adam, learning_rate: 1e-3, eps: 1.0e-8, place: /node:ps/cpu}
    """
    model = _load(tmp_path, train=train)
    assert "group = 0}" in _line(model, "h.b")
    assert "group = 1}" in _line(model, "h.w")
    slicing = {"min_block": 8192, "rounding": "floor", "dispatch": "balanced"}
    first, second = model.graph.of_kind("optimizer")
    assert first.attrs == {
        "group": 0,
        "rule": "momentum",
        "learning_rate": 1.0,
        "update": Sync(),
        "momentum": 0.5,
        "clip": {"global_norm": 2.0},
        "slicing": slicing,
    }
    assert second.attrs == {
        "group": 1,
        "rule": "adam",
        "learning_rate": 0.001,
        "update": Sync(),
        "slicing": slicing,
    }
    assert str(second.place) == "/node:ps/cpu"
    (minimize,) = model.graph.of_kind("minimize")
    assert minimize.attrs == {"clip": {"global_norm": 5.0}}


def test_float64_widens_every_float(tmp_path):
    model = _load(
        tmp_path,
        """
        - {name: e, op: embedding, in: n, size: [10, 4]}
        - {name: p, op: parameter, shape: [4], init: ones}
        - {name: c, op: constant, value: 2.0}
        - {name: i, op: constant, value: 2, dtype: int32}
        - {name: s, op: add, in: [h, e]}
        - {name: t, op: mul, in: [s, p]}
        - {name: u, op: mul, in: [t, c]}
        """,
        loss="u",
        head="precision: float64",
    )
    dtypes = {name: value.type.dtype for name, value in model.graph.values.items()}
    assert dtypes.pop("n") == dtypes.pop("i") == "int32"
    assert set(dtypes.values()) == {"float64"}
    assert model.inputs["x"].dtype == "float64"


def test_boolean_words_of_yaml_1_1_are_valid_names(tmp_path):
    spec = """
nodes: {worker: {}}
inputs: {on: "float32[batch, 4]", "yes": "float32[batch, 4]"}
data: {train: {source: "npz:rows.npz", batch: 8, columns: {on: x, yes: y}}}
graph:
  - {name: no, op: mul, in: [on, yes]}
  - {name: off, op: fc, in: no, size: 1}
  - {name: loss, op: reduce_mean, in: off}
train:
  minimize: loss
  optimizer: {op: sgd, learning_rate: 1e-3}
"""
    model = load_text(spec, "model.yaml", tmp_path)
    assert model.graph.producers["no"].operands == ("on", "yes")
    assert model.graph.of_kind("optimizer")[0].attrs["learning_rate"] == 0.001


def test_eval_uses_settings_of_train(tmp_path):
    spec = find_file("specs/two_workers.yaml").read_text(encoding="utf-8")
    model = load_text(spec, "two_workers.yaml", Path("specs"))
    assert model.eval is not None
    assert (model.eval.batch, model.eval.remainder) == (24, "keep")


def test_a_long_model_keeps_its_names(tmp_path):
    ops = "\n".join(
        f"- {{name: h{i}, op: relu, in: {f'h{i - 1}' if i else 'h'}}}"
        for i in range(999)
    )
    model = _load(tmp_path, ops, loss="h998")
    assert len(model.graph.ops) == 1 + 3 + 999 + 4


def test_null_means_the_same_as_a_missing_key(tmp_path):
    (tmp_path / "blocks.py").write_text(
        "def f(params, state, x, *, rng, training): ..."
    )
    lines = """
        - {name: p, op: parameter, shape: [1], init: ones, dtype: float32PLACE}
        - {name: a, op: fc, in: h, size: 4NULLS}
        - {name: k, op: constant, value: 2.0IN}
        - {name: c, op: call, in: a, fn: "blocks:f", out: "float32[batch, 4]"STATE}
        - {name: s, op: add, in: [a, c]}
        - {name: t, op: mul, in: [s, p]}
        """
    nulls = {
        "PLACE": ", place: null",
        "NULLS": ", params: null, place: null, out: ~",
        "IN": ", in: null",
        "STATE": ", params: null, state: null, place: null",
    }
    without, with_nulls = lines, lines
    for word, text in nulls.items():
        without = without.replace(word, "")
        with_nulls = with_nulls.replace(word, text)
    assert (
        _load(tmp_path, with_nulls, loss="t").graph
        == _load(tmp_path, without, loss="t").graph
    )


def test_a_dimension_of_thousands_of_digits_is_shortened(tmp_path):
    with pytest.raises(SpecError) as caught:
        _load(
            tmp_path,
            f"""
        - {{name: c, op: call, in: h, fn: "a:f", out: "float32[{"9" * 5000}]"}}
        """,
        )
    message = (
        "a dimension can be at most 2147483647, not 99999999999999999999999999999..."
    )
    assert message in str(caught.value)
