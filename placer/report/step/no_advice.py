"""Says why a kind of work that fills much of a step gives no advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from placer.report.step.facts import Part
from placer.report.step.parts import MESSAGES, UPDATES, equal_to_first

_REASONS: Final[Mapping[str, str]] = {
    MESSAGES: "messages take less than twice as long as computing",
    UPDATES: (
        "updates and lookups on servers take less than 40% of the chain, or of the time"
        " of the servers"
    ),
}
"""The threshold of the advice that a step has not reached, by the longest kind."""


def reason_without_advice(
    kinds: Sequence[Part], much: float, *, has_microbatches: bool
) -> str:
    """Return a text, or "" if no kind with advice takes the fraction `much` of a step.

    `kinds` are the parts of the longest chains by kind of work, longest first.
    """
    first = kinds[0]
    reason = _REASONS.get(first.name)
    if first.name == MESSAGES and has_microbatches:
        reason = "no other number of microbatches would shorten the chain by 10%"
    if reason is None or first.seconds < much * sum(kind.seconds for kind in kinds):
        return ""
    again = ""
    if equal_to_first(kinds) > 1:
        again = (
            ", and the largest kinds of work are about equal. Trace again while no other"
            " programs use the cores"
        )
    return f"No advice: {reason}{again}."
