"""Predictions: rows, keys, outputs, formats of files, and what is wrong with them."""

import csv
import re
import tempfile
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from safetensors.numpy import load_file, save_file

import placer
from placer.compiler.frontend import load_text
from placer.compiler.frontend.single_process import to_single_process
from placer.errors import DataError, PlacerError, RunError, SpecError
from placer.launcher import predict as predict_module
from placer.launcher.predict import _errors_of_arrays, make_request, predict_to_file
from placer.plan.plan import read_plan
from placer.runtime.prediction import output_file
from placer.tables.dense import DenseTable

SPEC = """\
nodes: {worker: {count: 2}, ps: {count: 2}}
inputs: {x: "float32[batch, 3]", kind: "int32[batch]", y: "float32[batch]"}
data:
  train:
    source: "csv:train.csv"
    batch: 4
    shuffle: true
    columns: {x: "x*"}
    csv: {vocabulary: {kind: [low, high], y: [no, yes]}, missing: {"x*": 0.5}}
graph:
  - place: /node:worker
    ops:
      - {name: of_kind, op: embedding, in: kind, size: [2, 3]}
      - {name: both, op: add, in: [x, of_kind]}
      - {name: thinned, op: dropout, in: both, rate: 0.5}
      - {name: out, op: fc, in: thinned, size: 1}
      - {name: score, op: reshape, in: out, shape: [batch]}
      - {name: loss, op: mean_squared_error, in: [score, y]}
      - {name: error, op: sub, in: [score, y]}
      - {name: pairs, op: matmul, in: [both, both], transpose_b: true}
train: {minimize: loss, optimizer: {op: adam, learning_rate: 0.1, place: /node:ps}}
predict: {outputs: [score, both]}
"""
ROWS = [
    ("a01", "1", "2", "?", "low"),
    ("a02", "", "0", "1", "high"),
    ("007", "3", "1", "1", "high"),
    ("b x", "0", "0", "0", "low"),
    ("c,d", "2", "2", "2", "high"),
]


@pytest.fixture
def built(tmp_path):
    """A build, a file of parameters, and a file of rows without labels."""
    (tmp_path / "train.csv").write_text("x0,x1,x2,kind,y\n1,2,3,low,yes\n")
    build(tmp_path, SPEC)
    parameters = {
        p.name: np.random.default_rng(1).normal(size=p.shape).astype(p.dtype)
        for p in read_plan(tmp_path / "build").parameters
    }
    save_file(parameters, tmp_path / "params")
    write_rows(tmp_path / "rows.csv", ROWS)
    return tmp_path


def build(folder, text, **options):
    model = load_text(text, str(folder / "model.yaml"), folder)
    placer.compile(model, folder / "build", **options)


def write_rows(file, rows):
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([("id", "x0", "x1", "x2", "kind"), *rows])


def predict(folder, rows="rows.csv", **options):
    rows = str(folder / rows) if isinstance(rows, str) else rows
    options = {"params": folder / "params", "in_process": True, **options}
    return placer.predict(folder / "build", rows, **options)


def expected(folder):
    p = load_file(folder / "params")
    x = np.array([[1, 2, 0.5], [0.5, 0, 1], [3, 1, 1], [0, 0, 0], [2, 2, 2]], "float32")
    both = x + p["of_kind.table"][[0, 1, 1, 0, 1]]
    return {"score": (both @ p["out.w"] + p["out.b"])[:, 0], "both": both}


def check(folder, got):
    for name, wanted in expected(folder).items():
        np.testing.assert_allclose(got[name], wanted, rtol=1e-5, atol=1e-6)


def test_rows_are_read_as_in_training_and_stay_in_order(built):
    """Vocabularies, missing numbers and globs are those of the spec; rows are not
    shuffled, the short last batch is kept, and there are no labels, for which the spec
    has a vocabulary."""
    got = predict(built)
    assert list(got) == ["score", "both"]
    check(built, got)


def write_parquet(file, rows):
    columns = dict(
        zip(("id", "x0", "x1", "x2", "kind"), zip(*rows, strict=True), strict=True)
    )
    for name in ("x0", "x1", "x2"):
        numbers = [float(c) if c not in ("", "?") else None for c in columns[name]]
        columns[name] = numbers
    parquet.write_table(pa.table({n: list(c) for n, c in columns.items()}), file)


def test_words_and_missing_numbers_of_a_csv_are_those_of_a_parquet_file(built):
    """And the other way around, with the labels' vocabulary, which has no column."""
    write_parquet(built / "rows.parquet", ROWS)
    check(built, predict(built, "rows.parquet"))
    write_parquet(built / "train.parquet", ROWS)
    table = parquet.read_table(built / "train.parquet")
    table = table.append_column("y", pa.array(["yes"] * len(ROWS)))
    parquet.write_table(table, built / "train.parquet")
    text = SPEC.replace("csv:train.csv", "parquet:train.parquet")
    build(built, text.replace("    csv: {", "    parquet: {"))
    check(built, predict(built, "rows.parquet"))
    check(built, predict(built))


def test_keys_are_copied_as_text(built):
    got = predict(built, keys=["id"])
    assert list(got) == ["id", "score", "both"]
    assert got["id"].tolist() == ["a01", "a02", "007", "b x", "c,d"]
    check(built, got)


def test_keys_of_a_parquet_file(built):
    """Text, also of a dictionary or missing, whole numbers and times keep their types."""
    write_parquet(built / "rows.parquet", ROWS)
    table = parquet.read_table(built / "rows.parquet")
    words = pa.array(["a,b", None, 'c"', "", "é"])
    large = pa.array([2**60 + i for i in range(5)])
    table = table.append_column("word", words)
    table = table.append_column("coded", words.dictionary_encode())
    table = table.append_column("large", large)
    table = table.append_column("view", words.cast(pa.string_view()))
    table = table.append_column("bytes", words.cast(pa.binary()))
    parquet.write_table(table, built / "rows.parquet")
    keys = ["word", "coded", "large", "view", "bytes"]
    got = predict(built, "rows.parquet", keys=keys)
    for name in ("word", "coded", "view", "bytes"):
        assert got[name].tolist() == ["a,b", "", 'c"', "", "é"]
    assert got["large"].tolist() == large.to_pylist()
    for out in ("out.csv", "out.parquet"):
        run_to_file(built, out, "rows.parquet", keys=keys)
    with (built / "out.csv").open(newline="") as file:
        assert [row["word"] for row in csv.DictReader(file)] == got["word"].tolist()
    read = parquet.read_table(built / "out.parquet")
    assert read["large"].to_pylist() == large.to_pylist()
    holes = pa.array([1, None, 3, 4, 5])
    parquet.write_table(table.append_column("hole", holes), built / "rows.parquet")
    with pytest.raises(DataError, match="'hole' has missing values, which keys of int"):
        predict(built, "rows.parquet", keys=["hole"])


def test_a_long_key_takes_no_memory_in_other_rows(built, monkeypatch):
    """In an array of numpy each text would have the size of the longest."""
    long = "y" * 300_000
    write_rows(built / "rows.csv", [(long, *ROWS[0][1:]), *ROWS[1:]])
    run_to_file(built, "out.parquet", keys=["id"])
    table = parquet.read_table(built / "out.parquet")
    assert table["id"].to_pylist() == [long, *(row[0] for row in ROWS[1:])]
    assert predict(built, keys=["id"])["id"].tolist() == table["id"].to_pylist()
    monkeypatch.setattr(output_file, "MAX_PADDED_NBYTES", 1 << 20)
    predict(built, keys=["id"])  # less than 16 times the text
    monkeypatch.setattr(output_file, "MAX_PADDING", 4)
    with pytest.raises(DataError, match="the longest text of 'id' has 300,000 char"):
        run_to_file(built, "out.npz", keys=["id"])
    assert not (built / "out.npz").exists()


def test_some_of_the_outputs(built):
    assert list(predict(built, outputs=["both"])) == ["both"]


def test_rows_as_arrays(built):
    x = np.array([[1, 2, 0.5], [0.5, 0, 1], [3, 1, 1], [0, 0, 0], [2, 2, 2]])
    got = predict(built, {"x": x, "kind": [0, 1, 1, 0, 1], "number": range(5)})
    check(built, got)
    got = predict(
        built,
        {"x": x, "sort": [0, 1, 1, 0, 1]},
        columns={"kind": "sort"},
        keys=["sort"],
    )
    check(built, got)
    assert got["sort"].tolist() == [0, 1, 1, 0, 1]
    got = predict(built, {"x": x, "kind": got["sort"], "file": [7] * 5}, keys=["file"])
    assert got["file"].tolist() == [7] * 5
    with pytest.raises(
        DataError, match=r"^'rows' has no column 'kind' for input 'kind'"
    ):
        predict(built, {"x": x})
    with pytest.raises(PlacerError, match="the rows of 'x' are Python objects"):
        predict(built, {"x": [[1, 2, None]], "kind": [0]})
    with pytest.raises(PlacerError, match="'rows' is a Table, not a file or arrays"):
        predict(built, pa.table({"x": [1, 2]}))


def test_an_error_about_rows_or_parameters_as_arrays_names_the_argument(
    built, monkeypatch
):
    """Not their temporary file, also if the temporary folder has a space in its name;
    and also in the error of a process, which is a RunError."""
    folder = built / "a folder"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    rows = {"x": np.zeros((5, 2)), "kind": [0] * 5}
    with pytest.raises(DataError, match=r"^'rows': column 'x' has shape \[n, 2\]"):
        predict(built, rows)
    for path in ("npz:{}/rows.npz", "'{}/rows.npz'"):
        with (
            pytest.raises(RunError, match=r"^a:0 failed: 'rows': no"),
            _errors_of_arrays(),
        ):
            raise RunError(f"a:0 failed: {path.format(f'{folder}/placer-1_a')}: no")


@pytest.mark.parametrize("nodes", [{"worker": 3}, {"worker": 1, "ps": 1}])
def test_any_number_of_nodes_predicts_the_same(built, nodes):
    text = SPEC.replace("batch: 4", "batch: 6")
    model = load_text(text, str(built / "model.yaml"), built, nodes=nodes)
    placer.compile(model, built / "build")
    check(built, predict(built))


@pytest.mark.parametrize("place", ["/node:worker", "/node:worker:1"])
def test_a_control_node_without_rows_gathers_those_of_the_others(built, place):
    """The first node, which writes the file, is a server."""
    text = SPEC.replace(
        "{worker: {count: 2}, ps: {count: 2}}", "{ps: {}, worker: {count: 2}}"
    )
    build(
        built,
        text.replace("/node:worker}", f"{place}}}").replace(
            "place: /node:worker\n", f"place: {place}\n"
        ),
    )
    assert read_plan(built / "build").control == "ps:0"
    check(built, predict(built))


def test_one_process_predicts_the_same(built):
    placed = predict(built)
    model = load_text(SPEC, str(built / "model.yaml"), built)
    placer.compile(to_single_process(model), built / "build")
    for name, values in predict(built).items():
        np.testing.assert_allclose(values, placed[name], rtol=1e-6)


def run_to_file(folder, out, rows="rows.csv", **options):
    request = make_request(folder / out, folder / rows, **options)
    chosen = placer.Options(init_params=folder / "params")
    return predict_to_file(folder / "build", request, chosen, in_process=True)


def test_a_parquet_file(built):
    assert run_to_file(built, "out.parquet", keys=["id"]).rows == 5
    table = parquet.read_table(built / "out.parquet")
    assert table.schema.names == ["id", "score", "both"]
    assert str(table.schema.field("score").type) == "float"
    assert table["id"].to_pylist() == [row[0] for row in ROWS]
    check(built, {n: np.array(table[n].to_pylist()) for n in ("score", "both")})


def test_a_csv_file(built):
    run_to_file(built, "out.csv", keys=["id"])
    with (built / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "score", "both.0", "both.1", "both.2"]
    assert [row["id"] for row in rows] == [row[0] for row in ROWS]
    both = [[float(row[f"both.{i}"]) for i in range(3)] for row in rows]
    check(built, {"score": [float(row["score"]) for row in rows], "both": both})


def test_columns_of_a_csv_file_have_different_names(built):
    rows = (built / "rows.csv").read_text()
    (built / "rows.csv").write_text(rows.replace("id,", "both.1,", 1))
    with pytest.raises(DataError, match=r"predictions would be named 'both\.1'"):
        run_to_file(built, "out.csv", keys=["both.1"])
    run_to_file(built, "out.npz", keys=["both.1"])


def test_an_npy_file_has_one_output(built):
    run_to_file(built, "out.npy", outputs=["both"])
    np.testing.assert_allclose(
        np.load(built / "out.npy"), expected(built)["both"], rtol=1e-6
    )
    with pytest.raises(PlacerError, match="can store only one output, not score, both"):
        run_to_file(built, "out.npy")


@pytest.mark.parametrize("suffix", ["parquet", "csv", "npz"])
def test_no_rows_give_a_file_without_rows(built, suffix):
    write_rows(built / "empty.csv", [])
    out = f"out.{suffix}"
    assert run_to_file(built, out, "empty.csv", keys=["id"]).rows == 0
    if suffix == "npz":
        arrays = np.load(built / out)
        assert {n: arrays[n].shape for n in ("score", "both")} == {
            "score": (0,),
            "both": (0, 3),
        }
    elif suffix == "parquet":
        assert parquet.read_table(built / out).num_rows == 0
        assert parquet.read_schema(built / out).names == ["id", "score", "both"]
    else:
        assert (built / out).read_text().splitlines() == [
            '"id","score","both.0","both.1","both.2"'
        ]


def test_a_failed_prediction_leaves_the_earlier_file(built):
    (built / "out.csv").write_text("earlier")
    write_rows(built / "bad.csv", [*ROWS, ("z", "1", "1", "1", "middle")])
    with pytest.raises(DataError, match="middle"):
        run_to_file(built, "out.csv", "bad.csv")
    assert (built / "out.csv").read_text() == "earlier"


@pytest.mark.parametrize(
    ("kind", "header", "missing", "hint"),
    [
        ("kind", "x0,x1,x2", "kind", "its columns are x0, x1, x2; write --columns kind=COLUMN, or in Python columns={'kind': 'COLUMN'}"),
        ("kind", "x0,x1,x2,kinds", "kind", "write --columns kind=kinds, or in Python columns={'kind': 'kinds'}"),
        ("kind", "x0,x1,x2,the kinds", "kind", "write --columns 'kind=the kinds', or in Python columns={'kind': 'the kinds'}"),
        ("kind.low", "x0,x1,x2", "since", "its columns are x0, x1, x2; call it 'since' in the file: the build reads this name"),
        ("kind.low", "since", "x*", "its columns are since; write --columns x=COLUMN, or in Python columns={'x': 'COLUMN'}"),
        ("kind.low", "x0,x1,x2,sinse", "since", "rename 'sinse' to 'since' in the file: the build reads this name"),
    ],
)  # fmt: skip
def test_a_missing_column_says_which_output_needs_it(
    built, kind, header, missing, hint
):
    (built / "few.csv").write_text(f"{header}\n")
    if kind != "kind":
        spec = SPEC.replace('"x*"}', f'"x*", kind: {kind}}}', 1).replace(
            "    csv:", "    features: {kind.low: {weekday: since}}\n    csv:"
        )
        build(built, spec.replace("{kind: [low, high], ", "{"))
    name = "x" if missing == "x*" else "kind"
    message = f"few.csv has no column '{missing}' for input '{name}'; 'score' and"
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        predict(built, "few.csv")
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("x0,x1,x2,kind\n1,2,oops,low", "line 2, column 'x2': 'oops' is not a number"),
        ("x0,x1,x2\n1,2,3", "no column 'kind' for input 'kind'; 'score' and"),
    ],
)
def test_a_mistake_in_the_rows_is_found_before_a_process_starts(
    built, cells, message, monkeypatch
):
    """So its message names neither a node nor a log."""
    monkeypatch.delattr(predict_module, "run_processes")
    (built / "bad.csv").write_text(f"{cells}\n")
    with pytest.raises(DataError, match=f"^csv:.*bad.csv.*{message}") as caught:
        predict(built, "bad.csv", in_process=False)
    assert "log:" not in str(caught.value)


def test_an_output_that_depends_on_the_label_needs_it(built):
    build(built, SPEC, outputs=["error"])
    with pytest.raises(DataError, match="'y' for input 'y'; 'error' depends on"):
        predict(built)


def test_outputs_are_chosen_when_the_model_is_compiled(built):
    build(built, SPEC, outputs=["thinned"])
    assert list(predict(built)) == ["thinned"]
    with pytest.raises(PlacerError, match="'score' is not an output") as caught:
        predict(built, outputs=["score"])
    assert "--outputs score" in caught.value.hint
    (built / "model.yaml").write_text(SPEC)  # it is compiled first, with the outputs
    options = {"params": built / "params", "in_process": True}
    got = placer.predict(built / "model.yaml", str(built / "rows.csv"), **options)
    check(built, got)
    x, kind = np.ones((1, 3)), [0]
    got = placer.predict(
        str(built / "model.yaml"),
        {"x": x, "kind": kind},
        outputs=["thinned"],
        single_process=True,
        **options,
    )
    assert list(got) == ["thinned"]
    with pytest.raises(SpecError, match=r"did you mean .*model\.yaml"):
        placer.predict(built / "modle.yaml", **options)


def test_a_build_without_outputs_predicts_nothing(built):
    build(built, SPEC[: SPEC.index("predict:")])
    with pytest.raises(PlacerError, match="has no outputs to predict") as caught:
        predict(built)
    assert "predict: {outputs: [NAME]}" in caught.value.hint
    assert "def predict" not in (built / "build/worker/program.py").read_text()
    assert "prediction" not in (built / "build/plan.json").read_text()


def test_parameters_of_another_model_are_refused(built):
    save_file({"out.w": np.zeros((3, 1), "float32")}, built / "params")
    with pytest.raises(DataError, match=r"parameter of_kind\.table is missing"):
        predict(built)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": ["idd"]}, "has no column 'idd' for keys"),
        ({"keys": ["id", "id"]}, "the key 'id' is listed twice"),
        ({"keys": ["score"]}, "two columns of the predictions are named 'score'"),
        ({"columns": {"y": "z"}}, "no output depends on an input 'y'"),
        ({"rows": "rows.txt"}, "is not a file of rows"),
        ({"rows": "none.csv"}, "does not exist"),
    ],
)
def test_what_is_wrong_with_a_request(built, options, message):
    with pytest.raises(PlacerError, match=message):
        predict(built, **options)


@pytest.mark.parametrize(
    ("outputs", "message", "hint"),
    [
        (
            ["loss"],
            "an output of predict needs batch as its first dimension only, but 'loss' is float32[]",
            "batch",
        ),
        (
            ["pairs"],
            "an output of predict needs batch as its first dimension only, but 'pairs' is",
            "fixed shape",
        ),
        (["scores"], "unknown output 'scores'", "did you mean 'score'?"),
        (["score", "score"], "the output 'score' is listed twice", None),
        ([], "at least one output", None),
    ],
)
def test_what_cannot_be_an_output(built, outputs, message, hint):
    with pytest.raises(SpecError) as caught:
        build(built, SPEC, outputs=outputs)
    assert message in caught.value.message
    assert hint is None or hint in caught.value.hint


def test_tables_have_no_slots(built, monkeypatch):
    slots = []
    create = DenseTable.__init__

    def created(self, *args):
        create(self, *args)
        slots.append(dict(self._slots))

    monkeypatch.setattr(DenseTable, "__init__", created)
    predict(built)
    assert slots == [{}, {}]


def test_a_failure_names_the_prediction(built):
    (built / "rows_here.py").write_text(
        "def bad():\n    yield {'x': [1, 2, 3], 'kind': 0}\n    raise ValueError('oh')\n"
    )
    text = SPEC.replace('"csv:train.csv"', "python:rows_here:bad")
    text = text.replace('    columns: {x: "x*"}\n', "")
    text = "\n".join(line for line in text.splitlines() if "csv: {" not in line)
    build(built, text)
    with pytest.raises(RunError, match="oh"):
        predict(built, None)


@pytest.mark.parametrize("out", ["rows.csv", "params/out.csv"])
def test_what_a_prediction_reads_is_not_overwritten(built, out):
    (built / "params").unlink(missing_ok=True)
    (built / "params").mkdir()
    before = (built / "rows.csv").read_text()
    with pytest.raises(
        PlacerError, match=r"the prediction reads '.*(rows.csv|params)'"
    ):
        run_to_file(built, out)
    assert (built / "rows.csv").read_text() == before


def with_classes(built):
    """Compile a model of two heads: a class of two, and one of three, by words."""
    text = SPEC.replace(
        "      - {name: error,",
        "      - {name: chance, op: sigmoid, in: score}\n"
        "      - {name: log_loss, op: sigmoid_cross_entropy, in: [score, y]}\n"
        "      - {name: kinds, op: softmax_cross_entropy, in: [both, kind]}\n"
        "      - {name: error,",
    ).replace("y: [no, yes]", 'y: [no, "1,5"]')
    text = text.replace("kind: [low, high]", "kind: [low, high, 'a\"b']")
    build(built, text.replace("[score, both]", "[chance, both, x]"))


def test_classes_have_their_names_in_every_format(built):
    with_classes(built)
    parameters = load_file(built / "params")
    parameters["out.b"] -= np.median(expected(built)["score"])
    save_file(parameters, built / "params")
    got = predict(built, outputs=["chance"], keys=["id"])
    raw = predict(built, outputs=["chance"], raw=True)
    assert list(got) == ["id", "class", "probability.no", "probability.1,5"]
    assert list(raw) == ["chance"]
    chance = 1 / (1 + np.exp(-expected(built)["score"]))
    np.testing.assert_allclose(raw["chance"], chance, rtol=1e-5)
    np.testing.assert_array_equal(got["probability.1,5"], raw["chance"])
    words = ["1,5" if each > 0.5 else "no" for each in chance]
    assert got["class"].tolist() == words
    assert len({*words}) == 2
    for out in ("out.csv", "out.parquet"):
        run_to_file(built, out, outputs=["chance"], keys=["id"])
    with (built / "out.csv").open(newline="") as file:
        assert [row["class"] for row in csv.DictReader(file)] == words
    table = parquet.read_table(built / "out.parquet")
    assert table.schema.names == list(got)
    assert table["class"].to_pylist() == words
    run_to_file(built, "out.npy", outputs=["chance"])
    np.testing.assert_array_equal(np.load(built / "out.npy"), raw["chance"])


def test_columns_of_several_heads_begin_with_the_output(built):
    with_classes(built)
    wanted = ["chance.class", "chance.probability.no", "chance.probability.1,5"]
    wanted += ["both.class"]
    wanted += [f"both.probability.{name}" for name in ("low", "high", 'a"b')]
    for single_process in (False, True):
        got = predict(built, single_process=single_process)
        assert list(got) == [*wanted, "x"]
    run_to_file(built, "out.csv", outputs=["both", "chance"])
    with (built / "out.csv").open(newline="") as file:
        (head, *_) = csv.reader(file)
    assert head == [*wanted[3:], *wanted[:3]]


def test_a_key_has_another_name_than_the_class(built):
    with_classes(built)
    (built / "rows.csv").write_text(
        (built / "rows.csv").read_text().replace("id,", "class,", 1)
    )
    with pytest.raises(PlacerError, match="are named 'class'") as caught:
        predict(built, outputs=["chance"], keys=["class"])
    assert "--raw" in caught.value.hint
    got = predict(built, outputs=["chance"], keys=["class"], raw=True)
    assert list(got) == ["class", "chance"]


def test_parameters_as_a_dict(built):
    arrays = load_file(built / "params")
    check(built, predict(built, params=arrays))
    with pytest.raises(DataError, match=r"parameter out\.w is missing"):
        predict(built, params={n: a for n, a in arrays.items() if n != "out.w"})
    with pytest.raises(PlacerError, match="'params' is a list, not a path or a dict"):
        predict(built, params=[1])
    with pytest.raises(
        PlacerError, match="contains 'a': <U1, which is not a parameter"
    ):
        predict(built, params={"a": "b"})


@pytest.mark.parametrize(
    "use",
    [
        partial(placer.predict, params={}),
        partial(placer.export, out="model", params={}),
    ],
)
def test_a_program_in_place_of_a_build_is_an_error(use):
    program = placer.Program(nodes={"worker": {"count": 1}})
    with pytest.raises(PlacerError, match="the build is a Program") as e:
        use(program)
    assert '"FILE.py:FUNCTION"' in e.value.hint
