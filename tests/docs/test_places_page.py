"""The examples and tables of docs/learn/places.md are correct."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from placer.place import Place

PAGE = Path(__file__).parents[2] / "docs" / "learn" / "places.md"


def test_the_examples_have_the_results_that_the_page_shows() -> None:
    # doctest reads expected output up to an empty line, so each example on the page ends
    # in an empty line before its fence.
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted >= 10
    assert result.failed == 0


def test_the_places_in_the_tables_are_parsed_and_merged_as_shown() -> None:
    text = PAGE.read_text(encoding="utf-8")
    alone = re.findall(r"^\| `(/\S+)` \| [^`|]+ \|$", text, re.MULTILINE)
    assert len(alone) == 9
    for place in alone:
        assert str(Place.parse(place)) == place
    nested = re.findall(r"^\| `(/\S+)` \| `(/\S+)` \| `(/\S+)` \|", text, re.MULTILINE)
    assert len(nested) == 5
    for outer, inner, together in nested:
        assert str(Place.merge(Place.parse(outer), Place.parse(inner))) == together
