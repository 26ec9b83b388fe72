"""The op kinds of specs, and the reader of their attributes."""

from __future__ import annotations

from functools import cache
from typing import Any

from placer import ops
from placer.compiler.frontend.entries.op_entry import OpEntry
from placer.compiler.frontend.sections.parameters import freeze
from placer.compiler.frontend.yaml.decode import (
    check_type,
    report_missing,
    report_unknown_keys,
)
from placer.compiler.frontend.yaml.problems import Problems
from placer.errors import did_you_mean
from placer.ops.composite import Composite
from placer.ops.composites import COMPOSITES
from placer.ops.declaration import Declaration

OpKind = Declaration | Composite

COMMON_KEYS = ("name", "op", "in", "out", "place", "params")
"""Keys that every op may have. Other keys are attributes."""

PARAMETER = "parameter"
"""The kind of a parameter without a layer. It has no declaration."""

CALL = "call"
"""The kind of a user's JAX function that becomes one op."""

TRACE = "trace"
"""The kind of a user's JAX function that guards cut into regions. Each region is an
op.
"""


@cache
def op_kinds() -> dict[str, OpKind]:
    """Return the declarations of the op kinds of specs, by name. Kinds that only passes
    insert are left out. `constant` is included: specs use it too."""
    declared = [ops.find(name) for name in ops.kinds()]
    in_specs = [d for d in declared if not d.inserted or d.kind == "constant"]
    kinds: list[OpKind] = [*in_specs, *COMPOSITES]
    return {kind.kind: kind for kind in kinds}


def read_attrs(
    kind: OpKind, entry: OpEntry, problems: Problems
) -> dict[str, Any] | None:
    """Return the attributes of an op, with lists as tuples. Returns None after
    reporting unknown keys, missing attributes, wrong types, or values outside the
    choices."""
    entries = entry.node.entries
    keys = {*COMMON_KEYS, *(attr.name for attr in kind.written_attrs)}
    good = entries.keys() <= keys
    meant = report_unknown_keys(entry.node, keys, entry.where, problems)
    attrs = {}
    for attr in kind.written_attrs:
        value = entries.get(attr.name)
        if value is None:
            if attr.required:
                good = False
                if attr.name not in meant:
                    report_missing(entry.node, attr.name, entry.where, problems)
        elif not check_type(attr.name, value, attr.type, problems):
            good = False
        elif attr.choices and value.value not in attr.choices:
            hint = did_you_mean(str(value.value), attr.choices)
            message = f"{entry.where} cannot have {attr.name}: {value.value}"
            problems.add(message, value.span, hint)
            good = False
        else:
            frozen = freeze(value.value)
            attrs[attr.name] = float(frozen) if attr.type is float else frozen
    return attrs if good else None
