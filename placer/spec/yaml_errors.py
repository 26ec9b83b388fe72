"""What is wrong with text that is not YAML, in words that help."""

from __future__ import annotations

import re
from typing import Any

from placer.errors import SpecError
from placer.spec.tree import Mapping, Scalar, Text

# `epochs:20`: to YAML this is one word, and the next line's colon is what fails.
_NO_BLANK = re.compile(r"\s*(?:- *)?(['\"]?[A-Za-z_]\w*['\"]?):([^\s/:][^:]*)\Z")


# A type, which flow style takes apart at its bracket.
_TYPE = re.compile(r"\w+(\[)[^\[\]]*\]")


def explain(error: Any, source: Text) -> SpecError:
    """libyaml's error as one that points and hints."""
    mark = error.problem_mark or error.context_mark
    problem = error.problem or "this is not YAML"
    line, column = mark.line, mark.column
    hint = None
    text = source.lines[line] if line < len(source.lines) else ""
    if "cannot start any token" in problem:
        found = text[column : column + 1]
        if found == "\t":
            problem, hint = "a tab in the indentation", "indent with spaces"
        else:
            problem, hint = f"a value cannot begin with '{found}'", "quote it"
    elif (quote := _open_quote(source, line, column)) is not None:
        line, column, sign = quote
        problem = f"this quote is not closed before the next {sign}"
        hint = "close it at the end of its value"
    elif "mapping values are not allowed" in problem:
        problem = "a second ':' where no key can stand"
        hint = "quote a value that holds ': '"
        if found := _no_blank(source, line) or _no_blank(source, line - 1):
            line, column, hint = found
            problem = _BLANK
    elif "could not find expected ':'" in problem:
        line, column = error.context_mark.line, error.context_mark.column
        problem, hint = "this is no key and value", "write 'key: value'"
        if found := _no_blank(source, line):
            line, column, hint = found
            problem = _BLANK
    elif "end of stream" in problem:
        line, column = error.context_mark.line, error.context_mark.column
        problem, hint = "this quote is never closed", "close it on the same line"
    elif "did not find expected" in problem and error.context:
        what = error.context.removeprefix("while parsing a ")
        if what.startswith("flow") and (type_ := _type_at(text, column)):
            start, written = type_
            problem = f"'{written}' holds a bracket"
            column, hint = start, f'quote it: "{written}"'
        elif what.startswith("flow") and error.context_mark:
            opener = error.context_mark
            bracket = "[" if "sequence" in what else "{"
            close = "]" if bracket == "[" else "}"
            line, column = opener.line, opener.column
            problem = f"'{bracket}' is not closed before line {mark.line + 1}"
            hint = f"close it with '{close}'"
            if mark.line == opener.line:
                problem = f"',' or '{close}' is missing after this '{bracket}'"
                hint = f"write ', ' between entries, and '{close}' at the end"
        elif "-" in problem:
            problem = "this does not line up with the list above it"
            hint = "items of one list start with '- ' in the same column"
        else:
            problem = "this does not line up with the keys above it"
            hint = "keys of one mapping start in the same column"
    return SpecError(problem, span=source.span(line, column), hint=hint)


def _type_at(text: str, column: int) -> tuple[int, str] | None:
    """Where `float32[batch, 64]` begins whose bracket stands at `column`, and it."""
    for match in _TYPE.finditer(text):
        if match.start(1) == column:
            return match.start(), match.group()
    return None


_BLANK = "a blank is missing after this colon"


def _no_blank(source: Text, line: int) -> tuple[int, int, str] | None:
    """Line and column of the colon in a line as `epochs:2`, and the hint."""
    match = _NO_BLANK.match(source.lines[line]) if line >= 0 else None
    if match is None:
        return None
    key, rest = match.group(1), match.group(2).strip()
    return line, match.end(1), f"write a blank after the colon: '{key}: {rest}'"


def _open_quote(source: Text, line: int, column: int) -> tuple[int, int, str] | None:
    """Line, column and sign of the quote that was not closed where it should be.

    To YAML it went on up to the next quote, which ends just before what it then could
    not read: `{source: "rows.npz, batch: 8}` and a quote on a later line.
    """
    before = source.lines[line][:column].rstrip() if line < len(source.lines) else ""
    sign = before[-1:]
    if sign not in ("'", '"'):
        return None
    texts = [*source.lines[:line], before[:-1]]
    for number in range(line, -1, -1):
        at = texts[number].rfind(sign)
        if at < 0:
            continue
        # An even number of quotes belong together, and this is none of them.
        return (number, at, sign) if texts[number].count(sign) % 2 else None
    return None


def glued(key: str) -> str | None:
    """The hint for `{size:128}`, which YAML reads as one key without a value."""
    name, colon, rest = key.partition(":")
    if colon and name.isidentifier() and rest and not rest.startswith("/"):
        return f"write a blank after the colon: '{name}: {rest}'"
    return None


def trap(node: Mapping, key: str) -> str | None:
    """The hint for `{place: /node:worker:0,2-3}`, which YAML cuts at the comma.

    `key` has no value. The parts that follow a plain `place`, or a bracket, are put
    together again.
    """
    if not _CUT.fullmatch(key):
        return None
    names = list(node.entries)
    start = names.index(key)
    while start > 0 and _CUT.fullmatch(names[start]):
        start -= 1
    place = node.entries[names[start]]
    if names[start] != "place" or not isinstance(place, Scalar) or not place.plain:
        return None
    parts = [place.text]
    for name in names[start + 1 :]:
        if not _CUT.fullmatch(name) or node.entries[name].value is not None:
            break
        parts.append(name)
    return f"quote the place: '{','.join(parts)}'"


def unlisted(node: Mapping, key: str) -> str | None:
    """The hint for `{in: logits, label}`, a list without its brackets.

    `key` has no value.
    """
    names = list(node.entries)
    start = names.index(key)
    while start > 0 and node.entries[names[start]].value is None:
        start -= 1
    first = node.entries[names[start]]
    if names[start] not in ("in", "out", "metrics") or not isinstance(first, Scalar):
        return None
    return f"a list has brackets: {names[start]}: [{first.text}, {key}]"


# What stands behind a comma of a place.
_CUT = re.compile(r"[0-9]+(-[0-9]+)?(/[a-z0-9_:*-]*)?")
