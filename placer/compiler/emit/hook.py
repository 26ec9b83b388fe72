"""The state of a hook while its statements are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from placer.compiler.emit.bundles import Bundle, Bundles
from placer.compiler.emit.code import About, Call, Expression
from placer.compiler.emit.constants import Constants
from placer.compiler.emit.names import HookNames, Names
from placer.compiler.emit.roles import differentiated, parameter_of, spec_op
from placer.compiler.emit.scope import Scope
from placer.compiler.emit.short_names import shorten_values
from placer.compiler.graph.graph import Op
from placer.compiler.graph.keyed import ahead_of, is_keyed, keys_of, sum_by_key_of
from placer.compiler.schedule.served import is_of_table
from placer.compiler.schedule.streamed_updates import find_streamed_updates
from placer.compiler.schedule.units import LoweredGraph, Unit
from placer.plan.hooks import SERVE
from placer.plan.plan import Table


class Hook:
    """A hook of a node, such as `step`, while it is written.

    Attributes:
        names: the names of the program.
        units: the units of the node: each becomes a statement or a jitted function.
        constants: the constants of the program.
        number: the number of the current unit.
        users: the numbers of the units that use each value, in order.
        tables: the table of each block that the node stores.
        trained: the block of each gradient.
        updates: the updates of all blocks of a table, or of sparse tables over the same
            keys, by the last update.
        streamed: the received messages of each table that applies gradients as they
            arrive.
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
        constants: Constants,
    ) -> None:
        self.constants = constants
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
        self._notes: set[str] = set()
        self._total_names = Names()

    def is_sparse(self, op: Op) -> bool:
        """Whether an op reads or updates a sparse table."""
        return is_keyed(self.graph, op.operands[0])

    def edge(self, op: Op, attribute: str = "edge") -> str:
        """Return the constant of the edge that an op sends to or receives from."""
        return self.constants.edge(op.attrs[attribute])

    def targets(self, values: Iterable[str]) -> list[str]:
        """Return the variables of the values that a statement assigns."""
        return [self.scope.text(value) for value in values]

    def arguments(self, values: Iterable[str]) -> list[Expression]:
        """Return the arguments of a call: whole bundles, layers and single values."""
        return self.scope.collapse([self.scope[v] for v in values], whole=True)

    def is_last_use(self, value: str) -> bool:
        """Whether the current unit is the last use of a value's expression."""
        values = self.scope.values_of(self.scope[value])
        return all(self.users.get(v, [-1])[-1] <= self.number for v in values)

    def bundle_variable(
        self, bundle: Bundle, values: Sequence[str], proposal: str
    ) -> tuple[str, list[Call]]:
        """Return a variable that holds a bundle of values, and statements to construct it.

        The list is empty if a variable already holds these values.
        """
        variable = self.scope.variable_of(bundle, values)
        if variable is not None:
            return variable, []
        members = dict(zip(bundle.members, values, strict=True))
        variable = self.scope.new_variable(proposal)
        return variable, [self.scope.construct(bundle, members, variable)]

    def bundle_target(self, bundle: Bundle, proposal: str) -> str:
        """Return the variable to assign a bundle to.

        It is the proposal if this name is unused, or if it holds older values of the same
        table that no later statement uses.
        """
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
        """Return the parameter of a gradient or of a new value; None for other values."""
        differentiable = differentiated(self.graph, value)
        if differentiable is not None:
            return parameter_of(self.graph, differentiable)
        stores = (u for u in self.graph.uses.get(value, ()) if u.kind == "store")
        return next((store.operands[0] for store in stores), None)

    @property
    def is_of_message(self) -> bool:
        """Whether the hook is a branch of `serve`, for the messages of one edge."""
        return self.name == SERVE

    @cached_property
    def edges_ahead(self) -> set[int]:
        """The edges of keys on which the hook sends or receives keys one step ahead."""
        edges = (
            each
            for unit in self.units
            for op in unit.ops
            for each in (op.sent_edge, op.received_edge)
            if each is not None
        )
        sends = (self.graph.sends[edge] for edge in dict.fromkeys(edges))
        return {
            edge
            for send in sends
            if send.exchange is not None and send.exchange.sends_keys_ahead
            for edge in ahead_of(self.graph, send)
        }

    def once(self, note: str) -> str:
        """Return a comment at its first use in the hook, and "" afterwards."""
        if note in self._notes:
            return ""
        self._notes.add(note)
        return note

    def total_name(self, expression: Expression) -> str:
        """Return the name of a sum over microbatches: `g_h1_w` for `g.h1.w`."""
        text = expression.text
        if text not in self._totals:
            proposal = text.replace(".", "_")
            self._totals[text] = self._total_names.new_name(proposal)
        return self._totals[text]

    def computes(self, values: Iterable[str], about: About) -> None:

        self._causes |= dict.fromkeys(values, (self.number, about))

    def about(self, ops: Sequence[Op]) -> About:
        """Return the function and the ops that an error in a statement concerns.

        JAX computes in the background: an error of a jitted function is raised by the
        statement that first reads a result.
        """
        causes = [
            self._causes[n] for op in ops for n in op.operands if n in self._causes
        ]
        if not causes:
            if ops[0].kind == "parameter":  # the statement reads a whole table
                return (self.name,)
            return self.name, spec_op(self.graph, ops[0])
        for op in ops:
            if op.sent_edge is None:  # another node computes the result of a request
                results = (value.name for value in op.results)
                self._causes |= dict.fromkeys(results, max(causes))
        return max(causes)[1]


def _group_updates(hook: Hook) -> dict[Op, list[Op]]:
    """Return the updates of each table in the order of its blocks, by the last update."""
    groups: dict[tuple[str, str], dict[str, Op]] = {}
    of_sum: dict[Op, list[Op]] = {}
    for unit in hook.units:
        op = unit.ops[0]
        if not is_of_table(op):
            continue
        if not hook.is_sparse(op):
            table = hook.tables[op.operands[0]]
            groups.setdefault((table.name, op.kind), {})[op.operands[0]] = op
        elif op.kind != "store":
            of_sum.setdefault(sum_by_key_of(hook.graph, op), []).append(op)
    in_order = {}
    for of_blocks in groups.values():
        last = [*of_blocks.values()][-1]
        blocks = hook.tables[last.operands[0]].blocks
        in_order[last] = [of_blocks[block.name] for block in blocks]
    for total, ops in of_sum.items():
        tables = keys_of(hook.graph, total.name).attrs["tables"]
        in_order[ops[-1]] = sorted(ops, key=lambda op: tables.index(op.operands[0]))
    return in_order


def _find_users(hook: Hook) -> Mapping[str, list[int]]:
    """Return the numbers of the units that use each value."""
    users: dict[str, list[int]] = {}
    # One statement updates a table, at the last of its updates.
    for number, unit in enumerate(hook.units):
        used: Iterable[str] = unit.inputs
        if is_of_table(unit.ops[0]):
            ops = hook.updates.get(unit.ops[0], ())
            used = (name for op in ops for name in op.operands[1:])
        elif not unit.computed:
            used = (name for op in unit.ops for name in op.operands)
        for name in dict.fromkeys(used):
            users.setdefault(name, []).append(number)
    return users
