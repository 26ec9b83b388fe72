"""The functions of ops in exported models compute what placer computes."""

import ast

import jax
import pytest
from support.op_cases import ALL, mostly_slow

from placer import ops
from placer.exporting.imports import import_lines
from placer.exporting.op_functions import add_op, copy_op_functions
from placer.ops import registry

EXPORTED = [
    kind
    for kind in registry.kinds()
    if kind not in ("call", "if_training") and not registry.find(kind).inserted
]
"""The kinds whose functions may be in an exported model."""


def source_of(kind, words=()):
    """Return the source of the function of an op, and its name there."""
    copies = copy_op_functions(set(), words)
    name = add_op(copies, kind)
    imports, definitions = copies.definitions()
    head = ["from __future__ import annotations", "", *import_lines(imports)]
    return "\n\n\n".join(["\n".join(head), *definitions]), name


def words_of(use):
    return {value for value in use.attrs.values() if isinstance(value, str)}


@pytest.mark.parametrize("use", mostly_slow(use for use in ALL if use.kind in EXPORTED))
def test_a_copied_function_is_the_same_program_for_xla(use, load_source):
    text, name = source_of(use.kind, words_of(use))
    copied = getattr(load_source(text), name)
    arrays, keywords = use.arrays(), use.keywords()
    wanted = jax.jit(lambda *xs: getattr(ops, use.kind)(*xs, **keywords))
    got = jax.jit(lambda *xs: copied(*xs, **keywords))
    assert got.lower(*arrays).as_text() == wanted.lower(*arrays).as_text()


@pytest.fixture
def load_source(tmp_path, monkeypatch):
    """A function that imports a text as a module."""
    monkeypatch.syspath_prepend(tmp_path)

    def load(text):
        (tmp_path / "copied_functions.py").write_text(text, encoding="utf-8")
        monkeypatch.delitem(__import__("sys").modules, "copied_functions", False)
        return __import__("copied_functions")

    return load


@pytest.mark.parametrize("kind", EXPORTED)
def test_a_copied_function_has_all_that_it_needs_and_no_more(kind):
    text, name = source_of(kind)
    tree = ast.parse(text)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.value.id for node in ast.walk(tree)
             if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}  # fmt: skip
    defined = [
        each.name
        for each in tree.body
        if isinstance(each, ast.FunctionDef | ast.ClassDef)
    ]
    assert len(defined) == len({*defined})
    assert {*defined} - {name} <= used
    assert "placer" not in "".join(
        ast.unparse(each) for each in tree.body if isinstance(each, ast.ImportFrom)
    )
    assert "def backward" not in text
    compile(text, kind, "exec")


def test_only_the_activations_of_the_model_are_copied():
    text, _ = source_of("fc", {"relu"})
    assert "def relu(" in text
    assert "gelu" not in text


def test_functions_of_two_files_with_one_name_get_two_names():
    copies = copy_op_functions({"softmax"}, ())
    assert add_op(copies, "softmax") == "softmax_2"
    assert add_op(copies, "slice") == "slice_2"  # slice is a name of Python
    _, definitions = copies.definitions()
    assert any(text.startswith("def softmax_2(") for text in definitions)
