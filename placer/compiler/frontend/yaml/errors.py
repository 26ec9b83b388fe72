"""Explains syntax errors of libyaml, and keys that YAML reads in an unexpected way."""

from __future__ import annotations

import re
from typing import Any

from placer.compiler.frontend.yaml.tree import MappingNode, ScalarNode, Text
from placer.errors import SpecError

# YAML reads `epochs:20` as one word, and reports an error at the colon of the next
# line.
_NO_BLANK = re.compile(r"\s*(?:- *)?(['\"]?[A-Za-z_]\w*['\"]?):([^\s/:][^:]*)\Z")


# In flow style, YAML splits a type such as `float32[batch, 64]` at its bracket.
_TYPE = re.compile(r"\w+(\[)[^\[\]]*\]")

# A key and its value on one line, possibly the first key of a list item.
_KEY_ABOVE = re.compile(r"\s*(?:- +)*(['\"]?\w+['\"]?): +[^\s#]")

_OTHER_THAN_KEYS = (
    "this is not aligned with the keys above it",
    "keys of one mapping start in the same column",
)
_OTHER_THAN_ITEMS = (
    "this is not aligned with the list above it",
    "items of one list start with '- ' in the same column",
)

# The rest of a place after a comma.
_PLACE_REST = re.compile(r"[0-9]+(-[0-9]+)?(/[a-z0-9_:*-]*)?")


def explain_syntax_error(error: Any, source: Text) -> SpecError:
    """Convert an error of libyaml to a SpecError with a position and a hint."""
    mark = error.problem_mark or error.context_mark
    problem = error.problem or "this is not YAML"
    line, column = mark.line, mark.column
    hint = None
    text = source.lines[line] if line < len(source.lines) else ""
    if "cannot start any token" in problem:
        character = text[column : column + 1]
        if character == "\t":
            problem, hint = "a tab in the indentation", "indent with spaces"
        else:
            problem, hint = f"a value cannot start with '{character}'", "quote it"
    elif quote := _open_quote_error(source, line, column):
        return quote
    elif "mapping values are not allowed" in problem:
        if blank := _missing_blank_error(source, line, line - 1):
            return blank
        if indented := _indentation_error(source, line, column):
            return indented
        problem = "a second ':' where no key is allowed"
        hint = "quote a value that contains ': '"
    elif "could not find expected ':'" in problem:
        line, column = error.context_mark.line, error.context_mark.column
        if blank := _missing_blank_error(source, line):
            return blank
        problem, hint = "this is not a key and a value", "write 'key: value'"
    elif text[column : column + 1] in ("]", "}") and "flow" not in (
        error.context or ""
    ):
        problem, hint = f"this '{text[column]}' closes no bracket", "remove it"
    elif "<document start>" in problem:
        problem, hint = _explain_second_value(source, line, column)
    elif "end of stream" in problem:
        line, column = error.context_mark.line, error.context_mark.column
        problem, hint = "this quote is never closed", "close it on the same line"
    elif "did not find expected" in problem and error.context:
        what = error.context.removeprefix("while parsing a ")
        types = (type_ for type_ in _TYPE.finditer(text) if type_.start(1) == column)
        if what.startswith("flow") and (type_ := next(types, None)):
            problem = f"'{type_[0]}' contains a bracket"
            column, hint = type_.start(), f'quote it: "{type_[0]}"'
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
            problem, hint = _OTHER_THAN_ITEMS
        else:
            problem, hint = _OTHER_THAN_KEYS
    return SpecError(problem, span=source.span(line, column), hint=hint)


def _explain_second_value(source: Text, line: int, column: int) -> tuple[str, str]:
    """Return the error and the hint for text after the end of the document. Such text
    is indented less than the first line, or starts a new value."""
    before = source.lines[:line]
    contents = (each for each in before if each.strip() and each[0] not in "%#-")
    first = next((each for each in contents if each.lstrip()[0] != "#"), "")
    is_ended = any(each.startswith("...") for each in source.lines[: line + 1])
    start = first.lstrip()
    is_block = not is_ended and start[:1] not in ("{", "[", "'", '"')
    if is_block and column < len(first) - len(start):
        return _OTHER_THAN_ITEMS if start.startswith("- ") else _OTHER_THAN_KEYS
    return (
        "a second document or value starts here",
        "a spec is one mapping: remove this, or write it as a key of the mapping",
    )


def _missing_blank_error(source: Text, *lines: int) -> SpecError | None:
    """Return the error of the first line such as `epochs:2`, which lacks a space."""
    for line in lines:
        match = _NO_BLANK.match(source.lines[line]) if line >= 0 else None
        if match is not None:
            key, rest = match[1], match[2].strip()
            return SpecError(
                "a space is missing after this colon",
                span=source.span(line, match.end(1)),
                hint=f"write a space after the colon: '{key}: {rest}'",
            )
    return None


def _indentation_error(source: Text, line: int, column: int) -> SpecError | None:
    """Return the error of a key that is indented more than the key above it. The key
    above already has a value, so YAML reads the indented key as part of that value."""
    text = source.lines[line]
    start = len(text) - len(text.lstrip())
    if not re.fullmatch(r"['\"]?\w+['\"]?", text[start:column].strip()):
        return None
    above = (each for each in reversed(source.lines[:line]) if each.strip())
    match = _KEY_ABOVE.match(next(above, ""))
    if match is None or match.start(1) >= start:
        return None
    more = start - match.start(1)
    return SpecError(
        f"this key is indented by {more} {'space' if more == 1 else 'spaces'} more"
        f" than '{match[1]}' above it, which already has a value",
        span=source.span(line, start),
        hint=f"start it in column {match.start(1) + 1}, below '{match[1]}'",
    )


def _open_quote_error(source: Text, line: int, column: int) -> SpecError | None:
    """Return the error of a quote that is not closed in its value. YAML continues the
    text up to the next quote, perhaps lines below, and fails after that quote. Example:
    `{source: "rows.npz, batch: 8}`."""
    before = source.lines[line][:column].rstrip() if line < len(source.lines) else ""
    sign = before[-1:]
    if sign not in ("'", '"'):
        return None
    texts = [*source.lines[:line], before[:-1]]
    number = next((n for n in range(line, -1, -1) if sign in texts[n]), None)
    # An even number of quotes: all of them are closed in this line.
    if number is None or texts[number].count(sign) % 2 == 0:
        return None
    return SpecError(
        f"this quote is not closed before the next {sign}",
        span=source.span(number, texts[number].rfind(sign)),
        hint="close it at the end of its value",
    )


def missing_blank_hint(key: str) -> str | None:
    """Return a hint for `{size:128}`, which YAML reads as one key without a value."""
    name, colon, rest = key.partition(":")
    if colon and name.isidentifier() and rest and not rest.startswith("/"):
        return f"write a space after the colon: '{name}: {rest}'"
    return None


def cut_place_hint(node: MappingNode, key: str) -> str | None:
    """Return a hint for `{place: /node:worker:0,2-3}`, which YAML cuts at the comma.
    `key` is a key without a value. The hint shows the whole place: the value of `place`
    and the keys after it, joined by commas."""
    if not _PLACE_REST.fullmatch(key):
        return None
    names = list(node.entries)
    start = names.index(key)
    while start > 0 and _PLACE_REST.fullmatch(names[start]):
        start -= 1
    place = node.entries[names[start]]
    if names[start] != "place" or not isinstance(place, ScalarNode) or not place.plain:
        return None
    parts = [place.text]
    for name in names[start + 1 :]:
        if not _PLACE_REST.fullmatch(name) or node.entries[name].value is not None:
            break
        parts.append(name)
    return f"quote the place: '{','.join(parts)}'"


def missing_brackets_hint(node: MappingNode, key: str) -> str | None:
    """Return a hint for `{in: logits, label}`, a list without brackets."""
    names = list(node.entries)
    start = names.index(key)
    while start > 0 and node.entries[names[start]].value is None:
        start -= 1
    first = node.entries[names[start]]
    if names[start] not in ("in", "out", "metrics") or not isinstance(
        first, ScalarNode
    ):
        return None
    return f"write a list in brackets: {names[start]}: [{first.text}, {key}]"
