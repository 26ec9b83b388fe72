"""Lists the choices of the compiler, grouped by reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from string import Formatter

from placer.compiler.emit.choices import CONVERSION_REASON
from placer.compiler.graph.structural_ops import KINDS, is_conversion
from placer.plan.plan import Choice, Plan
from placer.report.numbers import plural
from placer.system.listed import list_names

_OF_OP = re.compile(r"(?P<name>.+) \((?P<kind>[\w.]+)\) at (?P<place>\S+)")
_MAX_NAMED = 3
"""The largest number of ops and of places that a group names."""
_MAX_REASON = 160
"""The largest length of a reason that is shown with all names."""
_NAMES = ("operands", "whole", "edge", "back")
"""The fields of a reason that differ from op to op."""
_TARGETS = ("to", "devices")
"""The fields of a reason that are places."""
_Members = list[tuple[Choice, re.Match[str]]]
"""The choices with one reason, each with the match of its op."""


def list_choices(plan: Plan) -> Iterator[str]:
    """Yield lines about the choices of the compiler and the ops that it inserted.

    Ops with the same reason are one group, with their number, kinds, places and first
    names. Large groups come first.
    """
    groups: dict[str, _Members] = {}
    for choice in plan.choices:
        match = _OF_OP.fullmatch(choice.what)
        if match is None:
            yield f"{choice.what}: {choice.why}"
        else:
            reason = _general_reason(match["kind"], choice.why, _NAMES)
            groups.setdefault(reason, []).append((choice, match))
    groups = _merge(groups)
    for reason, members in sorted(groups.items(), key=lambda group: -len(group[1])):
        if len(members) == 1:
            ((choice, _),) = members
            why = choice.why if len(choice.why) <= _MAX_REASON else reason
            yield f"{choice.what}: {why}"
            continue
        kinds, places, names = (
            list_names(
                [*dict.fromkeys(match[part] for _, match in members)], _MAX_NAMED
            )
            for part in ("kind", "place", "name")
        )
        yield f"{reason}:"
        yield f"  {plural(len(members), 'op')} ({kinds}) at {places}: {names}"


def _merge(groups: Mapping[str, _Members]) -> dict[str, _Members]:
    """Merge groups whose reasons differ by place only, if more than three do."""
    by_form: dict[str, list[str]] = {}
    for reason, members in groups.items():
        kind = members[0][1]["kind"]
        form = _general_reason(kind, members[0][0].why, (*_NAMES, *_TARGETS))
        by_form.setdefault(form, []).append(reason)
    merged: dict[str, _Members] = {}
    for form, reasons in by_form.items():
        for reason in reasons:
            key = form if len(reasons) > _MAX_NAMED else reason
            merged.setdefault(key, []).extend(groups[reason])
    return merged


def _general_reason(kind: str, why: str, fields: Sequence[str]) -> str:
    """Replace the fields in the reason for an op by an ellipsis."""
    template = CONVERSION_REASON
    if not is_conversion(kind):
        template = KINDS[kind].why if kind in KINDS else ""
    match = _pattern(template).fullmatch(why)
    if match is None:
        return why
    return template.format_map({**match.groupdict(), **dict.fromkeys(fields, "…")})


@cache
def _pattern(template: str) -> re.Pattern[str]:
    """Return an expression that matches the texts of a template."""
    parts: list[str] = []
    for text, field, _, _ in Formatter().parse(template):
        parts.append(re.escape(text))
        if field:
            parts.append(f"(?P<{field}>.+)")
    return re.compile("".join(parts))
