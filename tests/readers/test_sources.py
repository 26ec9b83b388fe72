"""Sources in a spec, and which column feeds which input."""

import pytest

from placer.errors import DataError
from placer.plan.settings.data.sources import (
    KINDS,
    Source,
    assign_columns,
    check_split,
)
from placer.readers.keys import COLUMNS_OF

DIGITS, DIABETES = Source.parse("sklearn:digits"), Source.parse("sklearn:diabetes")
NPZ, CSV = Source.parse("npz:some/file.npz"), Source.parse("csv:file.csv.gz")


def test_a_source_is_parsed_into_kind_and_path():
    assert (DIGITS.kind, DIGITS.path) == ("sklearn", "digits")
    assert (NPZ.kind, NPZ.path) == ("npz", "some/file.npz")
    assert Source.parse("python:rows:train").path == "rows:train"


def test_every_kind_of_file_has_columns_for_keys():
    assert COLUMNS_OF.keys() == {name for name, kind in KINDS.items() if kind.is_file}


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("digits", "'digits' is not a source", "sklearn:NAME"),
        ("sklaern:digits", "unknown kind of source 'sklaern'", "'sklearn'"),
        ("sklearn:digit", "no bundled data set 'digit'", "did you mean 'digits'?"),
        ("sklearn:covtype", "no bundled data set 'covtype'", "one of: breast_cancer"),
        ("npz:", "'npz:' names no file", "npz:PATH"),
        ("csv:", "'csv:' names no file", "csv:PATH"),
        ("python:rows", "does not name a module and a function", "MODULE.py"),
        ("python:../rows:f", "does not name a module", "python:MODULE:FUNCTION"),
    ],
)
def test_malformed_sources_are_explained(text, message, hint):
    with pytest.raises(DataError) as caught:
        Source.parse(text)
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("source", "inputs", "mapping", "expected"),
    [
        (
            DIGITS,
            {"image": "float32", "label": "int32"},
            None,
            {"image": "data", "label": "target"},
        ),
        (
            DIGITS,
            {"label": "int32", "images": "float32"},
            None,
            {"label": "target", "images": "images"},
        ),
        (
            DIGITS,
            {"image": "float32", "label": "int32"},
            {"image": "images"},
            {"image": "images", "label": "target"},
        ),
        (
            DIABETES,
            {"x": "float32", "y": "float32"},
            {"y": "target"},
            {"x": "data", "y": "target"},
        ),
        (
            DIABETES,
            {"x": "float64", "target": "float64"},
            None,
            {"x": "data", "target": "target"},
        ),
        (
            NPZ,
            {"a": "float32", "b": "float32"},
            {"a": "x"},
            {"a": "x", "b": "b"},
        ),
        (
            CSV,
            {"a": "float32", "b": "float32"},
            {"a": ["x", "y*"]},
            {"a": ["x", "y*"], "b": "b"},
        ),
    ],
)
def test_columns_are_assigned_to_inputs(source, inputs, mapping, expected):
    assert assign_columns(source, inputs, mapping) == expected


@pytest.mark.parametrize(
    ("source", "inputs", "mapping", "message", "hint"),
    [
        (
            DIABETES,
            {"x": "float32", "y": "float32"},
            None,
            "for the float inputs 'x', 'y' is ambiguous",
            "columns: {x: data, y: target}",
        ),
        (
            DIABETES,
            {"x": "float32", "y": "float32"},
            {"x": "data"},
            "for the float input 'y' is ambiguous",
            "columns: {y: target}",
        ),
        (
            DIGITS,
            {"a": "int32", "b": "int32"},
            None,
            "the other inputs 'a', 'b'",
            "columns: {",
        ),
        (
            DIGITS,
            {"image": "float32"},
            {"image": "dat"},
            "sklearn:digits has no column 'dat' for input 'image'",
            "did you mean 'data'?",
        ),
        (
            DIGITS,
            {"image": "float32"},
            {"imag": "data"},
            "'columns' names 'imag', which is not an input",
            "did you mean 'image'?",
        ),
        (
            NPZ,
            {"image": "float32"},
            {"image": ["a", "b"]},
            "a list of columns works with csv:, parquet: and python: sources, not with npz:some/file.npz",
            "name one column",
        ),
    ],
)
def test_ambiguous_columns_raise(source, inputs, mapping, message, hint):
    with pytest.raises(DataError) as caught:
        assign_columns(source, inputs, mapping)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_only_bundled_sets_and_text_files_can_be_split():
    check_split(DIGITS, "train")
    check_split(CSV, "test")
    check_split(NPZ, None)
    with pytest.raises(
        DataError, match="'split' works with csv:, parquet: and sklearn: sources"
    ):
        check_split(NPZ, "train")
    with pytest.raises(DataError, match="unknown split 'tran'") as caught:
        check_split(DIGITS, "tran")
    assert caught.value.hint == "did you mean 'train'?"
