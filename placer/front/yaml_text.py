"""A program as the spec that a person would write.

Sections and blocks go over lines; an op, a node kind, an optimizer stands on one where
it fits. Text is plain where any YAML reads it back as that text, else in double quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from placer.errors import SpecError
from placer.front.program import Program
from placer.spec.decode import YAML_1_1_WORDS
from placer.spec.yaml_events import read
from placer.spec.yaml_scalars import resolve

WIDTH = 88

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*|(/[a-z0-9_]+(:[a-z0-9_*-]+)*)+")
_TYPE = re.compile(r"[a-z][a-z0-9]*\[[a-z0-9, ]*\]")
_UNPRINTABLE = re.compile(
    "[^\x20-\x7e\xa0-\u061b\u061d-\u200d\u2010-\u2027\u202f-\u2065\u206a-\ud7ff"
    "\ue000-\ufefe\uff00-\ufffd]"
)


def to_yaml(program: Program) -> str:
    """The spec that says the same, in YAML; what either is compiled to is the same.

    Raises SpecError for what is wrong with the program, and where a spec cannot hold
    it: nested too deep, or too long.
    """
    program.model()
    tree = program.tree()
    text = "\n".join(_sections(tree.value)) + "\n"
    try:
        again, mistakes = read(text, "the spec")
    except SpecError as error:
        raise SpecError(f"YAML cannot say this: {error.message}") from error
    if mistakes or again is None or again.value != tree.value:
        reason = mistakes[0].message if mistakes else "it is read back as another spec"
        raise SpecError(f"YAML cannot say this: {reason}")
    return text


def _sections(spec: dict[str, Any]) -> Iterator[str]:
    for key, section in spec.items():
        if not isinstance(section, dict | list):
            yield f"{key}: {_scalar(section, flow=False)}"
            continue
        yield ""
        if not section:
            yield f"{key}: {_flow(section)}"
        elif isinstance(section, list):
            yield f"{key}:"
            yield from _items(section, 2)
        else:
            yield f"{key}:"
            yield from _entries(section, 2)


def _entries(mapping: dict[str, Any], indent: int) -> Iterator[str]:
    """The entries of a block mapping; each stands on a line where it fits."""
    for key, value in mapping.items():
        head = f"{' ' * indent}{_scalar(key, flow=False)}:"
        one = f"{head} {_inline(value)}"
        if len(one) <= WIDTH or not isinstance(value, dict | list):
            yield one
        elif isinstance(value, list):
            yield head
            yield from _items(value, indent + 2)
        else:
            yield head
            yield from _entries(value, indent + 2)


def _items(items: list[Any], indent: int) -> Iterator[str]:
    """The items of a block list; blocks of ops are never on one line."""
    pad = " " * indent
    for item in items:
        one = f"{pad}- {_inline(item)}"
        block = isinstance(item, dict) and "ops" in item
        if not block and (len(one) <= WIDTH or not isinstance(item, dict)):
            yield one
            continue
        inner = {k: v for k, v in item.items() if not (block and k == "ops")}
        lines = list(_entries(inner, indent + 2))
        if block:
            lines.append(f"{pad}  ops:")
            lines.extend(_items(item["ops"], indent + 4))
        yield f"{pad}- {lines[0][indent + 2 :]}"
        yield from lines[1:]


def _inline(value: Any) -> str:
    if isinstance(value, dict | list):
        return _flow(value)
    return _scalar(value, flow=False)


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{_scalar(k, flow=True)}: {_flow(v)}" for k, v in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    return _scalar(value, flow=True)


def _scalar(value: str | float | None, *, flow: bool) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value, flow=flow)
    text = repr(value)
    # YAML 1.1 reads 1e-05 as text, and both read 1.0e-05 as a number.
    return re.sub(r"\A(-?\d+)e", r"\1.0e", text)


def _text(text: str, *, flow: bool) -> str:
    plain = _WORD.fullmatch(text) or (not flow and _TYPE.fullmatch(text))
    if plain and resolve(text) == text and text.lower() not in YAML_1_1_WORDS:
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return _UNPRINTABLE.sub(_escape, quoted)


def _escape(character: re.Match[str]) -> str:
    code = ord(character[0])
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
