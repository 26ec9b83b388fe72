"""Reads the entries of `train.optimizer` with `op: optax`."""

from __future__ import annotations

import json
from typing import Any

from placer.compiler.frontend.entries.call_op import read_function
from placer.compiler.frontend.entries.context import Context
from placer.compiler.frontend.schema import OptaxOptimizer
from placer.compiler.frontend.sections.schedules import read_rate
from placer.compiler.frontend.yaml.decode import decode
from placer.compiler.frontend.yaml.tree import MappingNode, ScalarNode, SpecNode
from placer.plan.settings.training.optimizers import OPTAX, RULES
from placer.plan.settings.training.schedules import Rate

_EXAMPLES = {"fn": "fn: optimizers:make", "eval_params": "eval_params: optimizers:mean"}


def is_optax(entry: SpecNode) -> bool:
    """Return True if an entry of `train.optimizer` has `op: optax`."""
    op = entry.get("op") if isinstance(entry, MappingNode) else None
    return isinstance(op, ScalarNode) and op.value == OPTAX


def read_optax(
    entry: MappingNode, where: str, batch: int | None, context: Context
) -> tuple[dict[str, str], Rate | None, dict[str, Any]]:
    """Read the entry of an optax optimizer.

    Args:
        entry: The entry.
        where: Its name in messages.
        batch: The global batch for schedules; None if it is not known.
        context: The context of the spec.

    Returns:
        The attributes of its functions, the learning rate if it has one, and the other
        fields of the entry.
    """
    problems = context.problems
    hyper = {name for rule in RULES.values() for name in rule.__struct_fields__}
    good = decode(entry, OptaxOptimizer, where, problems, hyper)
    for key in hyper & entry.keys.keys():
        problems.add(
            f"{where} has '{key}', but the function of an optax optimizer sets its"
            " hyperparameters",
            entry.keys[key].span,
            f"remove {key}, and set it in the function named by 'fn'",
        )
    functions = {}
    for key, example in _EXAMPLES.items():
        node = entry.get(key) if good.get(key) is not None else None
        if node is not None and read_function(node, context, example):
            functions[key] = str(good[key])
    given = problems.expect(
        good.get("with"), MappingNode, "'with' must be a mapping", "write {b1: 0.9}"
    )
    if given is not None and given.entries:
        functions["config"] = json.dumps(given.value)
    rate = good.get("learning_rate")
    if rate is not None:
        rate = read_rate("learning_rate", rate, batch, problems)
    return functions, rate, good
