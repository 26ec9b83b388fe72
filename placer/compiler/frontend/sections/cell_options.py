"""Reads the keys `csv`, `parquet` and `python` of a source."""

from __future__ import annotations

from placer.compiler.frontend.entries.names import quote
from placer.compiler.frontend.yaml.decode import decode
from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.tree import MappingNode, ScalarNode, SpecNode
from placer.plan.settings.checks import describe_value
from placer.plan.settings.data.cell_options import OPTIONS, Cells
from placer.plan.settings.data.sources import Source

Vocabulary = dict[str, list[str] | dict[str, int]]


def read_options(
    node: SpecNode, source: Source, where: str, problems: Problems
) -> Cells | None:
    """Read the options of a source; None after an error."""
    form = OPTIONS[source.kind]
    good = decode(node, form, where, problems)
    is_complete = len(good) == len(form.__struct_fields__)
    vocabulary = _vocabulary(good.get("vocabulary"), problems)
    if not isinstance(node, MappingNode) or not is_complete or vocabulary is None:
        return None
    options = {key: value for key, value in good.items() if value is not None}
    return problems.make(form, {**options, "vocabulary": vocabulary}, node)


def _vocabulary(section: SpecNode | None, problems: Problems) -> Vocabulary | None:
    """Read the vocabulary of each column. Words are text, even if numeric."""
    if section is None:
        return {}
    expected, hint = "'vocabulary' must be a mapping", "write {COLUMN: [WORD, WORD]}"
    columns = problems.expect(section, MappingNode, expected, hint)
    if columns is None:
        return None
    vocabulary = {name: _words(name, words, problems) for name, words in columns}
    valid = {name: words for name, words in vocabulary.items() if words is not None}
    return valid if len(valid) == len(vocabulary) else None


def _words(
    column: str, node: SpecNode, problems: Problems
) -> list[str] | dict[str, int] | None:
    where = f"the vocabulary of {quote(column)}"
    if isinstance(node, ScalarNode) or not node.value:
        message = f"{where} must be a list of words or a mapping"
        hint = "write [WORD, WORD], or {WORD: 0, WORD: 1}"
        problems.add(message, node.span, hint)
        return None
    written = node.keys.values() if isinstance(node, MappingNode) else node.items
    for each in written:
        if isinstance(each, ScalarNode) and each.text != each.text.strip():
            message = f"{quote(each.text)} in {where} has spaces at its ends"
            hint = "write it without the spaces: spaces around a cell are ignored"
            problems.add(message, each.span, hint)
            return None
    if isinstance(node, MappingNode):
        numbers = {}
        for word, number in node:
            if isinstance(number.value, int) and not isinstance(number.value, bool):
                numbers[word] = number.value
                continue
            expected = f"the number of {quote(word)} must be a whole number"
            problems.add(f"{expected}, not {describe_value(number.value)}", number.span)
        return numbers if len(numbers) == len(node.entries) else None
    listed: dict[str, None] = {}
    for item in node.items:
        if not isinstance(item, ScalarNode):
            actual = describe_value(item.value)
            problems.add(f"a word must be text, not {actual}", item.span)
            return None
        if item.text in listed:
            message = f"{quote(item.text)} is listed twice in {where}"
            problems.add(message, item.span)
            return None
        listed[item.text] = None
    return list(listed)
