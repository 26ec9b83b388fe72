"""A plan with a sparse table that cannot be shown is refused."""

from __future__ import annotations

import json

import msgspec
import pytest
from support.small_models import load_model

from placer.compiler.driver import compile as compile_model
from placer.errors import BuildError
from placer.plan.check import check_plan
from placer.plan.plan import Plan

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
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sparse")
    compile_model(load_model(TEXT, folder), folder / "build")
    return json.loads((folder / "build/plan.json").read_bytes())


def changed(tree, settings=(), **table):
    (before,) = tree["sparse_tables"]
    table = {**before, **table, "settings": {**before["settings"], **dict(settings)}}
    return json.dumps({**tree, "sparse_tables": [table]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {"rule": "sdg"}}, "unknown optimizer 'sdg'; did you mean 'sgd'?"),
        (
            {"settings": {"hyper": {"eps": -1.0}}},
            "Expected `float` >= 0.0 - at `$.eps`",
        ),
        ({"dtype": "int32"}, "its dtype is int32"),
        ({"holders": ["ps:2"]}, "a node that stores it is missing from the plan"),
        ({"over": ["emb.table", "x.table"]}, "not over the keys of emb.table, x.table"),
    ],
)
def test_a_table_that_cannot_be_shown_is_refused(tree, change, message):
    plan = msgspec.json.decode(changed(tree, **change), type=Plan)
    with pytest.raises(BuildError, match=r"sparse table 'emb\.table': ") as caught:
        check_plan(plan, "plan.json")
    assert message in caught.value.message


@pytest.mark.parametrize("wrong", [{"dim": 0}, {"partitions": 0}, {"name": "../x"}])
def test_a_number_or_name_that_no_table_has_cannot_be_read(tree, wrong):
    with pytest.raises(msgspec.ValidationError, match=f"settings.{next(iter(wrong))}"):
        msgspec.json.decode(changed(tree, wrong), type=Plan)


def test_keys_of_a_table_that_the_plan_does_not_have_are_refused(tree):
    text = json.dumps(tree).replace('"table": "emb.table"', '"table": "x.table"')
    plan = msgspec.json.decode(text, type=Plan)
    with pytest.raises(BuildError, match=r"edge 1: '.*' is of tables that the plan"):
        check_plan(plan, "plan.json")
