"""A spec whose run publishes is compiled with the code for serving, or its error has a position."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from placer.compiler.driver import compile_in_memory
from placer.errors import PlacerError, SpecError
from placer.plan.plan import DATA, Plan, to_json
from placer.plan.serving import FOLDER
from placer.plan.settings.evaluation_and_stopping import Publishing

SPEC = """\
name: clicks
nodes: {worker: {count: 1}}
precision: float64
inputs: {ids: "int64[batch, 3]", y: "float64[batch]"}
data: {train: {source: "npz:rows.npz", batch: 4}}
graph:
  - {name: turned, op: concat, in: [ids, ids]}
  - {name: emb, op: embedding, in: KEYS, dim: 4, sparse: true, combiner: sum}
  - {name: z, op: fc, in: emb, size: 1}
  - {name: logit, op: reshape, in: z, shape: [batch]}
  - {name: loss, op: sigmoid_cross_entropy, in: [logit, y]}
train:
  minimize: loss
  optimizer: {op: adam, learning_rate: 0.1}
  publish: PUBLISH
predict: {outputs: [logit]}
"""


def compiled(folder: Path, publish: str = "{}", keys: str = "ids"):
    text = SPEC.replace("PUBLISH", publish).replace("KEYS", keys)
    file = folder / "clicks.yaml"
    file.write_text(text if publish else re.sub(r" +publish: \n", "", text))
    return compile_in_memory(file)


def test_the_build_has_the_code_and_the_parts_of_the_model(tmp_path):
    build = compiled(tmp_path)
    files = {p.removeprefix(FOLDER) for p in build.files if p.startswith(FOLDER)}
    assert {"model.py", "prepare.py", "tables.py", "served.py", "README.md"} <= files
    assert {f"{FOLDER}{each}" for each in files} <= build.plan.files.keys()
    assert build.plan.serving.parameters == ("z.b", "z.w")
    assert build.plan.serving.tables == {"emb.table": "int64"}


def test_the_option_publishes_without_a_key(tmp_path):
    plain = compiled(tmp_path, publish="")
    assert plain.plan.serving is None
    assert not [path for path in plain.files if path.startswith(FOLDER)]
    given = compile_in_memory(tmp_path / "clicks.yaml", publish=True)
    assert given.plan.serving == compiled(tmp_path).plan.serving


@pytest.mark.parametrize(
    ("publish", "line", "text"),
    [
        ("{every: auto}", 15, "'every' of publications cannot be auto"),
        ("{every: sometimes}", 15, "'sometimes' is not an interval"),
        ("{base: 0}", 15, "'base' must be a whole number from 1"),
        ("{to: serving}", 15, "unknown key 'to'"),
        ("{every: pass}", 15, "'every: pass' needs a stream"),
        ("{folder: ''}", 15, "'folder' is empty"),
        ("serving", 15, "train.publish must be a mapping"),
    ],
)
def test_a_bad_value_has_its_position_and_a_hint(tmp_path, publish, line, text):
    with pytest.raises(SpecError, match=re.escape(text)) as failure:
        compiled(tmp_path, publish=publish)
    assert f"clicks.yaml:{line}:" in str(failure.value)
    assert "hint: " in str(failure.value) or "must be" in text


def test_publications_need_outputs(tmp_path):
    compiled(tmp_path)
    file = tmp_path / "clicks.yaml"
    file.write_text(file.read_text().replace("predict: {outputs: [logit]}\n", ""))
    with pytest.raises(SpecError, match="'publish' needs 'predict'") as failure:
        compile_in_memory(file)
    assert "clicks.yaml:15:3" in str(failure.value)
    assert compile_in_memory(file, outputs=["logit"]).plan.serving is not None


def test_a_plan_without_publications_does_not_mention_them(tmp_path):
    plan = compiled(tmp_path, publish="").plan
    assert plan.settings.train.publish is None
    assert "publish" not in to_json(plan)
    published = compiled(tmp_path, publish="{folder: serving, every: 30s}").plan
    read = msgspec.json.decode(to_json(published), type=Plan)
    expected = Publishing(folder="serving", every="30s")
    assert read.settings.train.publish == expected


def test_an_op_that_cannot_be_exported_is_named_with_its_line(tmp_path):
    with pytest.raises(
        PlacerError, match="cannot be published: 'emb' looks up"
    ) as failed:
        compiled(tmp_path, keys="turned")
    assert "clicks.yaml:8:" in str(failed.value)
    assert "^^^" in str(failed.value)


def test_a_function_that_cannot_be_exported_is_named_with_the_line_of_its_op(tmp_path):
    head = "def turn(params, state, x, rng, training):\n"
    (tmp_path / "first.py").write_text(f"{head}    return x, state\n")
    (tmp_path / "second.py").write_text(
        f"import placer\n\n{head}    with placer.place_guard(None):\n"
        "        return 2 * x, state\n"
    )
    call = (
        "op: call, out: [{}: 'float64[batch, 1]'], batch: rows, in: {}, fn: '{}:turn'"
    )
    calls = (("p", "z", "first"), ("q", "p", "second"))
    ops = "".join(f"  - {{name: {o}s, {call.format(o, i, f)}}}\n" for o, i, f in calls)
    text = (
        SPEC.replace("KEYS", "ids").replace("PUBLISH", "{}").replace("in: z", "in: q")
    )
    text = text.replace("  - {name: logit", f"{ops}  - {{name: logit")
    (tmp_path / "clicks.yaml").write_text(text)
    with pytest.raises(SpecError, match=r"published: second\.py cannot be") as failed:
        compile_in_memory(tmp_path / "clicks.yaml")
    assert "clicks.yaml:11:" in str(failed.value)
    assert "only guards" in str(failed.value)


def test_unknown_columns_have_the_position_of_the_source(tmp_path, monkeypatch):
    source = 'source: "csv:rows.csv", columns: {ids: "i*", y: y}'
    text = SPEC.replace("KEYS", "ids").replace("PUBLISH", "{}")
    file = tmp_path / "clicks.yaml"
    file.write_text(text.replace('source: "npz:rows.npz"', source))
    with pytest.raises(
        SpecError, match=r"columns for prepare\.py are unknown"
    ) as failed:
        compile_in_memory(file)
    assert "clicks.yaml:5:" in str(failed.value)
    data = tmp_path / "data"
    data.mkdir()
    (data / "rows.csv").write_text("i0,i1,i2,y\n1,2,3,0\n")
    monkeypatch.setenv(DATA, str(data))
    prepare = compile_in_memory(file).files[f"{FOLDER}prepare.py"].decode()
    assert '["i0", "i1", "i2"]' in prepare
