"""Half floats that several nodes send are added in float32 and rounded once."""

import ml_dtypes
import numpy as np
import pytest

from placer.build.plan import Edge, EdgeValue
from placer.channel.memory import memory_channels
from placer.channel.protocol import Key
from placer.runtime.program.exchange import Exchange

NODES = ["worker:0", "worker:1", "worker:2"]
KEY = Key(1, 1)
LITTLE = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""A number that is lost when it is added to 1; twice that number is not."""


def sum_over_nodes(dtype, layout):
    """Return what each node receives of the sum of 1, LITTLE and LITTLE in 6
    elements."""
    moved = EdgeValue("g", "sum", dtype, (6,), ("P", layout))
    edge = Edge(1, tuple(NODES), tuple(NODES), (moved,), nbytes=0)
    channels = memory_channels(NODES, deadline=10)
    ends = [Exchange(node, channels[node], {1: edge}, 2) for node in NODES]
    little = LITTLE[dtype]
    kind = np.dtype(dtype if dtype == "float16" else ml_dtypes.bfloat16)
    for end, value in zip(ends, (1.0, little, little), strict=True):
        end.send(KEY, [np.full(6, value, kind)], 6)
    return [end.receive(KEY, 6)[0] for end in ends]


@pytest.mark.parametrize("layout", ["R", "S"])
@pytest.mark.parametrize("dtype", LITTLE)
def test_sums_of_half_floats_are_rounded_once(dtype, layout):
    for found in sum_over_nodes(dtype, layout):
        assert found.dtype.name == dtype
        assert found.shape == ((6,) if layout == "R" else (2,))
        assert (found.astype(np.float32) == 1 + 2 * LITTLE[dtype]).all()
