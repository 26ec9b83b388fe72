"""A digest of what Python source computes."""

import ast

import pytest

from placer.runtime.saving.code_digest import code_digest

SOURCE = '''\
"""A module."""
import jax as j
from . import ops


@j.jit
def step(node, /, x, *rest, rate: float = -0.5, **more):
    """Take a step."""
    y = x[1:, ::2] @ x.T + 3  # of all rows
    total = "ab" f"{y!r:>{rate:.3f}}" + u"c"
    if not (rest and more) or y is None:
        return {**more, "y": [*rest, 1j, b"d", 0xFF]}
    match x:
        case [ops.Fc(w=1.0), None, *_] if (n := len(x)) > 2:
            y = lambda a, b=n: (a for a in b if a != ...)
        case _:
            pass
    try:
        with open(total) as f, f:
            global g
            del y.z
    except* (OSError, ValueError) as error:
        raise RuntimeError from error
    return y


class Table(NamedTuple, metaclass=type):
    w: list[int] = []
    "Weights."

    async def read(self):
        async with self as me:
            yield await me
'''


def test_all_versions_of_python_have_the_same_digest():
    """A run that is saved with one version may continue with another."""
    assert code_digest(SOURCE.encode()) == (
        "210cc8c886a391e824b7442e13123c445a5dec1c86107eda136e3f06d4c7c144"
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# of all rows", "# of some"),
        ('"""Take a step."""\n', "'''Do\n    more.'''\n"),
        ('    """Take a step."""\n', ""),
        ('    "Weights."\n', "\n\n"),
        ("x[1:, ::2] @ x.T + 3", "(\n        x[1 : , ::2]@x.T\n    ) + 3"),
        ("0xFF", "255"),
        ('u"c"', "'c'"),
        ("metaclass=type)", "metaclass=type,\n)"),
        ("\n", "\r\n"),
    ],
)
def test_comments_docstrings_and_layout_do_not_change_it(old, new):
    assert old in SOURCE
    changed = SOURCE.replace(old, new)
    assert code_digest(changed.encode()) == code_digest(SOURCE.encode())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("+ 3", "+ 4"),
        ("+ 3", "- 3"),
        ("1.0", "1"),
        ("1.0", "True"),
        ("-0.5", "0.5"),
        ("[1:, ::2]", "[:1, ::2]"),
        ("(a for a in b", "(b for a in b"),
        ('b"d"', '"d"'),
        ("None, *_", "True, *_"),
        ("            pass\n", "            y = None\n"),
        ("            del y.z\n", ""),
        ("[*rest, 1j", "[rest, 1j"),
        ("@j.jit\n", ""),
        (" from error", ""),
        ('"y": [', '"": ['),
        ("async with", "with"),
        (">{rate:.3f}", ">{rate:.4f}"),
        ("def step", "def steps"),
    ],
)
def test_another_number_name_or_statement_changes_it(old, new):
    assert old in SOURCE
    changed = SOURCE.replace(old, new, 1)
    ast.parse(changed)
    assert code_digest(changed.encode()) != code_digest(SOURCE.encode())


def test_source_that_this_python_cannot_parse_is_compared_as_text():
    assert code_digest(b"x = (") == code_digest(b"x = (")
    assert code_digest(b"x = (") != code_digest(b"x = ( ")


def test_a_sum_of_many_terms_is_no_error():
    terms = ["x"] * 1500
    assert code_digest("+".join(terms).encode()) != code_digest(b"x")


def test_a_body_of_a_docstring_alone_is_an_empty_one():
    assert code_digest(b'"""Doc."""\n') == code_digest(b"")


def test_a_warning_of_the_parser_is_told_where_the_file_is_imported():
    """Warnings are errors in tests, and the digest would be that of the text."""
    assert code_digest(b'x = "\\d"\n') == code_digest(b'# Same.\nx = "\\d"\n')
