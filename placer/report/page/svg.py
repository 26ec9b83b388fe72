"""Writes elements of SVG and HTML as text, with everything escaped."""

from __future__ import annotations

import re

_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"}
)

# XML has no control characters, and UTF-8 has no surrogates.
_UNWRITABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]"
)

# HTML elements without an end tag.
_VOID = frozenset({"br", "hr", "img", "input", "link", "meta", "wbr"})


def text(string: str) -> str:
    """Escape a text for the content of an element, or for an attribute.

    >>> text('</script> & "quotes"')
    '&lt;/script&gt; &amp; &quot;quotes&quot;'
    """
    return _UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", string).translate(_ESCAPES)


def element(name: str, *children: str, **attributes: object) -> str:
    """Write an element.

    Args:
        name: the tag, such as "rect".
        children: the content as markup: results of `element` and `text`.
        attributes: the attributes. An underscore becomes a hyphen and one at the end is
            dropped. None and False omit an attribute, True writes it empty, and numbers have
            at most two decimals.

    >>> element("text", text("a < b"), class_="t", x=1.234, text_anchor="end", y=None)
    '<text class="t" x="1.23" text-anchor="end">a &lt; b</text>'
    >>> element("rect", width=20.0)
    '<rect width="20"></rect>'
    """
    pairs = (
        f' {key.removesuffix("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    start = f"<{name}{''.join(pairs)}>"
    return start if name in _VOID else f"{start}{''.join(children)}</{name}>"


def _attribute(value: object) -> str:
    if value is True:
        return ""
    if isinstance(value, float):
        return number(value)
    return text(str(value))


def number(value: float) -> str:
    """Format a coordinate with at most two decimals.

    >>> number(12.0), number(0.125), number(-0.001)
    ('12', '0.12', '0')
    """
    formatted = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if formatted == "-0" else formatted


def class_name(kind: str, value: str) -> str:
    """Return the CSS class of a value.

    >>> class_name("purpose", "forward and backward")
    'purpose-forward-and-backward'
    """
    return f"{kind}-{value.replace(' ', '-')}"
