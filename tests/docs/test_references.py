"""Pages, sections and variables that errors, docstrings and pages name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from placer.system.files import owners

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {str(p.relative_to(DOCS)): p.read_text() for p in DOCS.rglob("*.md")}
TEXTS = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (
        *(ROOT / "placer").rglob("*.py"),
        *DOCS.rglob("*.md"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
    )
}
SET_BY_JOBS = {"PLACER_JOB_FOLDER", "PLACER_PORT", "PLACER_SLURM_ADDRESSES"}
"""Variables that the scripts of engines set for their own nodes."""


def anchors(page):
    """Return the anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", PAGES[page], re.M)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in headings
    }


@pytest.mark.parametrize("name", [n for n, text in TEXTS.items() if ".md" in text])
def test_pages_and_sections_that_a_file_names_exist(name):
    form = r"docs/([a-z-]+/[a-z-]+\.md)(?:#([\w-]+))?"
    found = re.findall(form, TEXTS[name])
    if name.startswith("docs/"):
        here = (ROOT / name).parent
        links = re.findall(r"\]\(([a-z/.-]+\.md)(?:#([\w-]+))?\)", TEXTS[name])
        linked = [((here / link).resolve(), anchor) for link, anchor in links]
        assert all(page.is_file() for page, _ in linked)
        found += [
            (str(page.relative_to(DOCS)), anchor)
            for page, anchor in linked
            if page.is_relative_to(DOCS)
        ]
    for page, anchor in found:
        assert page in PAGES
        assert not anchor or anchor in anchors(page), f"{page}#{anchor}"


def test_variables_that_are_read_or_named_are_documented():
    named = {
        n for text in TEXTS.values() for n in re.findall(r"\bPLACER_[A-Z_]+", text)
    }
    pages = "".join((*PAGES.values(), TEXTS["CONTRIBUTING.md"], TEXTS["README.md"]))
    missing = {n for n in named if not re.search(rf"\b{n}\b", pages)}
    assert missing <= SET_BY_JOBS


def test_the_page_that_an_error_names_has_what_it_names():
    assert "docs/reference/security.md" in owners._ALTERNATIVE
    page = PAGES["reference/security.md"]
    assert owners.TRUST_VARIABLE in page
    assert "--no-code" in page
    assert "which command runs which code" in page.lower()
