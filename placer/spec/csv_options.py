"""The mapping `csv` of a source, and the columns of its file that feed the inputs."""

from __future__ import annotations

from collections.abc import Mapping as Types
from math import prod

from placer.config.checks import shown
from placer.config.csv import Csv, check, check_pattern, columns_of
from placer.config.sources import Source
from placer.errors import DataError, Span
from placer.spec.decode import decode
from placer.spec.names import quoted
from placer.spec.problems import Problems
from placer.spec.tree import Mapping, Node, Scalar
from placer.types import TensorType

Vocabulary = dict[str, list[str] | dict[str, int]]


def read_csv(node: Node, source: Source, where: str, problems: Problems) -> Csv | None:
    """How the file's text is read, as the spec says; None where that is wrong."""
    good = decode(node, Csv, where, problems)
    vocabulary = _vocabulary(good.get("vocabulary"), problems)
    if (
        not isinstance(node, Mapping)
        or len(good) < len(Csv.__struct_fields__)
        or vocabulary is None
    ):
        return None
    given = {key: value for key, value in good.items() if value is not None}
    csv = Csv(**{**given, "vocabulary": vocabulary})
    if problem := check(csv):
        key, message, hint = problem
        problems.add(message, node.entries[key].span, hint)
        return None
    fits = [
        _fits(source, section.keys[pattern], csv.header, problems)
        for section in map(node.get, ("vocabulary", "unknown", "missing"))
        if isinstance(section, Mapping) and csv.header
        for pattern in section.keys
    ]
    return csv if all(fits) else None


def check_columns(
    source: Source,
    columns: Types[str, str | list[str]],
    types: Types[str, TensorType],
    header: list[str] | None,
    spans: Types[str, Span],
    problems: Problems,
) -> bool:
    """Whether the columns can feed the inputs, as far as the spec tells of the file.

    `spans` says where the spec names the column of each input.
    """
    whole = True
    for name, wanted in columns.items():
        count = prod(types[name].sizes(1))
        declared = str(types[name])
        try:
            columns_of(source.text, name, declared, count, wanted, header)
        except DataError as error:
            problems.take(error, span=spans[name])
            whole = False
    return whole


def _fits(
    source: Source, pattern: Scalar, header: list[str], problems: Problems
) -> bool:
    try:
        check_pattern(source.text, pattern.text, header)
    except DataError as error:
        problems.take(error, span=pattern.span)
        return False
    return True


def _vocabulary(section: Node | None, problems: Problems) -> Vocabulary | None:
    """The words of each column; words are what is written, numbers and all."""
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        message = f"'vocabulary' must be a mapping, not {shown(section.value)}"
        problems.add(message, section.span, "write {COLUMN: [WORD, WORD]}")
        return None
    found: Vocabulary = {}
    for column, words in section:
        read = _words(column, words, problems)
        if read is not None:
            found[column] = read
    return found if len(found) == len(section.entries) else None


def _words(
    column: str, node: Node, problems: Problems
) -> list[str] | dict[str, int] | None:
    if isinstance(node, Scalar) or not node.value:
        message = f"the vocabulary of {quoted(column)} is a list of words or a mapping"
        hint = "write [WORD, WORD], or {WORD: 0, WORD: 1}"
        problems.add(message, node.span, hint)
        return None
    if isinstance(node, Mapping):
        numbers = {}
        for word, number in node:
            if isinstance(number.value, int) and not isinstance(number.value, bool):
                numbers[word] = number.value
            else:
                message = f"the number of {quoted(word)} must be a whole number"
                problems.add(f"{message}, not {shown(number.value)}", number.span)
        return numbers if len(numbers) == len(node.entries) else None
    listed: dict[str, None] = {}
    for item in node.items:
        if not isinstance(item, Scalar):
            problems.add(f"a word must be text, not {shown(item.value)}", item.span)
            return None
        if item.text in listed:
            message = f"{quoted(item.text)} stands twice in the vocabulary"
            problems.add(f"{message} of {quoted(column)}", item.span)
            return None
        listed[item.text] = None
    return list(listed)
