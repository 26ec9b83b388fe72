"""Pages, sections and variables that errors, docstrings and pages name exist."""

from __future__ import annotations

import re

import pytest

from docs.site import commands, gallery, layers
from docs.site.paths import API, COMMAND_LINE, DOCS, GALLERY, OPS, ROOT
from placer.system.files import owners
from tools import op_reference

GENERATED = {
    str((folder / f"{name}.md").relative_to(DOCS)): text
    for folder, pages in (
        (OPS, op_reference.pages().items()),
        (COMMAND_LINE, commands.pages()),
        (GALLERY, gallery.pages()),
        (API, [layers.page()]),
    )
    for name, text in pages
}
PAGES = {
    str(p.relative_to(DOCS)): p.read_text() for p in DOCS.rglob("*.md")
} | GENERATED
TEXTS = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (
        *(ROOT / "placer").rglob("*.py"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
    )
} | {f"docs/{name}": text for name, text in PAGES.items()}
SET_BY_JOBS = {
    "PLACER_JOB_FOLDER",
    "PLACER_PORT",
    "PLACER_RUN_ID",
    "PLACER_SLURM_ADDRESSES",
}
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
    form = r"docs/((?:[a-z-]+/)+[\w-]+\.md)(?:#([\w-]+))?"
    found = re.findall(form, TEXTS[name])
    if name.startswith("docs/"):
        here = (ROOT / name).parent
        links = re.findall(r"\]\(([\w/.-]+\.md)(?:#([\w-]+))?\)", TEXTS[name])
        for link, anchor in links:
            page = (here / link).resolve()
            if page.is_relative_to(DOCS):
                found.append((str(page.relative_to(DOCS)), anchor))
            else:
                assert page.is_file()
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


def test_tests_that_are_named_exist():
    named = {
        name
        for text in TEXTS.values()
        for name in re.findall(r"tests/[\w/]+\.py", text)
    }
    assert "tests/recovery/test_killed_nodes.py" in named
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
