"""What reads or writes parameters as files, which have no rows of sparse tables."""

from __future__ import annotations

from placer.build.plan import Plan
from placer.errors import PlacerError


def check_rows_in_files(plan: Plan, what: str, hint: str | None = None) -> None:
    """Raise PlacerError for a build with sparse tables, whose rows `what` does not have."""
    if plan.sparse_tables:
        names = ", ".join(table.name for table in plan.sparse_tables)
        raise PlacerError(
            f"'{plan.name}' has sparse tables ({names}), and {what} no rows of them",
            hint=hint,
        )
