"""The built documentation site."""

from __future__ import annotations

from docs.site.paths import HTML


def page_of(name: str) -> str:
    """Return the address of a built page, such as `how-to/data`.

    Raises:
        AssertionError: the site is not built.
    """
    file = HTML / f"{name}.html"
    assert file.is_file(), f"{file} does not exist: run `python -m docs`"
    return file.as_uri()
