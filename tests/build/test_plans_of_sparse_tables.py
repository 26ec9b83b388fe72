"""A plan whose sparse tables are inconsistent is refused, before anything runs."""

from __future__ import annotations

import json
import shutil

import msgspec
import pytest
from support.small_models import load_model

from placer.build.plan import Plan, read_plan, to_json, with_digest
from placer.compiler import compile as compile_model
from placer.errors import BuildError

TEXT = """\
nodes: {worker: {count: 2}, ps: {count: 2}}
inputs: {ids: "int64[batch, 2]"}
data: {train: {source: "npz:rows.npz", batch: 4}}
graph:
  - {name: emb, op: embedding, in: ids, sparse: true, dim: 3, partitions: 8}
  - {name: loss, op: reduce_mean, in: emb}
train: {minimize: loss, optimizer: {op: adagrad, learning_rate: 0.1}}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sparse")
    compile_model(load_model(TEXT, folder), folder / "build")
    return folder / "build"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dim": 4}, "edge 2: 'emb.found' has another shape"),
        ({"dim": 0}, "'emb.table': its rows have 0 columns"),
        ({"partitions": 12}, "'emb.table': it has 12 partitions"),
        ({"capacity": 3}, "its capacity is 3, and it has 8 partitions"),
        ({"bounds": (1.0, 0.0)}, "its bounds are 1.0 and 0.0"),
        ({"init": ("banana", (1.0,))}, "its values cannot begin as 'banana' with 1"),
        ({"init": ("uniform", (1.0,))}, "its values cannot begin as 'uniform' with 1"),
        ({"admit": {"type": "count", "n": 0}}, "admits keys at their occurrence 0"),
        ({"admit": {"type": "score", "least": 1.0}}, "keys by a score, and has none"),
        (
            {"index": "compact", "admit": {"type": "count", "n": 2}},
            "its compact index has no room for counts",
        ),
        ({"forget": {"every": 0}}, "'every' of what it forgets is 0"),
        ({"rule": "sdg"}, "unknown optimizer 'sdg'; did you mean 'sgd'?"),
        ({"rule": "lamb", "hyper": {}}, "'lamb' needs the norm of a whole parameter"),
        ({"hyper": {"eps": -1.0}}, "'eps' "),
        (None, "edge 2: 'emb.found' is float32"),
    ],
)
def test_an_inconsistent_table_is_refused(compiled, tmp_path, settings, message):
    build = shutil.copytree(compiled, tmp_path / "build")
    tree = json.loads((build / "plan.json").read_bytes())
    (table,) = tree["sparse_tables"]
    if settings is None:
        table["dtype"] = "float64"
    else:
        table["settings"] |= settings
    plan = msgspec.json.decode(json.dumps(tree), type=Plan)
    (build / "plan.json").write_text(to_json(with_digest(plan)))
    with pytest.raises(BuildError) as caught:
        read_plan(build)
    assert message in caught.value.message
