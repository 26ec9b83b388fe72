"""Random placements, and a few that look like those of shipped specs."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st

from placer.report.page.facts import Arrow, Box, Column, Group, Line, Placement

PURPOSES: tuple[Any, ...] = (
    "store", "read", "lookup", "combine", "forward", "backward", "update", "other",
)  # fmt: skip


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """Placements with up to 6 columns, and with arrows in all directions."""
    column_groups = sorted(draw(st.lists(st.integers(0, 3), min_size=1, max_size=6)))
    groups = sorted(set(column_groups))
    columns = [
        Column(
            groups.index(g),
            f"gpu:{i}",
            draw(st.integers(1, 8)),
            draw(st.integers(0, 1)),
        )
        for i, g in enumerate(column_groups)
    ]
    places = draw(
        st.sets(
            st.tuples(st.integers(0, len(columns) - 1), st.integers(0, 7)),
            min_size=1,
            max_size=20,
        )
    )
    boxes = [
        Box(
            index, column, row,
            purpose=draw(st.sampled_from(PURPOSES)),
            title=draw(st.text(max_size=30)),
            lines=tuple(Line(f"layer{i}", "float32[8, 4]") for i in range(index % 6)),
            more=index % 3,
            ops=index,
            flops=draw(st.integers(0, 10**12)),
            nbytes=draw(st.integers(0, 10**12)),
        )
        for index, (column, row) in enumerate(sorted(places))
    ]  # fmt: skip
    pairs = draw(
        st.sets(
            st.tuples(
                st.sampled_from(range(len(boxes))), st.sampled_from(range(len(boxes)))
            ),
            max_size=30,
        )
    )
    arrows = [
        Arrow(
            source, target, draw(st.integers(0, 10**12)),
            estimated=draw(st.booleans()), between_devices=draw(st.booleans()),
        )
        for source, target in sorted(pairs)
    ]  # fmt: skip
    nodes = tuple(Group((f"worker:{i}",), f"worker:{i}") for i in range(len(groups)))
    return Placement(
        "a training step", nodes, tuple(columns), tuple(boxes), tuple(arrows)
    )


def sparse_model() -> Placement:
    """A placement like that of a model with sparse tables: 2 workers and 2 servers."""

    def lines(*pairs: str) -> tuple[Line, ...]:
        return tuple(Line(*pair.split("|")) for pair in pairs)

    boxes = [
        Box(0, 0, 0, "read", "reads rows", lines("keys|int64[batch, 8]"), ops=1),
        Box(1, 1, 0, "store", "stores parameters", lines("deep1|float32[256]", "deep2|float32[8192]", "wide|float32[keys, 1]", "vectors|float32[keys, 16]"), ops=4, stored=304_200, why="ps: as written in the spec"),
        Box(2, 2, 0, "store", "stores parameters", lines("deep1|float32[16896]", "deep2|float32[64]", "deep|float32[65]", "wide|float32[keys, 1]", "vectors|float32[keys, 16]"), ops=5, stored=302_600),
        Box(3, 0, 1, "lookup", "looks up rows", lines("wide|distinct_keys", "vectors|distinct_keys"), ops=4, nbytes=393_200),
        Box(4, 1, 2, "lookup", "looks up rows", lines("wide|rows", "vectors|rows"), ops=2, nbytes=557_100),
        Box(5, 2, 2, "lookup", "looks up rows", lines("wide|rows", "vectors|rows"), ops=2, nbytes=557_100),
        Box(6, 0, 2, "read", "reads rows", lines("numbers|float32[batch, 4]", "click|float32[batch, 1]"), ops=2),
        Box(7, 0, 3, "combine", "combines parts", lines("deep1|assemble", "deep2|assemble"), ops=2),
        Box(8, 0, 4, "forward and backward", "forward and backward", lines("wide|embedding", "vectors|embedding", "flat|flatten", "both|concat", "deep1|fc", "a_layer_with_a_long_name|fc"), 5, 21, 310_200_000, 1_114_200, seconds=0.0155, functions=("forward_backward",)),
        Box(9, 1, 5, "update", "updates parameters", lines("deep1|adam", "deep2|adam"), ops=6, flops=131_100),
        Box(10, 2, 5, "update", "updates parameters", lines("deep1|adam", "deep|adam"), ops=6, flops=131_100),
        Box(11, 1, 6, "update", "updates rows", lines("wide|ftrl", "vectors|adagrad"), ops=4, flops=31_100),
        Box(12, 2, 6, "update", "updates rows", lines("wide|ftrl", "vectors|adagrad"), ops=4, flops=31_100),
    ]  # fmt: skip
    arrows = [
        Arrow(3, 4, 196_608, (1,), ("wide.keys", "vectors.keys"), estimated=True),
        Arrow(3, 5, 196_608, (1,), ("wide.keys", "vectors.keys"), estimated=True),
        Arrow(4, 8, 557_056, (2,), ("wide.rows", "vectors.rows"), estimated=True),
        Arrow(5, 8, 557_056, (3,), ("wide.rows", "vectors.rows"), estimated=True),
        Arrow(1, 7, 67_600, (4,), ("deep1", "deep2")),
        Arrow(2, 7, 135_100, (5,), ("deep1", "deep2", "deep")),
        Arrow(8, 9, 67_600, (6,), ("deep1.grad",)),
        Arrow(8, 10, 135_100, (6,), ("deep1.grad",)),
        Arrow(8, 11, 557_056, (7,), ("wide.rows.grad",), estimated=True),
        Arrow(8, 12, 557_056, (7,), ("wide.rows.grad",), estimated=True),
    ]
    return Placement(
        "a training step",
        (
            Group(("worker:0", "worker:1"), "worker:0-1"),
            Group(("ps:0",), "ps:0"),
            Group(("ps:1",), "ps:1"),
        ),
        (Column(0, "cpu"), Column(1, "cpu"), Column(2, "cpu")),
        tuple(boxes),
        tuple(arrows),
    )


def all_reduce_model() -> Placement:
    """A placement of 64 workers with 8 equal devices, which sum their gradients."""
    boxes = (
        Box(0, 0, 0, "store", "stores parameters", (Line("h1.w", "float32[64, 64]"),), ops=1, stored=16_384),
        Box(1, 0, 1, "read", "reads rows", (Line("x", "float32[batch, 64]"),), ops=1),
        Box(2, 0, 2, "forward and backward", "forward and backward", (Line("h1", "fc"), Line("loss", "mean_squared_error")), ops=9, flops=10**9, nbytes=10**6),
        Box(3, 1, 3, "forward and backward", "forward and backward", (Line("h2", "fc"),), ops=9, flops=10**9, nbytes=10**6),
        Box(4, 0, 4, "update", "updates parameters", (Line("h1.w", "adam"),), ops=2),
    )  # fmt: skip
    arrows = (
        Arrow(2, 4, 10**6, (1,), ("h1.w.grad",)),
        Arrow(2, 3, 5 * 10**5, (), ("h1",), between_devices=True),
        Arrow(3, 4, 5 * 10**5, (), ("h2",), between_devices=True),
    )
    return Placement(
        "a training step",
        (Group(tuple(f"worker:{i}" for i in range(64)), "worker:0-63"),),
        (Column(0, "gpu:0"), Column(0, "gpu:1-7", 7)),
        boxes,
        arrows,
        "4 more devices",
    )
