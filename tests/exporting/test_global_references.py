"""The names that the source of a definition takes from its module."""

import argparse
import ast
import dataclasses
import enum
import inspect
import symtable
import typing

import pytest

from placer.compiler.serving.scopes import global_references

OF_ALL_SCOPES = """\
def made(x: Row, *rest, size=Size, **others: Row):
    first = [limit for limit in x if limit > floor]
    second = (limit for limit in limits(x) if (last := limit))

    class Inner(Base):
        scale = 2
        twice = scale

        def scaled(self):
            return scale * last

    match x:
        case [head, *tail] if head in tails:
            return tail
        case {"a": Row(a), **more}:
            return a, more, first, second
    try:
        import os.path as path
    except Error as error:
        return lambda size: size + error + path + counter
    global counter
    counter = rest
"""


def names(text: str) -> set[str]:
    return {name.id for name in global_references(ast.parse(text))}


def names_of_python(table: symtable.SymbolTable) -> set[str]:
    """Return the same by the scopes of Python's own compiler."""
    found = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_global() or table.get_type() == "module"
        if symbol.is_referenced() or symbol.is_declared_global()
    }
    return found.union(*map(names_of_python, table.get_children()))


def test_names_of_a_scope_are_not_those_of_the_module_with_the_same_name():
    of_annotations = {"Row"}
    wanted = {"Size", "floor", "limits", "Base", "scale", "tails", "Error", "counter"}
    assert names(OF_ALL_SCOPES) == wanted | of_annotations


def test_a_name_can_be_local_in_one_function_and_global_in_another():
    text = "def outer():\n  def a(scale): return scale\n  def b(): return scale\n"
    assert names(text) == {"scale"}


@pytest.mark.parametrize("module", [argparse, dataclasses, enum, inspect, typing, ast])
def test_scopes_are_those_of_python(module):
    definitions = ast.parse(inspect.getsource(module)).body
    for definition in definitions:
        if isinstance(definition, ast.FunctionDef | ast.ClassDef):
            text = ast.unparse(definition)
            table = symtable.symtable(text, module.__name__, "exec")
            assert names(text) == names_of_python(table) - {"__class__"}, text
