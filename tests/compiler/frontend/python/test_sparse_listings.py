"""Listings of PaddlePaddle with sparse tables, in Python."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from support.builds import check_same_builds, graph_lines
from support.clicks_demo import demo, write_clicks

import placer
from placer import Variable, layers
from placer.compiler.frontend.python.yaml_text import to_yaml
from placer.plan.settings.sparse.table import Scoring
from placer.plan.table_text import table_lines

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
    """PaddlePaddle's server lists a dense table of 788738 values and a sparse one of width
    128, both with 256 shards and adam, and a barrier."""
    xavier = [{"match": "*.table", "init": "xavier_uniform"}]
    listing = demo(LISTINGS["static.nn.embedding"], parameters=xavier)
    plan = placer.compile(listing, tmp_path / "build")
    (server,) = (node for node in plan.nodes if node.name == "ps:0")
    adam = "adam: learning rate 0.0001, b1 0.9, b2 0.999, eps 1e-08; slots mu = 0 and nu = 0"
    _, _, *rows = (
        re.split(" {2,}", line.strip()) for line in table_lines(plan, server)
    )
    assert rows == [
        ["0", "dense", "dense", "788,738", "788,738 elements in 8 blocks", adam],
        [
            "1",
            "sparse",
            "embedding_0.table",
            "128",
            "all 256 partitions",
            # uniform_random&0&-0.0729324966669&0.0729324966669
            f"{adam}; values begin as uniform(-0.0729325, 0.0729325)",
        ],
        ["2", "barrier", "2 processes"],
    ]
    (table,) = plan.sparse_tables
    assert table.rows == 1000


def test_shows_and_clicks_go_to_the_server_with_the_keys(tmp_path: Path) -> None:
    def look_up(ids: Variable) -> Variable:
        show = layers.data(name="show", shape=[None], dtype="float32")
        click = layers.data(name="click", shape=[None], dtype="float32")
        entry = layers.ShowClickEntry(show, click)
        return layers.sparse_embedding(input=ids, size=SIZE, entry=entry)

    plan = placer.compile(demo(look_up), tmp_path / "build")
    (table,) = plan.sparse_tables
    assert table.settings.score == Scoring()
    worker = (tmp_path / "build" / "worker-0" / "program.py").read_text()
    assert re.search(r"node.distinct_keys\([^)]*show[^)]*click", worker)


@pytest.mark.slow
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
    (loss,) = plan.settings.train.metrics
    lines = [json.loads(line)["metrics"] for line in history.read_text().splitlines()]
    losses = [line[loss] for line in lines]
    assert losses[0] == pytest.approx(math.log(2), abs=0.02)
    assert sum(losses[-8:]) < 0.95 * sum(losses[:8])
