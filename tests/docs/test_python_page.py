"""docs/reference/python.md names every optimizer."""

from pathlib import Path

import placer

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "python.md"


def test_every_optimizer_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    missing = {name for name in placer.optimizer.__all__ if f"`{name}`" not in page}
    assert missing == set()
