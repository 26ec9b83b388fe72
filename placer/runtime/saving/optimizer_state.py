"""Describes the arrays of an optimizer's state in plans and in checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from placer.checkpoint.manifest import OUTER, StoredLeaf, StoredParameter
from placer.plan.plan import Parameter, Plan, Table
from placer.plan.settings.training.optimizers import read_rule
from placer.plan.settings.training.update_modes import Geo


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """The state of an optimizer for one parameter.

    Attributes:
        rule: the update rule; None for a parameter that is not trained.
        slots: the dtype of each slot. Blocks divide slots like the parameter.
        leaves: the types of the arrays that belong to the whole parameter.
        fn: the function of an optax optimizer, as `MODULE:NAME`.
    """

    rule: str | None = None
    slots: Mapping[str, str] = field(default_factory=dict)
    leaves: Mapping[str, StoredLeaf] = field(default_factory=dict)
    fn: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the slots, then those of the leaves."""
        return *self.slots, *self.leaves


def planned_state(plan: Plan, table: Table, parameter: Parameter) -> OptimizerState:
    """Return the state that a table keeps for a parameter."""
    if table.transformation:
        transformation = plan.transformations[table.transformation]
        leaves = transformation.leaves_of(parameter.name)
        slots = {each.name: each.dtype for each in leaves if each.kind == "slot"}
        others = {
            each.name: StoredLeaf(each.dtype, each.shape)
            for each in leaves
            if each.kind != "slot"
        }
        return OptimizerState(table.rule, slots, others, transformation.fn)
    return OptimizerState(table.rule, dict.fromkeys(slots_of(table), parameter.dtype))


def stored_state(stored: StoredParameter) -> OptimizerState:
    """Return the state of a parameter's optimizer in a checkpoint."""
    slots = {each: stored.type_of(each).dtype for each in stored.slots}
    return OptimizerState(stored.rule, slots, stored.leaves, stored.fn)


def stored_outer_state(stored: StoredParameter) -> OptimizerState:
    """Return the state of the servers' optimizer, if workers train with their own."""
    outer = stored.outer
    if outer is None:
        return OptimizerState()
    return OptimizerState(outer.rule, dict.fromkeys(outer.slots, stored.dtype))


def slots_of(table: Table) -> tuple[str, ...]:
    """Return the names of the slots of a table whose rule is one of placer's own."""
    if table.rule is None:
        return ()
    return tuple(read_rule(table.rule, table.hyper).first_slots)


def states_of_blocks(plan: Plan, table: Table) -> list[OptimizerState]:
    """Return the state that a table keeps for the parameter of each of its blocks."""
    parameters = {each.name: each for each in plan.parameters}
    return [
        planned_state(plan, table, parameters[block.parameter])
        for block in table.blocks
    ]


def array_of(table: Table, slot: str) -> str:
    """Return the name of a slot of a table in a checkpoint."""
    return f"{OUTER}{slot}" if isinstance(table.mode, Geo) else slot


def first_difference(stored: OptimizerState, own: OptimizerState) -> str:
    """Return the first difference between two states, or "".

    A rule without state continues from any checkpoint.
    """
    if not own.names:
        return "" if not stored.names or stored.rule != own.rule else _surplus(stored)
    if stored.rule != own.rule:
        return f"{stored.rule}, not {own.rule}"
    before, now = dict(_types(stored)), dict(_types(own))
    for name, kind in now.items():
        if name not in before:
            return f"'{name}' is not in the checkpoint"
        if before[name] != kind:
            return f"'{name}' is {before[name]}, not {kind}"
    surplus = [name for name in before if name not in now]
    return f"the optimizer has no '{surplus[0]}'" if surplus else ""


def _surplus(stored: OptimizerState) -> str:
    return f"the optimizer has no '{stored.names[0]}'"


def _types(state: OptimizerState) -> Iterator[tuple[str, str]]:
    for name, dtype in state.slots.items():
        yield name, f"{dtype} for each element"
    for name, leaf in state.leaves.items():
        yield name, f"{leaf.dtype}{list(leaf.shape)}"
