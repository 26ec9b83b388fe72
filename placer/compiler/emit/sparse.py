"""Writes sparse tables into plans, and their calls into programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from placer.compiler.emit import notes
from placer.compiler.emit.code import Argument, Call, Expression, literal
from placer.compiler.emit.hook import Hook
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.keyed import ahead_of, is_keyed, keys_of, tables_of
from placer.compiler.graph.stored_bytes import find_update, rule_of
from placer.compiler.graph.structural_types import DISTINCT_KEYS, count_ids
from placer.plan.plan import Counted, SparseTable
from placer.plan.settings.sparse.sparse_keys import settings_of
from placer.plan.settings.sparse.table import COUNTED_INPUTS


def plan_sparse_tables(graphs: Iterable[Graph]) -> Iterator[SparseTable]:
    """Yield each sparse table of some graphs once: first the tables of the step."""
    first: dict[str, tuple[Graph, Op]] = {}
    over: dict[str, tuple[str, ...]] = {}
    inputs: dict[str, list[dict[str, str]]] = {}
    for graph in graphs:
        for op in graph.sparse_tables:
            first.setdefault(op.name, (graph, op))
        # An evaluation or a prediction may look up some of the tables only.
        for op in graph.of_kind("distinct_keys"):
            for table in op.attrs["tables"]:
                over[table] = max(over.get(table, ()), op.attrs["tables"], key=len)
                inputs.setdefault(table, []).append(_inputs_of(op).get(table, {}))
    planned: dict[str, SparseTable] = {}
    for graph, op in first.values():
        kind = graph.tensor_type(op.name)
        update = find_update(graph, op.name)
        ((form, argument),) = op.attrs["init"].items()
        trained: dict[str, Any] = {}
        rate: Any = 0.0
        mode = None
        if update is not None:
            group = update.attrs["group"]
            attrs, mode = graph.optimizers[group].attrs, graph.modes[group]
            rate = attrs["learning_rate"]
            trained = {"rule": attrs["rule"], "hyper": _hyper(op, attrs)}
        table = SparseTable(
            settings=settings_of(
                op.attrs["sparse"],
                name=op.name,
                dim=kind.shape[1],
                init=(form, argument if isinstance(argument, tuple) else (argument,)),
                **trained,
            ),
            dtype=kind.dtype,
            learning_rate=rate,
            trainable=update is not None,
            mode=mode,
            holders=tuple(graph.nodes(op)),
            rows=op.attrs.get("rows"),
            over=tables if len(tables := over.get(op.name, ())) > 1 else (),
        )
        owners = (
            each.name
            for each in planned.values()
            if each.name in table.over
            and each.index_of is None
            and inputs[each.name] == inputs[table.name]
            and each.can_share_index(table)
        )
        planned[table.name] = replace(table, index_of=next(owners, None))
    yield from planned.values()


def _hyper(table: Op, attrs: Any) -> dict[str, float]:
    """Return all hyperparameters of a table's optimizer."""
    hyper = rule_of(attrs).hyper
    if not table.attrs.get("decay", True):
        hyper = {key: 0.0 if key == "weight_decay" else hyper[key] for key in hyper}
    return hyper


def counted_with(graph: Graph, name: str) -> tuple[Counted, ...]:
    """Return what is sent with keys besides their counts. Tables share it if they read the same
    inputs, and if scores have the same weights."""
    if graph.values[name].type != DISTINCT_KEYS:
        return ()
    users: dict[tuple[Any, ...], list[str]] = {}
    for table, inputs in _inputs_of(keys_of(graph, name)).items():
        show, click, time = map(inputs.get, COUNTED_INPUTS)
        if show is not None or click is not None:
            score = graph.producers[table].attrs["sparse"]["score"]
            weights = score.get("no_click"), score.get("click")
            users.setdefault(("scores", weights, show, click), []).append(table)
        if time is not None:
            users.setdefault(("times", time), []).append(table)
    return tuple(Counted(what, tuple(tables)) for (what, *_), tables in users.items())


def _inputs_of(op: Op) -> dict[str, dict[str, str]]:
    """Return the values that tables read besides their keys, by table and name."""
    names = iter(op.operands[count_ids(op) :])
    return {
        table: {name: next(names) for name in inputs}
        for table, inputs in op.attrs.get("inputs", {}).items()
    }


def emit_distinct_keys(hook: Hook, ops: Sequence[Op]) -> list[Call]:
    """Return the calls that find the distinct keys of a batch."""
    calls = []
    for op in ops:
        tables, of_table = op.attrs["tables"], _inputs_of(op)
        arguments: list[Argument] = [_names(tables)]
        arguments += [hook.scope[name] for name in op.operands[: count_ids(op)]]
        for key in COUNTED_INPUTS:
            read = {t: of[key] for t, of in of_table.items() if key in of}
            if len(read) == len(tables) and len({*read.values()}) == 1:
                arguments.append(hook.scope[read[tables[0]]].after(f"{key}="))
            elif read:
                items = [
                    hook.scope[v].after(f"{literal(t)}: ") for t, v in read.items()
                ]
                arguments.append(Expression(f"{key}=", "", tuple(items), ("{", "}")))
        if "padding" in op.attrs:
            arguments.append(f"padding={literal(op.attrs['padding'])}")
        targets = hook.targets(value.name for value in op.results)
        calls.append(Call("node.distinct_keys", arguments, targets, is_tuple=True))
    return calls


def _names(tables: Sequence[str]) -> str:
    """Return the argument that names one table, or several."""
    return literal(tables if len(tables) > 1 else tables[0])


def emit_lookup(hook: Hook, ops: Sequence[Op]) -> list[Call]:
    """Return the calls that look up rows: one for tables over the same keys."""
    note = hook.once("looks the keys up among the rows that this node stores")
    calls = []
    of_keys: dict[str, dict[str, Op]] = {}
    for op in ops:
        table, keys = op.operands
        of_keys.setdefault(keys, {})[table] = op
    for keys, found in of_keys.items():
        order = keys_of(hook.graph, keys).attrs["tables"]
        tables = sorted(found, key=order.index)
        targets = hook.targets(found[table].name for table in tables)
        arguments: list[Argument] = [_names(tables), hook.scope[keys]]
        method = "node.distributed_lookup_table"
        calls.append(Call(method, arguments, targets, note=note, is_above=True))
        note = ""
    return calls


def emit_exact_squares(hook: Hook, ops: Sequence[Op]) -> list[Call]:
    """Return the call that sums the squares of gradients without rounding."""
    (op,) = ops
    targets = hook.targets([op.name])
    if not is_keyed(hook.graph, op.operands[0]):
        return [Call("node.exact_squares", hook.arguments(op.operands), targets)]
    (total,) = op.operands
    (table,) = tables_of(hook.graph, total)
    arguments: list[Argument] = [literal(table), hook.scope[total]]
    return [Call("node.exact_squares_of_rows", arguments, targets)]


def emit_rounded_sum(hook: Hook, ops: Sequence[Op]) -> list[Call]:
    """Return the call that adds exact sums and rounds the result."""
    (op,) = ops
    arguments: list[Argument] = [hook.scope[name] for name in op.operands]
    arguments.append(f"dtype={literal(op.attrs['dtype'])}")
    return [Call("node.rounded_sum", arguments, hook.targets([op.name]))]


def emit_sent_rows(hook: Hook, op: Op) -> list[Call]:
    """Return the calls that send keys, rows, or gradients of rows."""
    exchange = op.exchange
    assert exchange is not None, op
    if hook.is_of_message:
        message = Expression("message", "message")
        rows = [hook.scope[name] for name in op.operands]
        return [Call(f"node.{exchange.send_answer}", [message, *rows])]
    arguments: list[Argument] = [hook.edge(op)]
    last: Op | None = None
    for name in op.operands:
        if exchange.moves == "gradients":
            keys = keys_of(hook.graph, name)
            if (
                keys is not last
            ):  # the gradients of all tables over the same keys follow
                arguments.append(hook.scope[keys.results[0].name])
            last = keys
        arguments.append(hook.scope[name])
    note = notes.sent(hook.graph, op)
    if op.attrs["edge"] in hook.edges_ahead:
        note = ", ".join(filter(None, [note, "unless `send_keys_ahead` has sent them"]))
    call = Call(f"node.{exchange.send}", arguments, note=note)
    return [*_keys_ahead("send", hook, op), call]


def emit_received_rows(hook: Hook, op: Op) -> list[Call]:
    """Return the calls that receive keys, rows, or gradients of rows."""
    graph, exchange = hook.graph, op.exchange
    assert exchange is not None, op
    targets = hook.targets(value.name for value in op.results)
    if hook.is_of_message:
        message = Expression("message", "message")
        method = f"node.{exchange.receive_message}"
        return [Call(method, [message], targets, is_tuple=True)]
    send = graph.sends[op.attrs["edge"]]
    arguments: list[Argument] = [hook.edge(op)]
    if exchange.moves == "rows":
        names = (keys_of(graph, value.name).results[0].name for value in op.results)
        arguments += [hook.scope[name] for name in names]
    method, note = f"node.{exchange.receive}", notes.received(graph, send)
    if op.attrs["edge"] in hook.edges_ahead:
        note = "unless `receive_keys_ahead` has received them"
    call = Call(method, arguments, targets, is_tuple=True, note=note)
    return [*_keys_ahead("receive", hook, send), call]


_AHEAD = {
    "send": "reads the next batch, and sends its keys now",
    "receive": "the keys of the next batch",
}
_HELD_BACK = "sends nothing: the next step waits until these gradients are applied"


def _keys_ahead(what: Literal["send", "receive"], hook: Hook, send: Op) -> list[Call]:
    """Return the calls that send or receive the keys of the next step."""
    assert send.exchange is not None, send
    if not send.exchange.sends_keys_ahead:
        return []
    group = send.attrs.get("group")
    mode = None if group is None else hook.graph.modes[group]
    is_held_back = what == "send" and mode is not None and mode.waits_for_own
    method = f"node.{what}_keys_ahead"
    note = _HELD_BACK if is_held_back else _AHEAD[what]
    return [
        Call(method, [hook.constants.edge(edge)], note=note)
        for edge in ahead_of(hook.graph, send)
    ]


def emit_row_update(hook: Hook, op: Op) -> list[Call]:
    """Return the call that updates and stores the rows of tables over the same keys.

    It stands at the last of the updates; the others emit nothing.
    """
    ops = hook.updates.get(op, ())
    if not ops:
        return []
    arguments: list[Argument] = [_names([each.operands[0] for each in ops])]
    arguments += [hook.scope[each.operands[1]] for each in ops]
    scales = [tuple(hook.scope[name] for name in each.operands[2:]) for each in ops]
    if len({*scales}) == 1:
        arguments += [scale.after("scale=") for scale in scales[0]]
    else:
        items = (scale[0] if scale else Expression("None") for scale in scales)
        arguments.append(Expression("scale=", items=tuple(items)))
    limits = [each.attrs.get("limit") for each in ops]
    if len({*limits}) > 1:
        arguments.append(f"limit={literal(limits)}")
    elif limits[0] is not None:
        arguments.append(f"limit={literal(limits[0])}")
    if hook.is_of_message:
        arguments.append("message=message")
    optimizers = (hook.graph.optimizers[each.attrs["group"]].attrs for each in ops)
    rates = (each["learning_rate"] for each in optimizers)
    rules = [notes.updated_by(each.kind, r) for each, r in zip(ops, rates, strict=True)]
    note = "; ".join(dict.fromkeys(rules))
    return [Call("node.update_rows", arguments, note=note)]
