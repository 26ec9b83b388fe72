"""Pages are in plain English: short sentences, without phrases that readers have to decode.

Code, tables, the generated reference and the changelog are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml
from support.pages import PAGES, ROOT
from test_plain_words import PHRASES

LONGEST = 30
"""Words in a sentence."""
LONGEST_DESCRIPTION = 160
"""Characters, which search engines show."""
LEFT_OUT = re.compile(
    r"\A---\n.*?\n---\n"  # front matter
    r"|^ *(?P<fence>`{3,}|~{3,}).*?^ *(?P=fence) *$"
    r"|<!--.*?-->"
    r"|^\|.*?$"  # a line of a table
    r"|^ *:::.*?$|^ *:[\w-]+:.*?$"  # the edges and options of directives
    r"|^#+ .*?$",
    re.DOTALL | re.MULTILINE,
)
ITEM = re.compile(r"^ *(?:[-*+]|\d+[.)]|:) +", re.MULTILINE)
END = re.compile(r"(?<=[.?!])[\"')*_]*\s+(?=[\"'(*_]*[A-Z0-9`“])")
SHORT = re.compile(r"\b(e\.g|i\.e|cf|vs|et al|etc|Dr|No)\.")


def sentences(page: str) -> Iterator[str]:
    """Yield the sentences of the paragraphs and list items of a page. Inline code is one
    word, and a link is its text."""
    text = LEFT_OUT.sub("\n", page)
    text = re.sub(r"`[^`]*`", "`code`", text)
    text = re.sub(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)", r"\1", text)
    text = SHORT.sub(r"\1", text)
    for paragraph in re.split(r"\n\s*\n", ITEM.sub("\n\n", text)):
        for sentence in END.split(" ".join(paragraph.split())):
            if sentence:
                yield sentence


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_has_short_sentences_in_plain_words(name):
    page = (ROOT / name).read_text(encoding="utf-8")
    found = [*sentences(page)]
    assert [each for each in found if len(each.split()) > LONGEST] == []
    for phrase, advice in PHRASES.items():
        assert [s for s in found if re.search(phrase, s)] == [], advice


@pytest.mark.parametrize("name", sorted(n for n in PAGES if n.startswith("docs/")))
def test_a_page_has_a_description(name):
    _, front_matter, _ = (ROOT / name).read_text(encoding="utf-8").split("---\n", 2)
    description = yaml.safe_load(front_matter)["description"]
    assert 20 <= len(description) <= LONGEST_DESCRIPTION


def test_sentences_are_found_outside_of_code_and_tables():
    page = """---
description: "One. Two."
---

# A title. Not a sentence

First sentence. The second, with `code. More code`, is e.g. [a link](a.md).
It goes on.

- An item. Another
  line.

```sh
No sentence. Here.
```

| No. | Sentence. |
"""
    assert [*sentences(page)] == [
        "First sentence.",
        "The second, with `code`, is e.g a link.",
        "It goes on.",
        "An item.",
        "Another line.",
    ]
