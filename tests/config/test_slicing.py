"""Slicing and dispatch: the table of seed 000 and PaddlePaddle, and what must hold."""

from math import ceil, prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.config.slicing import (
    Block,
    balanced,
    blocks,
    hashed,
    merged,
    round_robin,
    slice_sizes,
)

SETTINGS = settings(derandomize=True, deadline=None, max_examples=200)
shapes = st.lists(st.integers(1, 40), min_size=1, max_size=3)

TABLE = [
    ((10, 1000), 3, 8192, (10000,), (5000, 5000)),
    ((1, 10), 3, 8192, (10,), (10,)),
    ((1000, 1000), 2, 8192, (500000, 500000), (500000, 500000)),
    ((1000, 1000), 2, 1048576, (1000000,), (1000000,)),
    ((16385,), 4, 8192, (8193, 8192), (5462, 5462, 5461)),
    ((100001, 10), 3, 8192, (333340, 333340, 333330), (333340, 333340, 333330)),
    ((7, 8192), 4, 8192, (16384, 16384, 16384, 8192), (16384, 16384, 16384, 8192)),
]


@pytest.mark.parametrize(("shape", "servers", "least", "floor", "up"), TABLE)
def test_sizes_are_those_of_the_seed_and_of_paddlepaddle(
    shape, servers, least, floor, up
):
    assert slice_sizes(shape, servers, least) == up
    assert slice_sizes(shape, servers, least, rounding="floor") == floor


@SETTINGS
@given(
    shapes, st.integers(1, 9), st.integers(1, 3000), st.sampled_from(["ceil", "floor"])
)
def test_blocks_tile_the_parameter_in_whole_rows(shape, servers, least, rounding):
    found = blocks("w", shape, servers, least, rounding)
    assert [b.start for b in found] == [0, *(b.stop for b in found[:-1])]
    assert found[-1].stop == prod(shape)
    sizes = [b.numel for b in found]
    assert len(sizes) <= min(servers, max(1, ceil(prod(shape) / least)))
    assert all(size == sizes[0] for size in sizes[:-1])
    assert 0 < sizes[-1] <= sizes[0]
    if len(shape) > 1:
        assert all(size % prod(shape[1:]) == 0 for size in sizes)


def test_an_uncut_parameter_keeps_its_name():
    assert blocks("w", (1, 10), 3) == (Block("w", "w", 0, 10),)
    assert [b.name for b in blocks("w", (10, 1000), 3)] == ["w.block0", "w.block1"]


def test_a_parameter_without_elements_is_one_empty_block():
    assert slice_sizes((0, 10), 3) == (0,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"servers": 0}, "there must be at least one server"),
        ({"servers": 1, "min_block": 0}, "min_block must be at least 1"),
        (
            {"servers": 1, "rounding": "round"},
            "rounding must be 'ceil' or 'floor', not 'round'",
        ),
    ],
)
def test_senseless_slicing_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        slice_sizes((10, 10), **arguments)


def of_sizes(*sizes):
    return [Block(f"p{i}", f"p{i}", 0, size) for i, size in enumerate(sizes)]


def test_round_robin_carries_on_from_parameter_to_parameter():
    found = [*blocks("fc_b", (1000,), 2), *blocks("fc_w", (1000, 1000), 2)]
    placed = dict(zip((b.name for b in found), round_robin(found, 2), strict=True))
    assert placed == {"fc_b": 0, "fc_w.block0": 1, "fc_w.block1": 0}


def test_the_hash_of_a_name_is_the_same_in_every_process():
    found = [*blocks("h1.w", (64, 1280), 4), *blocks("h1.b", (128,), 4)]
    assert hashed(found, 4) == (0, 1, 1, 1, 3)


def test_balanced_puts_the_largest_first_on_the_least_loaded():
    assert balanced((4, 2, 4, 3), [0, 0]) == (0, 1, 1, 0)


def test_balanced_counts_what_a_server_has_already():
    assert balanced((4, 2, 4, 3), [8, 0]) == (1, 1, 1, 0)


@SETTINGS
@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=30),
    st.integers(1, 8),
)
def test_balanced_is_within_a_block_of_even(sizes, servers):
    chosen = balanced(sizes, [0] * servers)
    loads = [0] * servers
    for size, server in zip(sizes, chosen, strict=True):
        loads[server] += size
    assert max(loads) - min(loads) <= max(sizes)
    assert max(loads) <= sum(sizes) / servers + max(sizes) * (1 - 1 / servers) + 1e-9


SEED_001 = [
    ("embedding.table", 1000 * 128),
    ("fc1.w", 128 * 1024),
    ("fc1.b", 1024),
    ("fc2.w", 1024 * 512),
    ("fc2.b", 512),
    ("fc3.w", 512 * 256),
    ("fc3.b", 256),
    ("predict.w", 256 * 2),
    ("predict.b", 2),
]
DENSE = SEED_001[1:]


@pytest.mark.parametrize(
    ("servers", "expected"),
    [(1, [788738]), (2, [394370, 394368]), (3, [262913, 262913, 262912])],
)
def test_merged_gives_each_server_the_share_of_paddlepaddle(servers, expected):
    assert sum(numel for _, numel in DENSE) == 788738
    loads = [0] * servers
    for block, server in merged(DENSE, servers):
        loads[server] += block.numel
    assert loads == expected


@SETTINGS
@given(st.lists(st.integers(1, 500), min_size=1, max_size=12), st.integers(1, 7))
def test_merged_tiles_every_parameter_in_server_order(sizes, servers):
    parameters = [(f"p{i}", size) for i, size in enumerate(sizes)]
    found = merged(parameters, servers)
    for name, size in parameters:
        mine = [block for block, _ in found if block.parameter == name]
        assert [b.start for b in mine] == [0, *(b.stop for b in mine[:-1])]
        assert mine[-1].stop == size
        assert all(b.numel > 0 for b in mine)
    order = [server for _, server in found]
    assert order == sorted(order)
    assert max(order) < servers
