"""Removes gradients that are written by hand from the source of a function.

`placer/ops/common/gradient_jax.py` has the two ways in which ops define them.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

_PAIRS = ("WithBackward", "Backward")
"""The types whose names say that a function also returns its backward."""


Located = ast.expr | ast.stmt | ast.alias


@dataclass(frozen=True, order=True)
class Edit:
    """Bytes of a text to replace, by their positions."""

    start: int
    stop: int
    text: str = ""


def without_gradients(text: str) -> str:
    """Return the source of a definition that only computes results.

    `differentiable(forward, backward)` becomes a function that calls `forward`. From a
    function that returns a pair of its result and its backward, what only the backward
    needs is removed.
    """
    tree = ast.parse(text)
    match tree.body:
        case [ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call), *_]:
            if _name(call.func) == "differentiable":
                return _forward_of(name, call)
    edits = [
        edit
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and _returns_backward(function)
        for edit in _edits(text, function)
    ]
    if not edits:
        return text
    return _without_unused(apply(text, edits)).rstrip("\n")


def _forward_of(name: str, call: ast.Call) -> str:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    function = given.get("function", call.args[3] if len(call.args) > 3 else None)
    if function is not None:
        return f"{name} = {ast.unparse(function)}"
    match call.args[0]:
        case ast.Lambda(args=arguments, body=ast.Tuple(elts=[result, _])):
            head = f"def {name}({ast.unparse(arguments)}):"
            return f"{head}\n    return {ast.unparse(result)}"
    forward = ast.unparse(call.args[0])
    return f"def {name}(*arguments):\n    return {forward}(*arguments)[0]"


def _returns_backward(function: ast.FunctionDef) -> bool:
    match function.returns:
        case ast.Name(id="WithBackward"):
            return True
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[_, last])):
            return _name(last) == "Backward"
    return False


def _edits(text: str, function: ast.FunctionDef) -> Iterator[Edit]:
    at = Positions(text)
    lines = text.split("\n")
    for decorator in function.decorator_list:
        if _name(decorator) == "with_gradient":
            start = at.line(decorator.lineno)
            yield Edit(start, at.line(decorator.lineno + 1))
    match function.returns:
        case ast.Subscript(slice=ast.Tuple(elts=[first, _])) as returns:
            yield at.edit(returns, at.text(first))
        case ast.Name() as returns:
            yield at.edit(returns, "jax.Array")
    for node in _own_nodes(function):
        match node:
            case ast.Return(value=ast.Tuple(elts=[first, second]) as pair):
                if isinstance(second, ast.Lambda):  # comments before it are about it
                    above = node.lineno
                    while lines[above - 2].lstrip().startswith("#"):
                        above -= 1
                    yield Edit(at.line(above), at.line(node.lineno))
                kept = at.text(first)
                if "\n" in kept and not kept.startswith("("):
                    kept = f"({kept})"
                yield at.edit(pair, kept)


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes of a function, but not those of functions in it."""
    nodes: list[ast.AST] = [*function.body]
    while nodes:
        node = nodes.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            nodes += ast.iter_child_nodes(node)


def _without_unused(text: str) -> str:
    """Return a definition without the variables and inner functions that it does not
    use."""
    while True:
        tree, at = ast.parse(text), Positions(text)
        edits: list[Edit] = []
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            loaded = {
                node.id
                for node in ast.walk(function)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
            }
            for statement in _statements(function):
                names = _assigned(statement)
                if names and loaded.isdisjoint(names):
                    edits.append(at.whole(statement))
        if not edits:
            return text
        text = apply(text, _outermost(edits))


def without_methods(text: str, used: Collection[str]) -> str:
    """Return a class with only the methods and properties whose names are `used`, and
    those that Python calls; any other definition as it is."""
    match ast.parse(text).body:
        case [ast.ClassDef(body=body)]:
            at = Positions(text)
            edits = [
                at.whole(each)
                for each in body
                if isinstance(each, ast.FunctionDef)
                if each.name not in used and not each.name.startswith("__")
            ]
            return apply(text, edits).rstrip("\n")
    return text


def _outermost(edits: Sequence[Edit]) -> list[Edit]:
    return [
        edit
        for edit in dict.fromkeys(edits)
        if not any(
            o != edit and o.start <= edit.start and edit.stop <= o.stop for o in edits
        )
    ]


def _statements(function: ast.FunctionDef) -> Iterator[ast.stmt]:
    for node in ast.walk(function):
        body = getattr(node, "body", None)
        if isinstance(node, ast.ClassDef) or not isinstance(body, list):
            continue
        if len(body) > 1:
            yield from body


def _assigned(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.FunctionDef(name=name):
            return [name]
        case ast.Assign(targets=[ast.Name(id=name)]):
            return [name]
        case ast.Assign(targets=[ast.Tuple(elts=elts)]) if all(
            isinstance(each, ast.Name) for each in elts
        ):
            return [each.id for each in elts if isinstance(each, ast.Name)]
    return []


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


class Positions:
    """The positions of lines and nodes in a text, in bytes of UTF-8."""

    def __init__(self, text: str) -> None:
        self._bytes = text.encode()
        self._lines = [0]
        for line in self._bytes.split(b"\n"):
            self._lines.append(self._lines[-1] + len(line) + 1)

    def line(self, number: int) -> int:
        return self._lines[number - 1]

    def _range(self, node: Located) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self.line(node.lineno) + node.col_offset,
            self.line(node.end_lineno) + node.end_col_offset,
        )

    def text(self, node: Located) -> str:
        start, stop = self._range(node)
        return self._bytes[start:stop].decode()

    def edit(self, node: Located, text: str) -> Edit:
        return Edit(*self._range(node), text)

    def whole(self, statement: ast.stmt) -> Edit:
        """Return the removal of a statement, with its lines, the comments directly
        before it, and the blank lines after a function."""
        assert statement.end_lineno is not None
        decorators = [d.lineno for d in getattr(statement, "decorator_list", ())]
        first, last = min([statement.lineno, *decorators]), statement.end_lineno + 1
        lines = self._bytes.split(b"\n")
        while first > 1 and lines[first - 2].lstrip().startswith(b"#"):
            first -= 1
        if isinstance(statement, ast.FunctionDef):
            while last <= len(lines) and not lines[last - 1].strip():
                last += 1
        return Edit(self.line(first), self.line(last))


def apply(text: str, edits: Sequence[Edit]) -> str:
    """Return a text after edits that do not overlap."""
    content = text.encode()
    for edit in sorted(edits, reverse=True):
        content = content[: edit.start] + edit.text.encode() + content[edit.stop :]
    return content.decode()
