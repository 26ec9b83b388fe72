"""The learning rates of a run by optimizer, for reports."""

from __future__ import annotations

from placer.build.plan import Plan
from placer.config.update_modes import Geo
from placer.tables.learning_rate import Schedule, build_schedule


def rate_schedules(plan: Plan) -> dict[str, Schedule]:
    """Return the learning-rate schedule of each optimizer of a plan.

    The name of an optimizer is its rule, such as `adam`. If several optimizers have the
    same rule, it is that of its tables, such as `dense0`.
    """
    tables = {
        # Tables of one optimizer differ in dtype and devices, which follow the "_".
        table.name.partition("_")[0]: table
        for node in plan.nodes
        for table in node.tables
        if table.rule is not None and not isinstance(table.mode, Geo)
    }
    rules = [table.rule for table in tables.values()]
    return {
        table.rule if rules.count(table.rule) == 1 else name: build_schedule(
            table.learning_rate
        )
        for name, table in sorted(tables.items())
        if table.rule is not None
    }
