"""Slicing and dispatch, compared with PaddlePaddle's slice_var_up, and properties."""

from math import ceil, prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.plan.settings.training.slicing import (
    Block,
    balance_by_size,
    by_hash,
    make_blocks,
    round_robin,
    slice_merged,
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


@pytest.mark.parametrize(("shape", "servers", "min_block", "floor", "ceil"), TABLE)
def test_block_sizes_are_those_of_paddlepaddle(shape, servers, min_block, floor, ceil):
    assert slice_sizes(shape, servers, min_block) == ceil
    assert slice_sizes(shape, servers, min_block, rounding="floor") == floor


@SETTINGS
@given(
    shapes, st.integers(1, 9), st.integers(1, 3000), st.sampled_from(["ceil", "floor"])
)
def test_blocks_cover_the_parameter_in_whole_rows(shape, servers, min_block, rounding):
    blocks = slice_parameter("w", shape, servers, min_block, rounding)
    assert [b.start for b in blocks] == [0, *(b.stop for b in blocks[:-1])]
    assert blocks[-1].stop == prod(shape)
    sizes = [b.numel for b in blocks]
    assert len(sizes) <= min(servers, max(1, ceil(prod(shape) / min_block)))
    assert all(size == sizes[0] for size in sizes[:-1])
    assert 0 < sizes[-1] <= sizes[0]
    if len(shape) > 1:
        assert all(size % prod(shape[1:]) == 0 for size in sizes)


def test_a_single_block_has_the_name_of_its_parameter():
    assert slice_parameter("w", (1, 10), 3) == (Block("w", "w", 0, 10, (1, 10)),)
    assert [b.name for b in slice_parameter("w", (10, 1000), 3)] == [
        "w.block0",
        "w.block1",
    ]


def test_a_parameter_without_elements_is_one_empty_block():
    assert slice_sizes((0, 10), 3) == (0,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"servers": 0}, "servers must be at least 1"),
        ({"servers": 1, "min_block": 0}, "min_block must be at least 1"),
        (
            {"servers": 1, "rounding": "round"},
            "rounding must be 'ceil' or 'floor', not 'round'",
        ),
    ],
)
def test_invalid_arguments_of_slicing_are_rejected(arguments, message):
    with pytest.raises(ValueError, match=message):
        slice_sizes((10, 10), **arguments)


def slice_parameter(name, shape, *how):
    return make_blocks(name, shape, slice_sizes(shape, *how))


def test_round_robin_continues_from_parameter_to_parameter():
    blocks = [
        *slice_parameter("fc_b", (1000,), 2),
        *slice_parameter("fc_w", (1000, 1000), 2),
    ]
    placed = dict(zip((b.name for b in blocks), round_robin(blocks, 2), strict=True))
    assert placed == {"fc_b": 0, "fc_w.block0": 1, "fc_w.block1": 0}


def test_the_hash_of_a_name_is_the_same_in_every_process():
    blocks = [
        *slice_parameter("h1.w", (64, 1280), 4),
        *slice_parameter("h1.b", (128,), 4),
    ]
    assert by_hash(blocks, 4) == (0, 1, 1, 1, 3)


def test_balanced_assigns_the_largest_first_to_the_least_loaded():
    assert balance_by_size((4, 2, 4, 3), [0, 0]) == (0, 1, 1, 0)


def test_balanced_counts_the_load_that_a_server_already_has():
    assert balance_by_size((4, 2, 4, 3), [8, 0]) == (1, 1, 1, 0)


@SETTINGS
@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=30),
    st.integers(1, 8),
)
def test_balanced_loads_differ_by_one_block_at_most(sizes, servers):
    chosen = balance_by_size(sizes, [0] * servers)
    loads = [0] * servers
    for size, server in zip(sizes, chosen, strict=True):
        loads[server] += size
    assert max(loads) - min(loads) <= max(sizes)
    assert max(loads) <= sum(sizes) / servers + max(sizes) * (1 - 1 / servers) + 1e-9


PARAMETERS = [
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
DENSE = PARAMETERS[1:]


@pytest.mark.parametrize(
    ("servers", "expected"),
    [(1, [788738]), (2, [394370, 394368]), (3, [262913, 262913, 262912])],
)
def test_merged_loads_are_those_of_paddlepaddle(servers, expected):
    assert sum(numel for _, numel in DENSE) == 788738
    loads = [0] * servers
    shapes = [(name, (numel,)) for name, numel in DENSE]
    for block, server in slice_merged(shapes, servers):
        loads[server] += block.numel
    assert loads == expected


@SETTINGS
@given(st.lists(st.integers(1, 500), min_size=1, max_size=12), st.integers(1, 7))
def test_merged_covers_every_parameter_in_server_order(sizes, servers):
    parameters = [(f"p{i}", size) for i, size in enumerate(sizes)]
    shapes = [(name, (size,)) for name, size in parameters]
    blocks = slice_merged(shapes, servers)
    for name, size in parameters:
        own = [block for block, _ in blocks if block.parameter == name]
        assert [b.start for b in own] == [0, *(b.stop for b in own[:-1])]
        assert own[-1].stop == size
        assert all(b.numel > 0 for b in own)
    order = [server for _, server in blocks]
    assert order == sorted(order)
    assert max(order) < servers
