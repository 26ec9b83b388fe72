"""What the statements of one hook have in common: values, tables, and their uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from placer.compiler.emit.bundles import Bundle, Bundles
from placer.compiler.emit.code import About, Call, Expression
from placer.compiler.emit.names import HookNames, Names
from placer.compiler.emit.roles import differentiated, parameter_of, spec_op
from placer.compiler.emit.scope import Scope
from placer.compiler.emit.short_names import shorten_values
from placer.compiler.graph.graph import Op
from placer.compiler.graph.keyed import is_keyed
from placer.compiler.schedule.served import is_of_table
from placer.compiler.schedule.streamed_updates import find_streamed_updates
from placer.compiler.schedule.units import LoweredGraph, Unit
from placer.plan.hooks import SERVE
from placer.plan.plan import Table


class Hook:
    """A hook of a node, such as `step`, while it is written.

    Attributes:
        names: the names of the program.
        units: the units of the node.
        number: the number of the unit that is being written.
        users: the numbers of the units that use each value, in order.
        tables: the table of each block that the node stores.
        trained: the block that each gradient is the gradient of.
        updates: the ops of all blocks of a table, by the identity of the last of them.
        streamed: the messages of each table that is updated as they arrive.
    """

    def __init__(
        self,
        node: str,
        lowered: LoweredGraph,
        names: Names,
        tables: Sequence[Table],
        bundles: Bundles,
        units: Sequence[Unit],
        name: str,
    ) -> None:
        self.node, self.lowered, self.bundles = node, lowered, bundles
        self.graph = lowered.graph
        self.name = name
        self.names = names
        self.scope = Scope(HookNames(names, shorten_values(self.graph, units)))
        self.number = -1
        self.tables = {block.name: table for table in tables for block in table.blocks}
        self.units = units
        self.trained = {b.gradient: b.name for t in tables for b in t.blocks}
        self.streamed = find_streamed_updates(self.graph, node, tables)
        self.updates = _group_updates(self)
        self.users = _find_users(self)
        self._causes: dict[str, tuple[int, About]] = {}
        self._totals: dict[str, str] = {}
        self._total_names = Names()

    def is_sparse(self, op: Op) -> bool:
        """Whether an op of a table is one of a sparse table."""
        return is_keyed(self.graph, op.operands[0])

    def targets(self, values: Iterable[str]) -> list[str]:
        """Return the variables of values that a statement assigns."""
        return [self.scope.text(value) for value in values]

    def arguments(self, values: Iterable[str]) -> list[Expression]:
        """Return values as arguments of a call: whole bundles, layers, single values."""
        return self.scope.collapse([self.scope[v] for v in values], whole=True)

    def is_last_use(self, value: str) -> bool:
        """Whether no later unit uses a value, or another one with its expression."""
        values = self.scope.values_of(self.scope[value])
        return all(self.users.get(v, [-1])[-1] <= self.number for v in values)

    def bundle_variable(
        self, bundle: Bundle, values: Sequence[str], proposal: str
    ) -> tuple[str, list[Call]]:
        """Return the variable that holds a bundle of these values, one for each member,
        and the statements that construct it, unless a variable holds it already."""
        variable = self.scope.variable_of(bundle, values)
        if variable is not None:
            return variable, []
        members = dict(zip(bundle.members, values, strict=True))
        variable = self.scope.new_variable(proposal)
        return variable, [self.scope.construct(bundle, members, variable)]

    def bundle_target(self, bundle: Bundle, proposal: str) -> str:
        """Return the variable to assign a bundle to: the proposal, if it is unused or
        holds values of the same table that are not used again."""
        scope = self.scope
        held = scope.bundles.get(proposal)
        if (
            held is not None
            and held[0] is bundle
            and scope.parts.get(proposal) == scope.part
            and all(map(self.is_last_use, held[1].values()))
        ):
            return proposal
        return scope.new_variable(proposal)

    def parameter_for(self, value: str) -> str | None:
        """Return the parameter that a value is the gradient or the new value of."""
        differentiable = differentiated(self.graph, value)
        if differentiable is not None:
            return parameter_of(self.graph, differentiable)
        stores = (u for u in self.graph.uses.get(value, ()) if u.kind == "store")
        return next((store.operands[0] for store in stores), None)

    @property
    def is_of_message(self) -> bool:
        """Whether this is a case of the hook `serve`, which handles one message."""
        return self.name == SERVE

    def total_name(self, expression: Expression) -> str:
        """Return the name of a total: a variable, or a field written as one word."""
        text = expression.text
        if text not in self._totals:
            proposal = text.replace(".", "_")
            self._totals[text] = self._total_names.new_name(proposal)
        return self._totals[text]

    def computes(self, values: Iterable[str], about: About) -> None:
        """Note that a jitted function computes values."""
        self._causes |= dict.fromkeys(values, (self.number, about))

    def about(self, ops: Sequence[Op]) -> About:
        """Return what an error in the statement of structural ops is about.

        A jitted function computes in the background: its error is raised where one of
        its results is read first.
        """
        causes = [
            self._causes[n] for op in ops for n in op.operands if n in self._causes
        ]
        if not causes:
            if ops[0].kind == "parameter":  # those of a whole table
                return (self.name,)
            return self.name, spec_op(self.graph, ops[0])
        for op in ops:
            if op.sent_edge is None:  # a request returns what another node computes
                results = (value.name for value in op.results)
                self._causes |= dict.fromkeys(results, max(causes))
        return max(causes)[1]


def _group_updates(hook: Hook) -> dict[Op, list[Op]]:
    """Return the ops by which a table is updated or stored, in the order of its blocks:
    one statement, where the last of them is."""
    groups: dict[tuple[str, str], dict[str, Op]] = {}
    for unit in hook.units:
        op = unit.ops[0]
        if is_of_table(op) and not hook.is_sparse(op):
            table = hook.tables[op.operands[0]]
            groups.setdefault((table.name, op.kind), {})[op.operands[0]] = op
    in_order = {}
    for ops in groups.values():
        last = [*ops.values()][-1]
        blocks = hook.tables[last.operands[0]].blocks
        in_order[last] = [ops[block.name] for block in blocks]
    return in_order


def _find_users(hook: Hook) -> Mapping[str, list[int]]:
    """Return the numbers of the units whose statements use each value: what an update
    uses, where the table is updated, without the parameter, which the table has."""
    users: dict[str, list[int]] = {}
    for number, unit in enumerate(hook.units):
        used: Iterable[str] = unit.inputs
        if is_of_table(unit.ops[0]) and hook.is_sparse(unit.ops[0]):
            used = unit.ops[0].operands[1:]
        elif is_of_table(unit.ops[0]):
            ops = hook.updates.get(unit.ops[0], ())
            used = (name for op in ops for name in op.operands[1:])
        elif not unit.computed:
            used = (name for op in unit.ops for name in op.operands)
        for name in dict.fromkeys(used):
            users.setdefault(name, []).append(number)
    return users
