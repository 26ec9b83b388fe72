"""The facts of an optax optimizer that the compiler finds by tracing it.

An optax optimizer is a user's function that returns an
`optax.GradientTransformation`. The compiler and each node that updates parameters trace
it on the tree of its parameters: a dict from names to arrays
(`placer.ops.transformations`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final, Literal

from msgspec import Struct

from placer.plan.settings.fields import Size, ValueName

LeafKind = Literal["slot", "own", "shared"]
RESERVED: Final = frozenset({"value", "averaged", "old", "outer"})
"""The first words of array names that checkpoints use for other arrays than the state."""


class Leaf(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """An array of the optimizer's state.

    Attributes:
        name: the path in the state without the name of the parameter, such as `0.mu` or
            `1.count`. It is unique among the leaves of a parameter.
        kind: `slot` has the shape of the parameter, and element e of the slot belongs to
            element e of the parameter. `own` belongs to one whole parameter. `shared` is a
            leaf of the whole tree, such as a count of updates; each parameter has a copy.
        parameter: the parameter; empty for a `shared` leaf.
        dtype: the dtype.
        shape: the shape, for a whole parameter.
    """

    name: str
    kind: LeafKind
    dtype: str
    shape: tuple[Size, ...]
    parameter: str = ""


class Transformation(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """An optax optimizer.

    Attributes:
        fn: the function that returns the transformation, as `MODULE:NAME`.
        config: the arguments of the function by name, as JSON; empty without any.
        takes_rate: the function takes the learning rate of the step as `learning_rate`.
        parameters: the names of the parameters, in the order of the tree.
        leaves: the state.
        whole: the parameters that are not cut into blocks, each with the reason. One node
            updates each of them.
        together: groups of parameters whose updates depend on each other. One node updates
            all parameters of a group.
        clip: the bound of `clip_by_global_norm` at the top of the chain, if any. placer
            computes this norm, and the rest of the chain is the update.
        fingerprint: a digest of the equations.
        flops: the FLOPs to update one element.
        eval_params: the function `(state, params) -> params` that computes the values for
            evaluations and exports, as `MODULE:NAME`; empty without one.
    """

    fn: str
    config: str = ""
    takes_rate: bool
    parameters: tuple[ValueName, ...]
    leaves: tuple[Leaf, ...]
    whole: dict[ValueName, str] = {}
    together: tuple[tuple[ValueName, ...], ...] = ()
    clip: float | None = None
    fingerprint: str
    flops: Size = 0
    eval_params: str = ""

    def leaves_of(self, parameter: str) -> tuple[Leaf, ...]:
        """Return the leaves of one parameter: its own, then the shared ones."""
        own = [leaf for leaf in self.leaves if leaf.parameter == parameter]
        return (*own, *(leaf for leaf in self.leaves if leaf.kind == "shared"))


def shape_on_block(shape: Sequence[int], start: int, stop: int) -> tuple[int, ...]:
    """Return the shape in which an optax optimizer sees a block of a parameter.

    It is the shape of the parameter with fewer rows if the block has whole rows, else it
    is flat.

    Args:
        shape: the shape of the parameter.
        start: the first element of the block.
        stop: the end of the block.

    Example:
        >>> shape_on_block((4, 3), 0, 6), shape_on_block((4, 3), 2, 8)
        ((2, 3), (6,))
    """
    row = prod(shape[1:])
    if (start, stop) == (0, prod(shape)):
        return tuple(shape)
    if row and start % row == stop % row == 0:
        return (stop - start) // row, *shape[1:]
    return (stop - start,)
