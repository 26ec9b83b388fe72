"""Initial values of any range of elements, without a plan."""

from pathlib import Path

from placer.plan.plan import Parameter
from placer.plan.settings.training.initializers import Initializer, read_init
from placer.plan.settings.training.slicing import Block
from placer.tables.initial import initial_values


def compute_values(init, *, seed, name, shape, start, stop, dtype):
    """Return elements [start, stop) of a parameter, flattened in C order."""
    shape = tuple(shape)
    init = init if isinstance(init, Initializer) else read_init(init)
    parameter = Parameter(name=name, dtype=dtype, shape=shape, init=init, holders=())
    block = Block(name, name, start, stop, (stop - start,))
    return initial_values.compute_values(parameter, block, seed, Path())
