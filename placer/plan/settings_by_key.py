"""Lists the settings of a plan under the keys of its spec, to compare runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from placer.place.node_kinds import NodeId
from placer.plan.plan import Plan, Table
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.sparse.sparse_keys import written_keys
from placer.plan.settings.training.optimizers import OPTAX
from placer.plan.settings.training.update_modes import SYNC, Mode


def settings_by_key(plan: Plan) -> dict[str, Any]:
    """Return the settings of a plan, with the dotted keys of a spec."""
    data = {"train": plan.train, "eval": plan.evaluation}
    kinds = Counter(NodeId(node.name).kind for node in plan.nodes)
    tree = {
        **msgspec.to_builtins(plan.settings),
        "data": {
            n: _source(source) for n, source in data.items() if source is not None
        },
        "nodes": kinds,
    }
    return {
        **dict(_flatten(tree)),
        **_one_level("optimizer", _optimizers(plan)),
        **_one_level("graph", _sparse_ops(plan)),
    }


def _source(source: RowSource) -> dict[str, Any]:
    """Return the settings of a source of rows, with the defaults."""
    settings = msgspec.structs.asdict(source)
    del settings["ranges"]  # The ranges follow from the model.
    return {key: msgspec.to_builtins(value) for key, value in settings.items()}


def _optimizers(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the settings of the optimizer of each table, by name."""
    tables = [table for node in plan.nodes for table in node.tables]
    # With `geo`, the optimizer of a spec runs on the workers, on tables of their own.
    of_worker = {
        block.parameter: table
        for table in tables
        if table.local
        for block in table.blocks
    }
    found = {}
    for table in tables:
        if table.rule is None or table.local:
            continue
        trained = next(
            (of_worker[b.parameter] for b in table.blocks if b.parameter in of_worker),
            table,
        )
        found[table.name] = {
            "op": trained.rule,
            "learning_rate": msgspec.to_builtins(trained.learning_rate),
            "update": _update(table.mode),
            **msgspec.to_builtins(trained.hyper),
            **_optax_functions(plan, trained),
        }
    for sparse in plan.sparse_tables:
        if sparse.trainable:
            found[sparse.name] = {
                "op": sparse.settings.rule,
                "learning_rate": msgspec.to_builtins(sparse.learning_rate),
                "update": _update(sparse.mode),
                **msgspec.to_builtins(sparse.settings.hyper),
            }
    return found


def _optax_functions(plan: Plan, table: Table) -> dict[str, Any]:
    """Return the functions of an optax optimizer, with the keys of a spec."""
    if table.rule != OPTAX:
        return {}
    transformation = plan.transformations[table.transformation]
    return {
        "fn": transformation.fn,
        "with": json.loads(transformation.config or "null"),
        "eval_params": transformation.eval_params or None,
    }


def _sparse_ops(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the settings of each sparse table, by the name of its op."""
    return {
        table.name.removesuffix(".table"): {
            **written_keys(table.settings),
            "init": table.settings.init,
            "trainable": table.trainable,
            "dtype": table.dtype,
            "rows": table.rows,
        }
        for table in plan.sparse_tables
    }


def _update(mode: Mode | None) -> Any:
    """Return an update mode as in a spec, such as `async` or `{geo: {every: 10}}`."""
    if mode is None:
        return SYNC
    settings = msgspec.to_builtins(mode)
    name = settings.pop("type")
    return {name: settings} if settings else name


def _one_level(section: str, tables: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the settings of tables with keys such as `optimizer.dense.op`, without None."""
    return {
        f"{section}.{name}.{key}": value
        for name, settings in tables.items()
        for key, value in settings.items()
        if value is not None
    }


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield the values of nested dicts with their dotted keys, without None."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value


def setting_text(value: Any) -> str:
    """Format a setting as in a spec, without its outer brackets; None is empty."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_inner(each)}" for key, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_inner, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _inner(value: Any) -> str:
    text = setting_text(value)
    if isinstance(value, Mapping):
        return f"{{{text}}}"
    return f"[{text}]" if isinstance(value, list) else text
