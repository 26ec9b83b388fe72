"""Models with sparse tables: as with dense tables, wherever the parts are placed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from safetensors.numpy import load_file

import placer
from placer.errors import PlacerError
from placer.plan.plan import read_plan
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

ROWS, BATCH, VOCABULARY = 48, 24, 20
SERVERS = "/node:ps/cpu"
ADAGRAD = {"op": "adagrad", "learning_rate": 0.3}
SGD = {"op": "sgd", "learning_rate": 0.5}


def write_rows(folder: Path) -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, VOCABULARY, (ROWS, 3))
    other = rng.integers(0, VOCABULARY, ROWS)
    x, y = rng.normal(size=(ROWS, 4)), rng.integers(0, 3, ROWS).astype(np.int32)
    w = rng.uniform(0.5, 1.5, (ROWS, 3))
    counted = {
        "shows": rng.uniform(0.5, 2.0, ROWS),
        "clicks": rng.integers(0, 2, (ROWS, 1)).astype(np.float64),
        "time": 2**31 + np.arange(ROWS) * 10,
    }
    rows = {"ids": ids, "other": other, "x": x, "y": y, "w": w, **counted}
    np.savez(folder / "rows.npz", **rows)
    large = np.int64(0x9E3779B97F4A7C15 - 2**64)  # odd: other keys for other ids
    np.savez(folder / "large.npz", ids=ids * large, other=other * large, x=x, y=y)


def spec(
    *,
    sparse: bool = True,
    workers: int = 1,
    servers: int = 0,
    optimizers: Any = ADAGRAD,
    table: dict[str, Any] | None = None,
    rows: str = "rows",
    **train: Any,
) -> dict[str, Any]:
    """A model whose ops use one table twice, and another once."""
    size = {"sparse": True, "dim": 5} if sparse else {"size": [VOCABULARY, 5]}
    size |= table or {}
    small = {"sparse": True, "dim": 2} if sparse else {"size": [VOCABULARY, 2]}
    nodes: dict[str, Any] = {"worker": {"count": workers}}
    if servers:
        nodes["ps"] = {"count": servers}
    source = {"source": f"npz:{rows}.npz", "batch": BATCH}
    return {
        "name": "looked_up",
        "precision": "float64",
        "nodes": nodes,
        "inputs": {
            "ids": "int64[batch, 3]",
            "other": "int64[batch]",
            "x": "float64[batch, 4]",
            "y": "int32[batch]",
        },
        "data": {"train": dict(source), "eval": source},
        "graph": [
            {"name": "a", "op": "embedding", "in": "ids", **size},
            {"name": "b", "op": "embedding", "in": "other", **size}
            | {"params": {"table": "a.table"}},
            {"name": "c", "op": "embedding", "in": "other", **small},
            {"name": "flat", "op": "flatten", "in": "a"},
            {"name": "h", "op": "concat", "in": ["flat", "b", "c", "x"], "axis": 1},
            {"name": "t", "op": "tanh", "in": "h"},
            {"name": "z", "op": "fc", "in": "t", "size": 3},
            {"name": "loss", "op": "softmax_cross_entropy", "in": ["z", "y"]},
        ],
        "train": {"minimize": "loss", "epochs": 3, "optimizer": optimizers, **train},
    }


def trained(
    content: dict[str, Any],
    folder: Path,
    name: str,
    run: dict[str, Any] | None = None,
    **options: Any,
):
    """Train; return the parameters of dense layers and the losses of evaluations."""
    write_rows(folder)
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps(content))
    placer.compile(file, folder / name, **options)
    saved = folder / f"{name}.safetensors"
    result = run_in_threads(folder / name, Options(save_params=saved, **(run or {})))
    parameters = {k: v for k, v in load_file(saved).items() if "table" not in k}
    return parameters, result.eval


def assert_same(first, second, **tolerance):
    parameters, evaluated = first
    others, compared = second
    assert parameters.keys() == others.keys()
    for name, values in parameters.items():
        assert_allclose(values, others[name], **tolerance)
    assert_allclose(evaluated["loss"], compared["loss"], **tolerance)


def assert_equal(first, second):
    assert_same(first, second, rtol=0)


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """The results with dense tables in one process, by optimizers and settings."""
    known: dict[str, Any] = {}

    def train(**settings):
        key = repr(settings)
        if key not in known:
            folder = tmp_path_factory.mktemp("dense")
            content = spec(sparse=False, **settings)
            known[key] = trained(content, folder, "dense", single_process=True)
        return known[key]

    return train


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizers": ADAGRAD},
        {"optimizers": SGD, "clip": {"global_norm": 0.1}},
        pytest.param(
            {"optimizers": SGD, "clip": {"value": 0.01}}, marks=pytest.mark.slow
        ),
        {
            "optimizers": [
                {**ADAGRAD, "match": "a.*", "clip": {"norm": 0.05}},
                {**SGD, "match": "c.*"},
                dict(SGD),
            ]
        },
        pytest.param(
            {"optimizers": ADAGRAD, "microbatches": 2}, marks=pytest.mark.slow
        ),
        {"optimizers": SGD, "microbatches": 2, "clip": {"value": 0.01}},
    ],
    ids=[
        "adagrad",
        "global norm",
        "by value",
        "by parameter",
        "microbatches",
        "clipped",
    ],
)
def test_a_sparse_table_trains_as_a_dense_one(dense, tmp_path, settings):
    expected = dense(**settings)
    one = trained(spec(**settings), tmp_path, "one", single_process=True)
    assert_same(one, expected, rtol=1e-12)
    spread = spec(workers=2, servers=3, **settings)
    assert_same(trained(spread, tmp_path, "spread"), expected, rtol=1e-12)


def test_the_number_of_servers_changes_no_bit(tmp_path):
    optimizers = [{**ADAGRAD, "match": "*.table", "clip": {"global_norm": 0.1}}, SGD]
    settings = {"optimizers": optimizers}
    first = trained(spec(workers=2, servers=1, **settings), tmp_path, "one")
    for servers in (2, 3):
        content = spec(workers=2, servers=servers, **settings)
        assert_equal(trained(content, tmp_path, f"s{servers}"), first)


def test_a_table_on_workers_trains_as_one_on_servers(tmp_path, dense):
    content = spec(workers=3, optimizers={**ADAGRAD, "place": "/node:worker/cpu"})
    on_workers = trained(content, tmp_path, "workers")
    assert_same(on_workers, dense(optimizers=ADAGRAD), rtol=1e-12)


def test_a_table_on_heter_nodes_trains_as_a_dense_one(tmp_path):
    """A worker waits for nothing between the keys that it sends and their rows; these
    are no activations all the same."""

    def of_rows_only(**settings):
        content = spec(**settings)
        (concat,) = (op for op in content["graph"] if op["op"] == "concat")
        concat["in"].remove("x")
        del content["inputs"]["x"]
        return content

    tables = {**ADAGRAD, "match": "*.table", "place": "/node:heter/cpu"}
    content = of_rows_only(workers=2, servers=1, optimizers=[tables, ADAGRAD])
    content["nodes"]["heter"] = {"count": 2}
    for op in content["graph"][-3:]:
        op["place"] = "/node:heter/cpu"
    on_heter = trained(content, tmp_path, "heter")
    worker = (tmp_path / "heter" / "worker" / "program.py").read_text()
    assert "node.send_and_recv(" in worker
    expected = of_rows_only(sparse=False)
    one = trained(expected, tmp_path, "dense", single_process=True)
    assert_same(on_heter, one, rtol=1e-12)


def test_keys_of_all_magnitudes_train_as_small_ones(tmp_path):
    """Initial values depend on the key, so they are constant here."""
    init = [{"match": "*.table", "init": {"constant": 0.1}}]
    small = spec(workers=2, servers=2) | {"parameters": init}
    large = spec(workers=2, servers=2, rows="large") | {"parameters": init}
    assert_same(
        trained(large, tmp_path, "large"),
        trained(small, tmp_path, "small"),
        rtol=1e-12,
    )


def with_computed_ids(**settings: Any) -> dict[str, Any]:
    content = spec(**settings)
    content["graph"].insert(
        0, {"name": "same", "op": "reshape", "in": "ids", "shape": ["batch", 3]}
    )
    content["graph"][1]["in"] = "same"
    return content


@pytest.mark.parametrize("single_process", [False, True])
def test_ids_that_ops_compute_are_looked_up(tmp_path, dense, single_process):
    content = with_computed_ids(workers=2, servers=2)
    computed = trained(content, tmp_path, "computed", single_process=single_process)
    assert_same(computed, dense(optimizers=ADAGRAD), rtol=1e-12)


def test_keys_are_sent_before_the_step_waits_for_parameters(tmp_path):
    write_rows(tmp_path)
    content = with_computed_ids(workers=2, servers=2)
    (tmp_path / "computed.yaml").write_text(json.dumps(content))
    placer.compile(tmp_path / "computed.yaml", tmp_path / "build")
    program = (tmp_path / "build/worker/program.py").read_text()
    assert program.index("node.send_keys(") < program.index("node.receive(")


@pytest.mark.parametrize("lookups", [slice(1, 2), slice(3)], ids=["one", "all"])
def test_lookups_on_any_server_train_as_in_one_process(tmp_path, dense, lookups):
    content = spec(workers=2, servers=2)
    for op in content["graph"][lookups]:
        op["place"] = SERVERS
    on_servers = trained(content, tmp_path, "servers")
    assert_same(on_servers, dense(optimizers=ADAGRAD), rtol=1e-12)


def test_ids_of_the_whole_batch_are_looked_up_in_microbatches(tmp_path):
    """One op takes the whole batch, and others of the table each microbatch."""
    function = (
        "def backward(params, state, ids, rng, training):\n    return ids[::-1], state"
    )
    (tmp_path / "orders.py").write_text(function)

    def content(**settings):
        content = spec(optimizers=SGD, microbatches=2, **settings)
        op = {"name": "back", "op": "call", "fn": "orders:backward", "in": "other"}
        content["graph"].insert(0, {**op, "out": "int64[batch]"})
        content["graph"][2]["in"] = "back"
        return content

    assert_same(
        trained(content(workers=2, servers=2), tmp_path, "sparse"),
        trained(content(sparse=False), tmp_path, "dense", single_process=True),
        rtol=1e-12,
    )


def test_keys_that_are_not_of_rows_are_refused(tmp_path):
    """Each worker would count them as occurrences."""
    content = spec(workers=2)
    constant = {"op": "constant", "value": 4, "shape": [2], "dtype": "int32"}
    content["graph"].insert(0, {"name": "four", **constant})
    content["graph"][1]["in"] = "four"
    write_rows(tmp_path)
    (tmp_path / "wrong.yaml").write_text(json.dumps(content))
    with pytest.raises(PlacerError, match=r"needs a batch of keys .* not int32\[2\]"):
        placer.compile(tmp_path / "wrong.yaml", tmp_path / "build")


@pytest.mark.parametrize("combiner", ["none", "sum", "mean", "sqrtn"])
def test_rows_are_combined_as_those_of_a_dense_table(tmp_path, combiner):
    def with_weights(**settings):
        content = spec(**settings)
        content["inputs"]["w"] = "float64[batch, 3]"
        op = content["graph"][0]
        op |= {"combiner": combiner, "padding": 3}
        if combiner == "none":
            return content
        op["in"] = ["ids", "w"]
        content["graph"][4]["in"] = ["a", "b", "c", "x"]
        del content["graph"][3]
        return content

    expected = with_weights(sparse=False)
    sparse = with_weights(workers=2, servers=2)
    assert_same(
        trained(sparse, tmp_path, "sparse"),
        trained(expected, tmp_path, "dense", single_process=True),
        rtol=1e-12,
    )


def test_a_frozen_table_stays_as_it_is(tmp_path, dense):
    frozen = [{"match": "c.*", "trainable": False}]
    content = spec(workers=2, servers=2) | {"parameters": frozen}
    expected = spec(sparse=False) | {"parameters": frozen}
    assert_same(
        trained(content, tmp_path, "frozen"),
        trained(expected, tmp_path, "dense", single_process=True),
        rtol=1e-12,
    )


@pytest.mark.parametrize("update", ["sync", "half_async"])
def test_scores_and_times_come_from_inputs(tmp_path, update):
    table = {
        "score": {"show": "shows", "click": "clicks", "decay": 0.9},
        "admit": {"score": 1.5},
        "forget": {"unseen_seconds": 200, "time": "time", "every": 2},
    }

    def content(**settings):
        content = spec(table=table, optimizers={**ADAGRAD, **settings.pop("more", {})})
        content["inputs"] |= {"shows": "float64[batch]", "clicks": "float64[batch, 1]"}
        content["inputs"]["time"] = "int64[batch]"
        content["nodes"] = settings
        return content

    one = trained(content(worker={"count": 1}), tmp_path, "one")
    workers = 2 if update == "sync" else 1
    nodes = {"worker": {"count": workers}, "ps": {"count": 2}}
    spread = content(**nodes, more={"update": update})
    assert_same(trained(spread, tmp_path, "spread"), one, rtol=1e-12)
    plan = read_plan(tmp_path / "spread")
    evaluated = {
        read.input for n in plan.nodes if n.evaluation for read in n.evaluation.reads
    }
    assert evaluated == {"ids", "other", "x", "y"}
    always = trained(spec(), tmp_path, "always")
    assert one[1]["loss"] != always[1]["loss"]


def test_a_key_that_is_not_admitted_reads_the_default(tmp_path):
    """With a count that no key reaches, the tables stay empty."""
    never = {"admit": {"count": 10**6}, "default": 0.25}
    init = [{"match": "*.table", "init": {"constant": 0.25}}]
    frozen = [{"match": "*.table", "init": {"constant": 0.25}, "trainable": False}]
    content = spec(workers=2, servers=2, table=never) | {"parameters": init}
    content["graph"][2] |= never
    expected = spec(sparse=False) | {"parameters": frozen}
    assert_same(
        trained(content, tmp_path, "refused"),
        trained(expected, tmp_path, "dense", single_process=True),
        rtol=1e-12,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 5, "sparse": False, "dim": None}, "needs sparse: true"),
        ({"dim": None}, "needs 'dim'"),
        ({"partitions": 3}, "power of two"),
        ({"admit": {"count": 2, "score": 1.0}}, "exactly one of"),
        ({"admit": {"score": 1.0}}, "has no 'score'"),
        ({"forget": {"every": 0}}, "a whole number from 1, not 0"),
        ({"forget": {"unseen_seconds": 9}}, "or neither"),
        ({"forget": {"unseen_seconds": 9, "time": "x"}}, "not an integer for each row"),
        ({"score": {"click": "clix"}}, "which is not an input"),
        ({"score": {"show": 2}}, "'show' must be text or 1, not 2"),
        ({"in": "x"}, "needs an int32, int64, uint32 or uint64 operand as 'ids'"),
        ({"index": "compact", "admit": {"count": 2}}, "cannot count keys"),
        ({"capacity": 3}, "from 256 "),
        ({"capacity": 2**60}, "to 1099511627776"),
        ({"bounds": [1.0, 0.0]}, "low < high"),
        ({"dtype": "float16"}, "rows must be float32 or float64"),
    ],
)
def test_wrong_settings_are_refused(tmp_path, change, message):
    content = spec()
    op = {**content["graph"][0], **change}
    content["graph"] = [{k: v for k, v in op.items() if v is not None}]
    if op.get("dtype"):
        content["precision"] = "float32"
        content["inputs"] = {"ids": "int64[batch, 3]"}
    content["graph"].append({"name": "loss", "op": "reduce_mean", "in": "a"})
    write_rows(tmp_path)
    (tmp_path / "wrong.yaml").write_text(json.dumps(content))
    with pytest.raises(PlacerError, match=message):
        placer.compile(tmp_path / "wrong.yaml", tmp_path / "build")


def test_rules_of_rows_are_for_sparse_tables(tmp_path):
    content = spec(optimizers={"op": "rowwise_adagrad", "learning_rate": 0.1})
    write_rows(tmp_path)
    (tmp_path / "wrong.yaml").write_text(json.dumps(content))
    with pytest.raises(PlacerError, match="works only with sparse tables"):
        placer.compile(tmp_path / "wrong.yaml", tmp_path / "build")


@pytest.mark.parametrize("clip", [{}, {"clip": {"norm": 0.05}}], ids=["", "clipped"])
def test_one_worker_in_half_async_trains_as_in_lockstep(tmp_path, clip):
    """What it uses contains all of its own updates."""
    rows = {**ADAGRAD, **clip, "match": "*.table"}
    expected = spec(workers=1, servers=2, optimizers=[rows, SGD])
    free = [{**each, "update": "half_async"} for each in (rows, SGD)]
    content = spec(workers=1, servers=2, optimizers=free)
    assert_same(
        trained(content, tmp_path, "free"),
        trained(expected, tmp_path, "lockstep"),
        rtol=1e-12 if clip else 0,  # a norm is computed by the worker or by partition
    )


def test_workers_without_lockstep_repeat_a_recorded_order(tmp_path):
    optimizers = {**ADAGRAD, "update": {"async": {"max_staleness": 2}}}
    content = spec(workers=3, servers=2, optimizers=optimizers)
    order = tmp_path / "order"
    first = trained(content, tmp_path, "first", run={"record_order": order})
    again = trained(content, tmp_path, "again", run={"replay_order": order})
    assert_equal(again, first)
    assert first[1]["loss"] < 1.2


@pytest.mark.parametrize(
    ("optimizers", "message"),
    [
        (
            {**ADAGRAD, "update": {"geo": {"every": 2}}},
            "does not support 'update: geo'",
        ),
        (
            {**ADAGRAD, "update": {"sync": {"backup": 1}}},
            "backup workers do not work with the sparse table",
        ),
        (
            {**ADAGRAD, "update": {"async": {"compensate": 0.1}}},
            "does not support 'comp",
        ),
        ({**ADAGRAD, "update": "async", "place": "/node:worker/cpu"}, "on servers"),
        (
            {**ADAGRAD, "shard_state": True, "place": "/node:worker/cpu"},
            "'shard_state' works only with dense parameters",
        ),
    ],
)
def test_modes_that_sparse_tables_do_not_have_are_refused(
    tmp_path, optimizers, message
):
    content = spec(workers=2, servers=2, optimizers=optimizers)
    write_rows(tmp_path)
    (tmp_path / "wrong.yaml").write_text(json.dumps(content))
    with pytest.raises(PlacerError, match=message):
        placer.compile(tmp_path / "wrong.yaml", tmp_path / "build")


@pytest.mark.parametrize(
    ("devices", "place", "message"),
    [
        ({"cpu": 1, "gpu": 1}, "/node:worker/gpu", "it finds rows by hashing keys"),
        ({"cpu": 2}, "/node:worker/cpu", "on its first CPU device"),
    ],
)
def test_a_table_that_is_not_in_host_memory_is_refused(
    tmp_path, devices, place, message
):
    content = spec(optimizers={**ADAGRAD, "place": place}) | {"emulate": True}
    content["nodes"]["worker"]["devices"] = devices
    write_rows(tmp_path)
    (tmp_path / "wrong.yaml").write_text(json.dumps(content))
    with pytest.raises(PlacerError, match=message):
        placer.compile(tmp_path / "wrong.yaml", tmp_path / "build")


def test_microbatches_without_lockstep_are_refused(tmp_path):
    free = {**ADAGRAD, "update": "half_async"}
    content = spec(workers=2, servers=2, optimizers=free, microbatches=2)
    write_rows(tmp_path)
    (tmp_path / "wrong.yaml").write_text(json.dumps(content))
    with pytest.raises(
        PlacerError, match="cannot combine microbatches with asynchronous"
    ):
        placer.compile(tmp_path / "wrong.yaml", tmp_path / "build")


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_the_label_can_be_the_click_of_a_score(tmp_path, dtype):
    content = spec(table={"score": {"click": "y"}})
    content["precision"] = "float32"
    content["inputs"] |= {"x": "float32[batch, 4]", "y": f"{dtype}[batch]"}
    write_rows(tmp_path)
    (tmp_path / "clicked.yaml").write_text(json.dumps(content))
    placer.compile(tmp_path / "clicked.yaml", tmp_path / "build")


def test_an_op_that_shares_a_table_has_its_score(tmp_path):
    content = spec(table={"score": {"click": "y"}})
    content["graph"][1]["score"] = {"click": "other"}
    write_rows(tmp_path)
    (tmp_path / "wrong.yaml").write_text(json.dumps(content))
    with pytest.raises(PlacerError, match=r"different settings .* 'a.table'"):
        placer.compile(tmp_path / "wrong.yaml", tmp_path / "build")
