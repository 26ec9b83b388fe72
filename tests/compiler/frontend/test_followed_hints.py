"""A hint that says what to write is accepted where it is followed."""

import re
from pathlib import Path

import pytest

from placer.compiler.frontend import load_text
from placer.errors import SpecError, SpecErrors

SPEC = """\
name: small
nodes: {worker: {count: 2}, ps: {count: 1}}
inputs: {x: "float32[batch, 4]", y: "int32[batch]"}
data:
  train: {source: "npz:rows.npz", batch: 8}
  eval: {source: "npz:rows.npz"}
graph:
  - {name: h, op: fc, in: x, size: 3, place: /node:worker}
  - {name: loss, op: softmax_cross_entropy, in: [h, y]}
predict: {outputs: [h]}
train:
  minimize: loss
  metrics: [loss]
  epochs: 2
  eval: {every: epoch}
  optimizer: {op: sgd, learning_rate: 0.1, place: /node:ps/cpu}
"""
VALUES = ("true", "0", "-1", "2.5", "1e9", "null", "word", "[3]", "{a: 1}", '"2"')
PARTS = {"unknown_dtype", "unknown_source", "early_stopping_with_wrong_values"}
"""Cases whose hint is about a part of the value at the caret, or a key that the mapping
has, too."""
CASES = sorted(
    path
    for path in (Path(__file__).parent / "invalid").glob("*.txt")
    if path.stem not in PARTS
)
_FORMS = (
    re.compile(r"did you mean '(.+)'\?"),
    re.compile(r"write (?:for example )?(\{.+\}|\[[^ ]+\]|\"?\w+\[.+\]\"?)"),
)


def errors_of(text, folder):
    try:
        load_text(text, "model.yaml", folder)
    except SpecErrors as errors:
        return list(errors.errors)
    except SpecError as error:
        return [error]
    return []


def follow(text, error):
    """Return the text with what the hint of an error says in the place of the caret;
    None for a hint of another form."""
    forms = (form.fullmatch(error.hint or "") for form in _FORMS)
    match = next(filter(None, forms), None)
    if match is None or error.span is None:
        return None
    lines, span = text.splitlines(), error.span
    line, start = lines[span.line - 1], span.column - 1
    lines[span.line - 1] = line[:start] + match[1] + line[start + span.length :]
    return "\n".join(lines) + "\n"


def check_followed(text, folder):
    """Check the hints of all errors of a spec; return how many could be followed."""
    count = 0
    for error in errors_of(text, folder):
        if (followed := follow(text, error)) is not None:
            count += 1
            at = error.span.line, error.span.column
            for other in errors_of(followed, folder):
                assert (other.span.line, other.span.column) != at, (error, other)
    return count


def wrong_specs():
    """Return the spec with each value of it replaced by each of `VALUES`."""
    scalars = re.finditer(r"(?<=: )(?:\"[^\"]*\"|\[[^\]]*\]|[^\s{}\[\],]+)", SPEC)
    nodes = re.finditer(r"\{count: \d\}", SPEC)
    for match in (*scalars, *nodes):
        for value in VALUES:
            yield SPEC[: match.start()] + value + SPEC[match.end() :]


def test_the_spec_is_valid(tmp_path):
    assert errors_of(SPEC, tmp_path) == []


def test_followed_hints_are_accepted(tmp_path):
    assert sum(check_followed(text, tmp_path) for text in wrong_specs()) > 20


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_followed_hints_of_invalid_specs_are_accepted(case, tmp_path):
    spec, _ = case.read_text(encoding="utf-8").split("---- expected\n")
    check_followed(spec, tmp_path)
