"""The op reference has each op once, on the page of its family."""

import re

from placer import ops
from placer.ops.composites import COMPOSITES
from placer.ops.families import FAMILIES
from tools import op_reference


def test_each_op_has_one_section_on_one_page():
    pages = op_reference.pages()
    headings = [
        h for page in pages.values() for h in re.findall(r"^## (.+)$", page, re.M)
    ]
    kinds = [*ops.kinds(), *(each.kind for each in COMPOSITES)]
    assert sorted(set(headings) & set(kinds)) == sorted(kinds)
    assert len(headings) == len(kinds) + 1  # and the section about entries
    links = re.findall(r"\((\w+)\.md#(\w+)\)", pages["index"])
    assert all(f"\n## {kind}\n" in pages[page] for page, kind in links)
    assert len(links) == len(kinds)


def test_each_family_of_the_code_is_on_one_page():
    modules = [m for family in op_reference.FAMILIES.values() for m in family.modules]
    assert sorted(m.__name__ for m in modules) == sorted(f.__name__ for f in FAMILIES)
