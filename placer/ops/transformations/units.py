"""The part of an optimizer that updates one parameter, or parameters that depend on others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from placer.ops.transformations.equations import Equations
from placer.ops.transformations.ownership import Ownership
from placer.ops.transformations.trace import Traced


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """The equations that update some parameters.

    Attributes:
        parameters: the numbers of the parameters.
        leaves: the numbers of their leaves, and of the shared leaves.
        init: has the parameters as inputs, and the leaves as results.
        update: has the gradients, the leaves, the parameters and the learning rate as
            inputs, and the new parameters and the new leaves as results.
        averaged: has the leaves and the parameters as inputs, and the values for
            evaluations as results; None without a function for them.
    """

    parameters: tuple[int, ...]
    leaves: tuple[int, ...]
    init: Equations
    update: Equations
    averaged: Equations | None


def make_unit(traced: Traced, owners: Ownership, parameters: Sequence[int]) -> Unit:
    """Return the part of an optimizer that updates some parameters.

    Args:
        traced: the optimizer, for the whole tree or for blocks.
        owners: the owners of the leaves.
        parameters: the numbers of the parameters; all of a group if they depend on others.
    """
    leaves = tuple(
        i
        for i, owner in enumerate(owners.owners)
        if owner is None or owner in parameters
    )
    count, update, averaged = len(traced.names), traced.update, None
    inputs = traced.inputs_of(update)
    if traced.averaged is not None:
        read = traced.inputs_of(traced.averaged)
        averaged = traced.averaged.part(
            _chosen(traced.averaged.results, parameters),
            (*_chosen(read.leaves, leaves), *_chosen(read.values, parameters)),
        )
    return Unit(
        tuple(parameters),
        leaves,
        traced.init.part(
            _chosen(traced.init.results, leaves),
            _chosen(traced.init.inputs, parameters),
        ),
        update.part(
            (
                *_chosen(update.results, parameters),
                *_chosen(update.results, (count + i for i in leaves)),
            ),
            (
                *_chosen(inputs.gradients, parameters),
                *_chosen(inputs.leaves, leaves),
                *_chosen(inputs.values, parameters),
                *inputs.rate,
            ),
        ),
        averaged,
    )


def _chosen(items: Sequence[object], numbers: Iterable[int]) -> tuple[object, ...]:
    return tuple(items[i] for i in numbers)
