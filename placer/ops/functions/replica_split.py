"""How the operands and results of a region belong to the parts of a batch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from placer.errors import PlacerError
from placer.ops.functions.replica import Parted

Kind = Literal["rows", "value", "sum", "equal"]
"""How a value belongs to the parts.

`rows`: each part has its rows. `value`: each part has a value, repeated for its rows.
`sum`: the sum of the values of the parts. `equal`: the value is equal in all parts.
"""


@dataclass(frozen=True, slots=True)
class Split:
    """The kinds of a region's operands and results."""

    operands: tuple[Kind, ...]
    results: tuple[Kind, ...]


def split_of(
    operands: Sequence[Any],
    results: Sequence[Any],
    sums: Collection[Any],
    parted: Parted,
    region: Any,
) -> Split:
    """Return the kinds of a region's operands and results, which are variables.

    `sums` are results that are sums over the parts. Raises PlacerError for a result whose
    rows are not its first axis.
    """
    known = parted.values
    given: list[Kind] = [
        "equal" if v in known.equal else "rows" if known.has_rows(v) else "value"
        for v in operands
    ]
    returned: list[Kind] = []
    for index, var in enumerate(results):
        axes, has_rows = known.axes_of(var), known.has_rows(var)
        if var not in sums and axes and not has_rows:
            raise PlacerError(
                f"the result of {region.describe_result(index)}, which is used after a"
                f" reduction over the parts or at another place, is"
                f" {var.aval.str_short()}, and its size on axis {axes[-1]} depends on the"
                " batch",
                hint="use rows of the part as first axis, or use the value before the"
                " reduction",
            )
        returned.append("sum" if var in sums else "rows" if has_rows else "value")
    return Split(tuple(given), tuple(returned))
