"""The parts of the documentation site. `python -m docs` builds all of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import placer
from docs.site import check, commands, layers, links, terminal, versions
from docs.site.docstrings import change_docstring
from docs.site.paths import API, DOCS, ROOT
from docs.site.placements import asked
from docs.site.redirects import REDIRECTS
from placer.command.cli import commands as group

DOCUMENTED = re.compile(r"^\.\. auto\w+:: (placer\.[\w.]+)$", re.MULTILINE)


def test_every_public_name_is_in_the_reference_once():
    written = [path.read_text() for path in API.glob("*.md") if path.stem != "layers"]
    pages = [*written, layers.page().text]
    found = [name for page in pages for name in DOCUMENTED.findall(page)]
    modules = {"layers": placer.layers, "optimizer": placer.optimizer}
    expected = {f"placer.{name}" for name in placer.__all__}
    expected -= {"placer.__version__", *(f"placer.{name}" for name in modules)}
    for name, module in modules.items():
        expected |= {f"placer.{name}.{each}" for each in module.__all__}
    assert sorted(found) == sorted(expected)


def test_every_command_and_option_is_in_the_reference():
    pages = {page.name: page.text for page in commands.pages()}
    assert pages.keys() == {"index", *group.commands}
    for option in ("--steps N", "--lost-after SECONDS", "--in-process"):
        assert f"{{option}} {option}\n" in pages["launch"], option
    assert "## placer key new" in pages["key"]
    assert "```{terminal} placer explain specs/digits.yaml h1.w\n" in pages["explain"]


@pytest.mark.parametrize(
    ("link", "changed"),
    [
        ("[a](places.md#slices)", "[a](places.md#slices)"),
        ("[a](../../specs/digits.yaml)", "[a](../gallery/digits.md)"),
        ("[a](../../specs/digits.py)", "[a](../gallery/digits-py.md)"),
        ("[a](../../specs/)", "[a](../gallery/index.md)"),
        ("[two\nlines](../../CHANGELOG.md)", "[two\nlines](../about/changelog.md)"),
        ("[a](../../LICENSE)", "a"),
        ("[`x`](../../nosuch.md)", "[`x`](../../nosuch.md)"),
        ("```text\n[a](../../LICENSE)\n```", "```text\n[a](../../LICENSE)\n```"),
        ("[a](https://jax.dev)", "[a](https://jax.dev)"),
    ],
)
def test_links_to_files_of_the_checkout_lead_to_pages(link, changed, monkeypatch):
    monkeypatch.setattr(links, "repository", str)
    assert links.change_links(f"{link}\n", "docs/learn/places.md") == f"{changed}\n"


def test_an_included_file_has_links_from_the_page():
    page = "```{include} ../../CONTRIBUTING.md\n```\n"
    text = links.change_links(page, "docs/about/contributing.md")
    assert "](architecture.md)" in text
    assert "](docs/about/architecture.md)" not in text


def test_links_without_a_target_and_other_hosts_are_found(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.html").write_text(
        '<a href="../c.html#x">1</a><a href="../c.html#y">2</a><a href="d.html">3</a>'
        '<a href="https://jax.dev">4</a><a href="#">5</a><a href="/c.html">6</a>'
        '<script src="https://jax.dev/a.js"></script><img src="../no.svg">'
    )
    (tmp_path / "c.html").write_text('<p id="x">')
    assert sorted(check.problems(tmp_path)) == [
        "a/b.html: loads https://jax.dev/a.js from another host",
        "a/b.html: no anchor for ../c.html#y",
        "a/b.html: no file for ../no.svg",
        "a/b.html: no file for d.html",
    ]


def test_a_docstring_has_code_and_links():
    formula = placer.layers.softplus.__doc__.split("\n\n")[1].strip()
    changed = change_docstring(
        [
            "Return `x`s of |y|; see docs/learn/places.md#slices.",
            "",
            formula,
            "",
            "Example:",
            "    run(`x`)",
            "",
            "Returns:",
            "    a number",
        ]
    )
    assert changed[0] == "Return ``x``\\ s of \\|y\\|; see :doc:`/learn/places`."
    assert changed[2:5] == [".. code-block:: text", "", f"   {formula}"]
    text = "\n".join(changed)
    assert "Example:\n    .. code-block:: python\n\n        run(`x`)\n" in text
    assert text.endswith("Returns:\n    a number\n")


def test_the_menu_has_this_version_and_those_of_tags():
    names = [
        each["url"] for each in versions.versions("0.2.0", ["v0.2.0", "v0.10", "x"])
    ]
    assert names == ["./", "../0.10/"]


def test_a_page_may_draw_a_spec_that_it_writes():
    page = "```yaml\n# small.yaml\nname: small\n```\n"
    picture = asked(["small.yaml", "--set", "a=1"], page)
    assert picture.words == ("small.yaml", "--set", "a=1")
    assert picture.written == "# small.yaml\nname: small\n"
    with pytest.raises(ValueError, match=r"nosuch\.yaml"):
        asked(["nosuch.yaml"], page)


def test_a_terminal_runs_only_placer():
    with pytest.raises(ValueError, match="not 'ls'"):
        terminal._run("ls /")


def test_old_addresses_lead_to_pages():
    for target in REDIRECTS.values():
        page = DOCS / Path(target).with_suffix(".md")
        assert page.is_file() or "ops" in page.parts, target


def test_the_generated_pages_are_not_committed():
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/docs/gallery/", "/docs/reference/command-line/"} <= set(ignored)
