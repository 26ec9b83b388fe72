"""A spec whose run publishes is compiled with the code for serving, or its error has a position."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from placer.compiler.driver import compile_in_memory
from placer.errors import PlacerError, SpecError
from placer.plan.serving import FOLDER

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


def test_an_op_that_cannot_be_exported_is_named_with_its_line(tmp_path):
    with pytest.raises(
        PlacerError, match="cannot be published: 'emb' looks up"
    ) as failed:
        compiled(tmp_path, keys="turned")
    assert "clicks.yaml:8:" in str(failed.value)
    assert "^^^" in str(failed.value)
