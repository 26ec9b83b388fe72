"""Describes the sparse tables of a build: keys with rows, and memory of rows."""

from __future__ import annotations

from collections.abc import Iterator

from placer.place.ids import format_nodes
from placer.plan.plan import Plan, SparseTable
from placer.plan.settings.sparse.row_bytes import (
    CHUNK,
    RowBytes,
    row_bytes,
    table_bytes,
)
from placer.plan.settings.sparse.table import (
    Admission,
    Always,
    Bloom,
    Count,
    Forgetting,
    Probability,
    Score,
)
from placer.plan.table_text import (
    describe_first_values,
    describe_optimizer_of_rows,
    describe_partitions,
    table_ids,
)
from placer.report.numbers import format_count, format_size, plural

MAX_NAMED = 8
"""Partitions are listed for at most this many nodes of a table."""


def format_row_bytes(table: SparseTable) -> str:
    """Return the smallest and largest number of bytes of a row."""
    low, high = row_bytes(table.settings, table.dtype).total
    return f"{format_count(low)}-{format_count(high)} bytes"


def format_empty_bytes(table: SparseTable, node: str) -> str:
    """Return the bytes of a node's part of a table without rows: the smallest index of each
    partition, and the Bloom filter."""
    held = len(table.partitions_of(node))
    return format_size(table_bytes(table.settings, table.dtype, 0, held))


def summarize_table(table: SparseTable) -> str:
    """Summarize a table in one line: its width, the bytes of a row, and its nodes."""
    text = f"{table.name}: width {format_count(table.settings.dim)}"
    text += "" if table.trainable else ", frozen"
    text += f", {format_row_bytes(table)} a row, on {format_nodes(table.holders)}"
    return f"{text}; {expected}" if (expected := _expected(table)) else text


def describe_table(plan: Plan, table: SparseTable) -> Iterator[str]:
    """Yield lines that describe a table, except for its place."""
    settings = table.settings
    for node in table.holders[:MAX_NAMED]:
        yield f"  {node}: {describe_partitions(table, node)}"
    if len(table.holders) > MAX_NAMED:
        yield "  …"
    optimizer = describe_optimizer_of_rows(table)
    yield f"table {table_ids(plan)[table.name]}: {optimizer}"
    yield describe_first_values(table)
    if table.trainable:
        yield _admission(settings.admit, settings.default)
        yield from _forgetting(settings.forget)
    elif isinstance(settings.admit, Always):
        yield "a key without a row reads its initial values"
    else:
        yield f"a key without a row reads {settings.default:g}"
    if settings.score is not None:
        score = settings.score
        yield (
            f"the score of a key grows by {score.no_click:g} when it is shown and"
            f" not clicked, and by {score.click:g} when it is clicked; each sweep"
            f" multiplies it by {score.decay:g}"
        )
    if settings.capacity is not None:
        which = {"lru": "least recently", "lfu": "least frequently"}[settings.evict]
        yield (
            f"it has at most {plural(settings.capacity, 'row')}, shared equally by"
            f" the partitions; a full partition evicts its {which} used rows"
        )
    if settings.bounds is not None:
        low, high = settings.bounds
        yield f"elements are clipped to {low:g} to {high:g} after each update"
    row = row_bytes(settings, table.dtype)
    yield _row(row)
    first, each = table.holders[0], " on each node" if len(table.holders) > 1 else ""
    held = len(table.partitions_of(first))
    begun = table_bytes(settings, table.dtype, settings.partitions, held)
    yield (
        f"without rows it takes {format_empty_bytes(table, first)}{each}, and at least"
        f" {format_size(begun)} once each partition has a row: a partition allocates"
        f" {CHUNK} rows at a time, {format_size(CHUNK * row.stored)}"
    )
    if isinstance(settings.admit, Bloom):
        nbytes = format_size(settings.admit.nbytes)
        yield f"counters of keys without a row take {nbytes} on all nodes together"
    elif isinstance(settings.admit, Count | Score):
        low, high = row.index
        yield f"a counted key without a row takes {low}-{high} bytes"
    if expected := _expected(table):
        yield expected


def _row(row: RowBytes) -> str:
    low, high = row.total
    parts = {
        "values": row.values,
        "slots": row.slots,
        "padding": row.padding,
        **row.numbers,
        "metadata": row.metadata,
    }
    listed = [f"{format_count(n)} of {what}" for what, n in parts.items() if n]
    least, most = row.index
    return (
        f"a row takes {format_count(low)}-{format_count(high)} bytes:"
        f" {', '.join(listed)}, {least}-{most} of the index"
    )


def _expected(table: SparseTable) -> str:
    """Return the expected number of rows and their bytes; empty if the spec has
    none.
    """
    if table.rows is None:
        return ""
    parts = [
        table_bytes(
            table.settings, table.dtype, table.rows, len(table.partitions_of(node))
        )
        for node in table.holders
    ]
    text, capacity = f"{plural(table.rows, 'row')} expected", table.settings.capacity
    if capacity is not None and capacity < table.rows:
        text = f"{format_count(capacity)} of {format_count(table.rows)} expected rows"
    text += f", at least {format_size(sum(parts))}"
    if len(parts) > 1:
        text += f", {format_size(max(parts))} on each node"
    return text


def _admission(admit: Admission, default: float) -> str:
    match admit:
        case Always():
            return (
                "a key gets a row at its first update; until then it reads its"
                " initial values"
            )
        case Count():
            when = f"at its {_ordinal(admit.n)} occurrence"
        case Bloom():
            when = f"at about its {_ordinal(admit.n)} occurrence"
        case Probability():
            when = f"at each occurrence with probability {admit.p:g}"
        case Score():
            when = f"once its score is {admit.least:g}"
    return f"a key gets a row {when}; until then it reads {default:g}"


def _forgetting(forget: Forgetting) -> Iterator[str]:
    limits = []
    if forget.unseen_steps is not None:
        limits.append(f"has not occurred for {plural(forget.unseen_steps, 'step')}")
    if forget.unseen_seconds is not None:
        seconds = plural(forget.unseen_seconds, "second")
        limits.append(f"has not occurred for {seconds}")
    if forget.score_below is not None:
        limits.append(f"has a score below {forget.score_below:g}")
    if forget.norm_below is not None:
        limits.append(f"has values with a norm below {forget.norm_below:g}")
    if limits:
        sweeps = "a sweep follows each pass"
        if forget.every != "pass":
            sweeps = f"a sweep takes {plural(forget.every, 'step')}"
        yield f"a key is forgotten if it {', or if it '.join(limits)}; {sweeps}"


def _ordinal(number: int) -> str:
    """
    >>> _ordinal(2), _ordinal(11), _ordinal(23)
    ('2nd', '11th', '23rd')
    """
    teens = 10 <= number % 100 < 20
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{format_count(number)}{'th' if teens else ending}"
