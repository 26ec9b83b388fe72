from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html import unescape

import hypothesis.strategies as st
from hypothesis import given

from placer.report.page.svg import class_name, element, number, text
from placer.report.page.text_fit import shorten_middle, text_width


@given(st.text(), st.text())
def test_any_text_is_content_and_attribute(content: str, attribute: str) -> None:
    """XML parsers read the text back, apart from characters that XML cannot contain."""
    parsed = ET.fromstring(element("text", text(content), data_name=attribute))
    assert (parsed.text or "") == re.sub("\r\n?", "\n", unescape(text(content)))
    assert list(parsed) == []
    assert set(parsed.attrib) == {"data-name"}


def test_names_stay_text() -> None:
    name = '</script>"><img src=x onerror=alert(1)>'
    written = element("text", text(name), title=name)
    assert "<img" not in written
    assert "</script" not in written
    assert ET.fromstring(written).text == name
    assert ET.fromstring(written).get("title") == name


def test_attributes() -> None:
    assert (
        element("input", type="search", disabled=True)
        == '<input type="search" disabled="">'
    )
    assert element("a", href=None, hidden=False) == "<a></a>"
    assert element("g", class_="b", stroke_width=2, x=0.5) == (
        '<g class="b" stroke-width="2" x="0.5"></g>'
    )


def test_numbers_and_classes() -> None:
    assert [number(value) for value in (3, 3.0, 3.14159, -0.0, 1e6)] == [
        "3", "3", "3.14", "0", "1000000",
    ]  # fmt: skip
    assert (
        class_name("purpose", "forward and backward") == "purpose-forward-and-backward"
    )


@given(st.text(), st.floats(20, 300), st.booleans())
def test_a_shortened_name_keeps_its_ends(name: str, width: float, code: bool) -> None:
    short = shorten_middle(name, width, 12, code=code)
    assert text_width(short, 12, code=code) <= width
    first, ellipsis, last = short.partition("…")
    if short != name:
        assert ellipsis
        assert name.startswith(first)
        assert name.endswith(last)


def test_names_with_equal_beginnings_differ() -> None:
    names = [f"logits.attention_key_{part}" for part in ("bias", "kernel")]
    assert len({shorten_middle(name, 120, 12, code=True) for name in names}) == 2
