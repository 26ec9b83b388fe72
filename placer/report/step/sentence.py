"""Describes the longest chains of several steps in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from placer.report.numbers import format_count, format_ms
from placer.report.step.facts import Part
from placer.report.step.parts import equal_to_first
from placer.report.step.steps import Step
from placer.report.step.trace import Trace

_MOST: Final = 5
"""The largest number of parts in the sentence."""
_LEAST: Final = 0.02
"""The smallest fraction of a step for a part of its own, except for the first part."""
_INEXACT: Final = 0.05
"""Clock errors above this fraction of a step are part of the sentence."""


def sentence_of(
    trace: Trace,
    step: Step,
    steps: int,
    middle: Sequence[Step],
    parts: Sequence[Part],
    groups: Sequence[Part],
    kinds: Sequence[Part],
) -> str:
    """Return the duration of the median step, and the mean parts of the longest chains.

    Args:
        trace: the trace.
        step: the median step.
        steps: the number of steps in the trace.
        middle: the steps over which the parts are means.
        parts: the parts of the chains by work and message, longest first.
        groups: the parts by kind of work and node, longest first. They replace `parts` if
            the longest of those cover less than half of the chains.
        kinds: the parts of the chains by kind of work, longest first.
    """
    return " ".join(_sentences(trace, step, steps, middle, parts, groups, kinds))


def _sentences(
    trace: Trace,
    step: Step,
    steps: int,
    middle: Sequence[Step],
    parts: Sequence[Part],
    groups: Sequence[Part],
    kinds: Sequence[Part],
) -> Iterator[str]:
    seconds = step.duration / 1e9
    which = f"step {step.number}"
    if steps > 1:
        which += f", the median of {format_count(steps)}"
    whose = (
        ""
        if step.is_common
        else f" of {trace.threads[step.thread].node}, the slowest worker,"
    )
    yield f"A step{whose} takes {format_ms(seconds)} ({which})."
    mean = ""
    if len(middle) > 1:
        durations = [each.duration / 1e9 for each in middle]
        mean = (
            f", as the mean of {format_count(len(middle))} steps of"
            f" {format_ms(min(durations)).removesuffix(' ms')} to {format_ms(max(durations))}"
        )
    total = sum(part.seconds for part in parts)
    shares = [
        f"{kind.name} {_percent(kind, total)}"
        for at, kind in enumerate(kinds)
        if not at or kind.seconds >= _LEAST * total
    ]
    yield f"Its longest chain{mean}: {_joined(shares)}."
    if (equal := equal_to_first(kinds)) > 1:
        names = _joined([kind.name for kind in kinds[:equal]])
        yield f"{names[0].upper()}{names[1:]} are about equal."
    if sum(part.seconds for part in parts[:_MOST]) < total / 2:
        parts = groups
    shown = [
        part
        for at, part in enumerate(parts[:_MOST])
        if not at or part.seconds >= _LEAST * total
    ]
    texts = [f"{part.name} {_time(part)}" for part in shown]
    if rest := parts[len(shown) :]:
        texts.append(f"{format_ms(sum(part.seconds for part in rest))} in other parts")
    yield f"Its longest parts: {_joined(texts)}."
    if (equal := min(len(shown), equal_to_first(parts))) > 1:
        yield f"The first {equal} parts are about equal."
    worst = max(trace.uncertainty.values(), default=0)
    if worst > _INEXACT * step.duration:
        yield (
            f"Times on different machines may be wrong by up to {format_ms(worst / 1e9)}."
        )


def _percent(part: Part, total: float) -> str:
    spread = f" ± {100 * part.spread / total:.0f}" if part.spread else ""
    return f"{100 * part.seconds / total:.0f}{spread}%"


def _time(part: Part) -> str:
    mean = format_ms(part.seconds)
    return (
        f"{mean.removesuffix(' ms')} ± {format_ms(part.spread)}"
        if part.spread
        else mean
    )


def _joined(texts: Sequence[str]) -> str:
    *first, last = texts
    if len(first) < 2:
        return " and ".join(texts)
    return f"{', '.join(first)}, and {last}"
