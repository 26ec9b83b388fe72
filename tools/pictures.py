"""Draws the placements of README.md: one model in three placements.

`python -m tools.pictures` writes them to `docs/pictures`, as `placer report SPEC --svg`
does. A test checks that the files are up to date.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from placer.report.page.collect import collect
from placer.report.page.picture import draw_standalone
from placer.report.page.subject import find_subject

_ROOT: Final = Path(__file__).parents[1]
_SPEC: Final = _ROOT / "specs" / "digits.yaml"
_WITHOUT_SERVERS: Final = "nodes={worker: {count: 2}}"
PICTURES: Final[dict[str, tuple[str, ...]]] = {
    "servers": (),
    "all_reduce": (_WITHOUT_SERVERS, "train.optimizer.place=/node:worker/cpu"),
    "two_parts": (
        _WITHOUT_SERVERS,
        "graph.0.place=/node:worker:1/cpu",
        "graph.h1.place=/node:worker:0/cpu",
        "train.optimizer.place=null",
    ),
}
"""The keys of `specs/digits.yaml` that `--set` changes, by the name of the picture."""


def path_of(name: str) -> Path:
    """Return the file of a picture."""
    return _ROOT / "docs" / "pictures" / f"{name}.svg"


def draw(name: str) -> str:
    """Return the SVG of a picture."""
    subject = find_subject((_SPEC,), trace=None, overrides=PICTURES[name], code=False)
    page, _ = collect(subject, "")
    assert page.placement is not None
    return draw_standalone(page.placement)


if __name__ == "__main__":
    for each in PICTURES:
        path_of(each).write_text(draw(each), encoding="utf-8")
