"""The learning rates of a run by optimizer, for reports."""

from __future__ import annotations

from placer.plan.plan import Plan
from placer.plan.settings.training.schedules import Rate
from placer.plan.settings.training.update_modes import Geo
from placer.tables.learning_rate import Schedule, build_schedule


def rate_schedules(plan: Plan) -> dict[str, Schedule]:
    """Return the learning-rate schedule of each optimizer of a plan, by name.

    The name of an optimizer is its rule, such as `adam`. If several optimizers have the same
    rule, they are named after their dense tables, such as `dense0`, or their first sparse
    table. A sparse table with the rule and rate of another table is not listed, nor is an
    optax optimizer that takes no learning rate.
    """
    optimizers: dict[str, tuple[str, Rate | None]] = {
        # Tables of one optimizer differ in dtype and devices, which follow the "_" in the name.
        table.name.partition("_")[0]: (table.rule, table.learning_rate)
        for node in plan.nodes
        for table in node.tables
        if table.rule is not None and not isinstance(table.mode, Geo)
    }
    optimizers = dict(sorted(optimizers.items()))
    for table in plan.sparse_tables:
        optimizer = table.settings.rule, table.learning_rate
        if table.trainable and optimizer not in optimizers.values():
            optimizers[table.name] = optimizer
    rules = [rule for rule, _ in optimizers.values()]
    return {
        rule if rules.count(rule) == 1 else name: build_schedule(rate)
        for name, (rule, rate) in optimizers.items()
        if rate is not None
    }
