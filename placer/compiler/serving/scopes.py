"""Finds where the source of a definition refers to global names of its module."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
NewScope = Function | ast.ClassDef | Comprehension
NO_NAMES: frozenset[str] = frozenset()


def global_references(
    node: ast.AST,
    local: frozenset[str] = NO_NAMES,
    enclosing: frozenset[str] = NO_NAMES,
) -> Iterator[ast.Name]:
    """Yield the global names in `node`, in no fixed order.

    Args:
        node: a module, or a part of it.
        local: the names that have another meaning where `node` stands.
        enclosing: the names in `local` that functions in `node` also see. A method does
            not see the names of its class.
    """
    match node:
        case ast.Name():
            if node.id not in local:
                yield node
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            body = node.body if isinstance(node.body, list) else [node.body]
            types = _type_parameters(node)
            enclosing_body = (enclosing | types) - _global_statements(body)
            inside = enclosing_body | _bound_by_function(node)
            yield from _evaluated_outside(node, local, enclosing)
            yield from _in_all(body, inside, inside)
        case ast.ClassDef():
            types = _type_parameters(node)
            inside = (local | types | _bound(node.body)) - _global_statements(node.body)
            yield from _evaluated_outside(node, local, enclosing)
            yield from _in_all(node.body, inside, enclosing | types)
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            first = node.generators[0].iter  # evaluated outside
            inside = enclosing | _bound(each.target for each in node.generators)
            yield from global_references(first, local, enclosing)
            for child in ast.iter_child_nodes(node):
                parts = ast.iter_child_nodes(child)
                within = parts if isinstance(child, ast.comprehension) else [child]
                yield from _in_all(
                    (part for part in within if part is not first), inside, inside
                )
        case _ if types := _type_parameters(node):  # a statement `type`
            parts = ast.iter_child_nodes(node)
            yield from _in_all(parts, local | types, enclosing | types)
        case _:
            yield from _in_all(ast.iter_child_nodes(node), local, enclosing)


def _in_all(
    nodes: Iterable[ast.AST], local: frozenset[str], enclosing: frozenset[str]
) -> Iterator[ast.Name]:
    for node in nodes:
        yield from global_references(node, local, enclosing)


def _evaluated_outside(
    node: Function | ast.ClassDef, local: frozenset[str], enclosing: frozenset[str]
) -> Iterator[ast.Name]:
    """Yield the names in the parts of a definition that do not see its local names."""
    outside: list[ast.AST] = list(getattr(node, "decorator_list", ()))
    typed: list[ast.AST] = []
    for name, value in ast.iter_fields(node):
        if name == "args":
            outside += [d for d in [*value.defaults, *value.kw_defaults] if d]
            parts = (part for part in ast.walk(value) if isinstance(part, ast.arg))
            typed += [part.annotation for part in parts if part.annotation is not None]
        elif name not in ("body", "decorator_list"):
            typed += value if isinstance(value, list) else []
            typed += [value] if isinstance(value, ast.AST) else []
    types = _type_parameters(node)
    yield from _in_all(outside, local, enclosing)
    yield from _in_all(typed, local | types, enclosing | types)


def _type_parameters(node: ast.AST) -> frozenset[str]:
    """Return the type parameters of a definition, since Python 3.12."""
    return frozenset(each.name for each in getattr(node, "type_params", ()))


def _bound_by_function(node: Function) -> frozenset[str]:
    body = node.body if isinstance(node.body, list) else [node.body]
    parts = node.args
    arguments = [*parts.posonlyargs, *parts.args, *parts.kwonlyargs]
    arguments += [each for each in (parts.vararg, parts.kwarg) if each]
    names = frozenset(argument.arg for argument in arguments)
    return names | (_bound(body) - _global_statements(body))


def _bound(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """Return the names that statements or targets bind in their scope."""
    return frozenset(name for node in _same_scope(nodes) for name in _binds(node))


def _global_statements(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """Return the names of `global` statements of a scope."""
    found = (node for node in _same_scope(nodes) if isinstance(node, ast.Global))
    return frozenset(name for node in found for name in node.names)


def _same_scope(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, without the contents of functions and classes."""
    for node in nodes:
        yield node
        if isinstance(node, Comprehension):
            inner = (part for part in ast.walk(node) if isinstance(part, ast.NamedExpr))
            yield from (part.target for part in inner)
        elif not isinstance(node, NewScope):
            yield from _same_scope(ast.iter_child_nodes(node))


def _binds(node: ast.AST) -> list[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.ClassDef(name=name) | ast.MatchStar(name=str(name)):
            return [name]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            return [name]
        case ast.MatchMapping(rest=str(name)):
            return [name]
        case ast.alias():
            return [node.asname or node.name.partition(".")[0]]
    return []
