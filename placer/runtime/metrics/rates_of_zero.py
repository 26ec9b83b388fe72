"""Finds learning rates that are 0 for the rest of a run, so that its steps train nothing."""

from __future__ import annotations

from placer.plan.plan import Plan
from placer.plan.settings.training.optimizers import OPTAX
from placer.plan.settings.training.schedules import Rate, Schedule
from placer.plan.settings.training.update_modes import Geo
from placer.tables.learning_rate import build_schedule


def find_rates_of_zero(plan: Plan, steps: int) -> list[str]:
    """Return a warning for each schedule of a plan that stays 0 until the last step.

    Constant rates are not checked here: the compiler warns of a constant rate of 0. An
    optax optimizer may train with a rate of 0.

    Args:
        plan: the plan of the run.
        steps: the number of the last step, from 1.
    """
    schedules: dict[str, tuple[str, Rate, int]] = {}
    for node in plan.nodes:
        for table in node.tables:
            if table.rule == OPTAX or table.learning_rate is None:
                continue
            what, rate, every = f"'{table.rule}'", table.learning_rate, 1
            if isinstance(table.mode, Geo) and not table.local:
                what, every = f"the outer optimizer {what}", table.mode.every
            schedules[repr((what, rate))] = what, rate, every
    for sparse in plan.sparse_tables:
        if sparse.trainable:
            what = f"'{sparse.settings.rule}'"
            key = repr((what, sparse.learning_rate))
            schedules[key] = what, sparse.learning_rate, 1
    found = []
    for what, rate, every in schedules.values():
        if isinstance(rate, Schedule) and (
            step := _first_of_zero(rate, steps // every)
        ):
            first = step * every
            train = f", or train {first - 1:,} steps" if first > 1 else ""
            found.append(
                f"the learning rate of {what} is 0 from step {first:,} of {steps:,} on,"
                f" so these steps train nothing: change its schedule{train}"
            )
    return found


def _first_of_zero(rate: Schedule, updates: int) -> int | None:
    """Return the first update (from 1) after which all rates are 0; None without one. A
    zero rate in the last update alone does not count: a schedule may end at 0."""
    schedule = build_schedule(rate)
    first = updates + 1
    while first > 0 and schedule(first - 1) == 0.0:
        first -= 1
    return first + 1 if first < updates else None
