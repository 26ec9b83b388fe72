"""Listings of PaddlePaddle with sparse tables, in Python."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from support.builds import check_same_builds, graph_lines
from support.clicks_demo import demo, write_clicks

import placer
from placer import layers
from placer.config import optimizers
from placer.front.yaml_text import to_yaml

SIZE = [1000, 128]
LISTINGS = {
    "static.nn.embedding": lambda x: layers.embedding(
        input=x, size=SIZE, is_sparse=True
    ),
    "static.nn.sparse_embedding": lambda x: layers.sparse_embedding(input=x, size=SIZE),
    "nn.Embedding": lambda x: layers.Embedding(input=x, size=SIZE, sparse=True),
}


@pytest.mark.parametrize("listing", LISTINGS)
def test_the_spellings_make_the_same_sparse_table(listing: str) -> None:
    assert graph_lines(to_yaml(demo(LISTINGS[listing])))[3:8] == [
        "      - name: embedding_0",
        "        op: embedding",
        "        in: sparse_input",
        "        size: [1000, 128]",
        "        sparse: true",
    ]


def test_a_sparse_listing_compiles_like_its_yaml(tmp_path: Path) -> None:
    check_same_builds(demo(LISTINGS["static.nn.embedding"]), tmp_path)


def test_a_server_has_the_tables_of_the_listing(tmp_path: Path) -> None:
    """PaddlePaddle's server lists a sparse table embedding_0.w_0 of width 128 and a dense
    one of 788738 values, both with 256 shards and adam, and a barrier."""
    xavier = [{"match": "*.table", "init": "xavier_uniform"}]
    listing = demo(LISTINGS["static.nn.embedding"], parameters=xavier)
    plan = placer.compile(listing, tmp_path / "build")
    (table,) = plan.sparse_tables
    settings = table.settings
    assert (table.name, table.rows, settings.dim) == ("embedding_0.table", 1000, 128)
    assert table.holders == ("ps:0",)
    assert settings.partitions == 256
    # dims: 128 128 128 1 1 1: the row and the slots; the powers of b1 and b2, which
    # follow from the row's number of updates here; the rate
    assert (settings.rule, table.learning_rate) == ("adam", 1e-4)
    assert optimizers.slots("adam", settings.hyper) == {"mu": 0.0, "nu": 0.0}
    assert (settings.hyper["b1"], settings.hyper["b2"]) == (0.9, 0.999)
    # uniform_random&0&-0.0729324966669&0.0729324966669
    form, limits = settings.init
    assert form == "uniform"
    assert limits == pytest.approx((-0.0729325, 0.0729325), abs=1e-7)

    (server,) = (node for node in plan.nodes if node.name == "ps:0")
    (dense,) = server.tables
    assert (dense.rule, dense.learning_rate) == ("adam", 1e-4)
    sizes = [math.prod(block.shape) for block in dense.blocks]
    assert sum(sizes) == 788_738

    # The barrier: a server waits in each step for the gradients of the only worker.
    program = (tmp_path / "build" / "ps-0" / "program.py").read_text()
    assert "node.receive_row_gradients(" in program
    assert 'node.update_from_edges("dense", ' in program


def test_the_heter_listing_trains(tmp_path: Path) -> None:
    """The embedding on a worker's CPU, the layers on a heter node's GPU."""
    listing = demo(
        LISTINGS["static.nn.sparse_embedding"],
        source=write_clicks(tmp_path),
        heter=True,
        epochs=8,
    )
    plan = placer.compile(listing, tmp_path / "build")
    worker = (tmp_path / "build" / "worker-0" / "program.py").read_text()
    assert "node.send_and_recv(" in worker
    assert "node.send_row_gradients(" in worker
    assert "ops.fc" not in worker

    history = tmp_path / "history.jsonl"
    placer.launch(tmp_path / "build", history=history)
    (loss,) = plan.metrics
    lines = [json.loads(line)["metrics"] for line in history.read_text().splitlines()]
    losses = [line[loss] for line in lines]
    assert losses[0] == pytest.approx(math.log(2), abs=0.02)
    assert sum(losses[-8:]) < 0.95 * sum(losses[:8])
