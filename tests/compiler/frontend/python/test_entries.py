"""PaddlePaddle's arguments of sparse tables: entries, names of tables, and mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.builds import error_parts, program

from placer import Variable, layers
from placer.errors import SpecError


def ops_of(*look_ups: Callable[[Variable], Variable]) -> list[dict[str, Any]]:
    """Return the ops of a program that calls functions with an input `ids`."""
    with program() as each:
        ids = layers.data("ids", "int64[batch, 3]")
        layers.data("show", "float32[batch]")
        layers.data("click", "float32[batch]")
        for look_up in look_ups:
            look_up(ids)
    return each.tree().value["graph"]


SPARSE = {
    "name": "embedding_0",
    "op": "embedding",
    "in": "ids",
    "size": [9, 4],
    "sparse": True,
}


@pytest.mark.parametrize(
    ("entry", "keys"),
    [
        (None, {}),
        (layers.CountFilterEntry(0), {}),
        (layers.CountFilterEntry(10), {"admit": {"count": 10}}),
        (layers.ProbabilityEntry(0.25), {"admit": {"probability": 0.25}}),
        (
            layers.ShowClickEntry("show", "click"),
            {"score": {"show": "show", "click": "click"}},
        ),
    ],
    ids=str,
)
def test_an_entry_says_which_keys_get_a_row(entry: Any, keys: dict[str, Any]) -> None:
    (op,) = ops_of(lambda ids: layers.sparse_embedding(ids, [9, 4], entry=entry))
    assert op == {**SPARSE, **keys}


def test_an_entry_takes_the_inputs_themselves() -> None:
    with program() as each:
        ids = layers.data("ids", "int64[batch, 3]")
        shows = layers.data("shows", "float32[batch]")
        clicks = layers.data("clicks", "float32[batch]")
        entry = layers.ShowClickEntry(shows, clicks)
        layers.sparse_embedding(ids, [9, 4], entry=entry)
    (op,) = each.tree().value["graph"]
    assert op["score"] == {"show": "shows", "click": "clicks"}


def test_calls_with_the_same_table_name_share_a_table() -> None:
    named, same, given = ops_of(
        lambda ids: layers.sparse_embedding(ids, [9, 4], param_attr="emb"),
        lambda ids: layers.sparse_embedding(ids, [9, 4], param_attr="emb"),
        lambda ids: layers.Embedding(
            ids, [9, 4], sparse=True, weight_attr="emb", name="c"
        ),
    )
    assert named == {**SPARSE, "name": "emb"}
    assert same == {**SPARSE, "params": {"table": "emb.table"}}
    assert given == {**same, "name": "c"}


def test_a_table_can_be_shared_by_its_value() -> None:
    with program() as each:
        ids = layers.data("ids", "int64[batch, 3]")
        first = layers.embedding(ids, [9, 4], sparse=True)
        table = first.parameter("table")
        layers.sparse_embedding(ids, [9, 4], param_attr=table)
    assert each.tree().value["graph"][1]["params"] == {"table": "embedding_0.table"}


def test_a_negative_padding_counts_from_the_end_of_the_declared_rows() -> None:
    first, second = ops_of(
        lambda ids: layers.sparse_embedding(ids, [9, 4], padding_idx=-1),
        lambda ids: layers.Embedding(ids, [9, 4], 2, sparse=True),
    )
    assert (first["padding"], second["padding"]) == (8, 2)


def test_an_embedding_that_is_not_sparse_has_a_dense_table() -> None:
    (op,) = ops_of(lambda ids: layers.Embedding(ids, [9, 4]))
    assert op == {key: SPARSE[key] for key in SPARSE if key != "sparse"}


IN_MEMORY = "table_class must be MemorySparseTable or CommonSparseTable, not the text"


@pytest.mark.parametrize(
    ("mistake", "message", "hint"),
    [
        (
            lambda ids: layers.ProbabilityEntry(1),
            "probability must be a float in (0, 1), not 1",
            None,
        ),
        (
            lambda ids: layers.ProbabilityEntry(1.5),
            "probability must be a float in (0, 1), not 1.5",
            None,
        ),
        (
            lambda ids: layers.CountFilterEntry(-1),
            "count_filter must be an int of at least 0, not -1",
            None,
        ),
        (
            lambda ids: layers.CountFilterEntry(True),
            "count_filter must be an int of at least 0, not true",
            None,
        ),
        (
            lambda ids: layers.ShowClickEntry(1, "click"),
            "show must be an input or its name, not 1",
            None,
        ),
        (
            lambda ids: layers.sparse_embedding(ids, [9, 4], entry="count"),
            "an entry must be one of CountFilterEntry, ProbabilityEntry,"
            " ShowClickEntry, not the text 'count'",
            None,
        ),
        (
            lambda ids: layers.sparse_embedding(ids, [9, 4], is_test=True),
            "sparse_embedding does not accept is_test=True: one program is used for"
            " training, evaluation and prediction",
            "leave it out: a lookup never creates rows",
        ),
        (
            lambda ids: layers.sparse_embedding(ids, [9, 4], table_class="SSDTable"),
            f"{IN_MEMORY} 'SSDTable'",
            None,
        ),
        (
            lambda ids: layers.sparse_embedding(
                ids, [9, 4], table_class="SSDSparseTable"
            ),
            f"{IN_MEMORY} 'SSDSparseTable'",
            "a server keeps rows in memory",
        ),
        (
            lambda ids: layers.sparse_embedding(ids, [9, 4], param_attr="t", name="a"),
            "the table of the op 'a' cannot be called 't'",
            "the first op that uses a table must have the table's name",
        ),
        (
            lambda ids: layers.Embedding(ids, [9, 4], weight_attr={"init": "zeros"}),
            "a table must be a name or a table of the program, not a mapping",
            "use Program(parameters=[…]) for initial values, and to fix parameters",
        ),
        (
            lambda ids: layers.sparse_embedding(ids, [9, 4, 2]),
            "op 'embedding_0': embedding needs either 'dim' or a size [rows, dim]",
            None,
        ),
    ],
)
def test_a_mistake_is_reported_at_its_line(
    mistake: Callable[[Variable], object], message: str, hint: str | None
) -> None:
    with program():
        ids = layers.data("ids", "int64[batch, 3]")
        with pytest.raises(SpecError) as caught:
            mistake(ids)
    text, at, shown_hint = error_parts(caught.value, __file__)
    assert (text, shown_hint) == (message, hint)
    assert at.startswith("layers.")
