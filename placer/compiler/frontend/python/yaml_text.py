"""Writes a program as a YAML spec, formatted as if by hand.

Sections and scopes take several lines. An op, a node kind or an optimizer takes one
line if it fits. Strings are plain if all versions of YAML read them unchanged,
otherwise in double quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from placer.compiler.frontend.entries.names import quote
from placer.compiler.frontend.python.program import Program
from placer.compiler.frontend.yaml.events import parse_yaml
from placer.compiler.frontend.yaml.scalars import resolve
from placer.errors import SpecError

WIDTH = 88
MAX_KEY = 1024
"""The maximum length of a key on one line in YAML 1.2."""

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*|(/[a-z0-9_]+(:[a-z0-9_*-]+)*)+")
_YAML_1_1_WORDS = frozenset(
    {"on", "off", "yes", "no", "y", "n", "true", "false", "null"}
)
"""Words that YAML 1.1 reads as booleans or null."""
_TYPE = re.compile(r"[a-z][a-z0-9]*\[[a-z0-9, ]*\]")
_UNPRINTABLE = re.compile(
    "[^\x20-\x7e\xa0-\u061b\u061d-\u200d\u2010-\u2027\u202f-\u2065\u206a-\ud7ff"
    "\ue000-\ufefe\uff00-\ufffd]"
)


def to_yaml(program: Program) -> str:
    """Return the YAML spec of a program. It compiles to the same build. Raises
    SpecError for errors in the program, and if YAML cannot express it: nested too deep,
    or too long."""
    program.model()
    tree = program.tree()
    longest = max(_keys(tree.value), key=len)
    if len(one_line(longest)) > MAX_KEY:
        raise SpecError(
            f"the program cannot be written as YAML: the name {quote(longest)} has"
            f" {len(longest):,} characters, and a key of YAML at most {MAX_KEY:,}"
        )
    text = "\n".join(_section_lines(tree.value)) + "\n"
    try:
        parsed, mistakes = parse_yaml(text, "the spec")
    except SpecError as error:
        message = f"the program cannot be written as YAML: {error.message}"
        raise SpecError(message) from error
    if mistakes or parsed is None or parsed.value != tree.value:
        reason = (
            mistakes[0].message
            if mistakes
            else "reading it back gives a different spec"
        )
        raise SpecError(f"the program cannot be written as YAML: {reason}")
    return text


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    inner = value.values() if isinstance(value, dict) else value
    for each in inner if isinstance(value, dict | list) else ():
        yield from _keys(each)


def _section_lines(spec: dict[str, Any]) -> Iterator[str]:
    for key, section in spec.items():
        if isinstance(section, dict | list):
            yield ""
        yield from _entry_lines({key: section}, 0, 0 if section else WIDTH)


def _entry_lines(
    mapping: dict[str, Any], indent: int, width: int = WIDTH
) -> Iterator[str]:
    """Yield the lines of a block mapping. An entry takes one line if it fits."""
    for key, value in mapping.items():
        head = f"{' ' * indent}{one_line(key)}:"
        joined = f"{head} {one_line(value)}"
        if len(joined) <= width or not isinstance(value, dict | list):
            yield joined
            continue
        yield head
        if isinstance(value, list):
            yield from _item_lines(value, indent + 2)
        else:
            yield from _entry_lines(value, indent + 2)


def _item_lines(items: list[Any], indent: int) -> Iterator[str]:
    """Yield the lines of a block list. Scopes never take one line."""
    pad = " " * indent
    for item in items:
        joined = f"{pad}- {one_line(item)}"
        is_scope = isinstance(item, dict) and "ops" in item
        if not is_scope and (len(joined) <= WIDTH or not isinstance(item, dict)):
            yield joined
            continue
        inner = {k: v for k, v in item.items() if not (is_scope and k == "ops")}
        lines = list(_entry_lines(inner, indent + 2))
        if is_scope:
            lines.append(f"{pad}  ops:")
            lines.extend(_item_lines(item["ops"], indent + 4))
        yield f"{pad}- {lines[0][indent + 2 :]}"
        yield from lines[1:]


def one_line(value: Any, *, flow: bool = False) -> str:
    """Return a value on one line. `flow` is true inside a list or mapping."""
    if isinstance(value, dict):
        pairs = (
            f"{one_line(k, flow=True)}: {one_line(v, flow=True)}"
            for k, v in value.items()
        )
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return f"[{', '.join(one_line(item, flow=True) for item in value)}]"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return _quote(value, flow=flow)
    text = repr(value)
    # YAML 1.1 reads 1e-05 as text, but all versions read 1.0e-05 as a number.
    return re.sub(r"\A(-?\d+)e", r"\1.0e", text)


def _quote(text: str, *, flow: bool) -> str:
    plain = _WORD.fullmatch(text) or (not flow and _TYPE.fullmatch(text))
    if plain and resolve(text) == text and text.lower() not in _YAML_1_1_WORDS:
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return _UNPRINTABLE.sub(_escape, quoted)


def _escape(character: re.Match[str]) -> str:
    code = ord(character[0])
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
