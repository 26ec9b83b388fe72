"""What errors of Ray say, in one line: their texts have colours, tracebacks and advice."""

from __future__ import annotations

import re
from typing import Final

from placer.printable import make_printable

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_IN_CREATION: Final = "error raised in its creation task"
"""What the text of an actor has that was never there; it ends with a traceback."""
_RAISED: Final = re.compile(r"^[A-Za-z_][\w.]*: .+$", re.MULTILINE)
"""The line of a traceback with the exception."""
_REASONS: Final = (
    (r"(killed due to the node running low on memory)", r"(\S+ used / \S+ limit)"),
    (
        r"The actor (?:is dead|died) because (.*?)\.(?: |$)",
        r"exit detail: (.*?)(?:\. Some common|\.? Ray|\.?$)",
    ),
    (r"The (actor is temporarily unavailable: .*?)\.?(?: rpc_code| The task|$)",),
)
"""What is quoted of Ray's errors: the first of these in which there is anything."""
_QUOTED: Final = 400
"""Characters of a text of Ray at most."""


def one_line(error: BaseException) -> str:
    """Return what an error of Ray says, as one line without its details."""
    lines = [line.strip() for line in _text(error).splitlines() if line.strip()]
    return " ".join(lines)[:_QUOTED] if lines else type(error).__name__


def reason(error: BaseException) -> str:
    """Return why an actor has died, as one line, from what Ray says at length."""
    text = _text(error)
    if _IN_CREATION in text and (raised := _RAISED.findall(text)):
        return f"Ray says: the actor cannot begin: {raised[-1][:_QUOTED]}"
    text = " ".join(text.split())
    for pattern in _REASONS:
        if found := [each[1] for part in pattern if (each := re.search(part, text))]:
            return f"Ray says: {': '.join(found)}"
    return f"Ray says: {text[:_QUOTED]}"


def _text(error: BaseException) -> str:
    return "\n".join(map(make_printable, _COLOUR.sub("", str(error)).splitlines()))
