"""docs/places.md says what is so."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from placer.place import Place

PAGE = Path(__file__).parents[2] / "docs" / "places.md"


def test_the_examples_of_the_page_give_what_it_shows() -> None:
    # pytest reads no Markdown of itself, and doctest reads up to the end of a fence
    # as output; each example of the page ends in an empty line.
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted >= 10
    assert result.failed == 0


def test_the_places_of_the_tables_are_read_and_merge_as_shown() -> None:
    text = PAGE.read_text(encoding="utf-8")
    alone = re.findall(r"^\| `(/\S+)` \| [^`|]+ \|$", text, re.MULTILINE)
    assert len(alone) == 6
    for place in alone:
        assert str(Place.parse(place)) == place
    nested = re.findall(r"^\| `(/\S+)` \| `(/\S+)` \| `(/\S+)` \|", text, re.MULTILINE)
    assert len(nested) == 5
    for outer, inner, together in nested:
        assert str(Place.merge(Place.parse(outer), Place.parse(inner))) == together
