"""Copies functions of Python modules as source, with the definitions that they need.

The copies keep their comments and docstrings. They do not import placer: definitions
from placer are copied as well.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path

from placer.compiler.graph.fresh_names import unique_name
from placer.compiler.serving.imports import join_imports
from placer.compiler.serving.scopes import global_references
from placer.errors import PlacerError

Key = tuple[str, str]
"""A definition: the name of its module, and the name of the definition."""

SourceOf = Callable[[str], str | None]
"""Returns the source of a module to copy from; None for a module to import."""


@dataclass(frozen=True)
class Module:
    """The source of a module, and its global names."""

    name: str
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @cached_property
    def statements(self) -> dict[str, ast.stmt]:
        """The statement that defines each global name."""
        found: dict[str, ast.stmt] = {}
        for statement in self.tree.body:
            for name in _defined(statement):
                found[name] = statement
        return found

    def check_complete(self, name: str) -> None:
        """Check that a single statement defines a global name, as copying requires.

        Raises PlacerError if other statements change it, such as `if`, `name[0] = 1`,
        or a second assignment.
        """
        is_defined = False
        for statement in self.tree.body:
            if _is_of_type_checkers(statement):
                continue
            defines = name in _defined(statement)
            if _is_copied(statement):
                assigns = isinstance(statement, ast.Assign | ast.AnnAssign)
                is_changed = is_defined and defines and assigns
            else:
                is_changed = name in _all_names(statement)
            is_defined |= defines
            if is_changed:
                raise PlacerError(
                    f"'{self.name}.{name}' cannot be exported: line"
                    f" {statement.lineno} of {self.name} changes it, or defines it"
                    " under a condition",
                    hint=f"define {name} in one statement at the top level of the module",
                )

    def text(self, statement: ast.stmt) -> str:
        """Return a statement's source, with the comments before and a string after it."""
        lines = self.source.splitlines()
        first = min([statement.lineno, *_decorator_lines(statement)]) - 1
        while first > 0 and lines[first - 1].startswith("#"):
            first -= 1
        last = statement.end_lineno or statement.lineno
        at = self.tree.body.index(statement)
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            for after in self.tree.body[at + 1 : at + 2]:
                if _is_string(after):
                    last = after.end_lineno or last
        return "\n".join(lines[first:last])


@dataclass
class Copies:
    """Definitions to copy into one file.

    Attributes:
        source_of: returns the source of a module to copy from (`SourceOf`).
        used: names in the file that copies must not take.
        replacements: definitions to copy instead of the module's own.
    """

    source_of: SourceOf
    used: set[str]
    replacements: Mapping[Key, str] = field(default_factory=dict)
    _modules: dict[str, Module] = field(default_factory=dict)
    _imports: set[str] = field(default_factory=set)
    _roots: dict[Key, None] = field(default_factory=dict)
    _texts: dict[Key, str] = field(default_factory=dict)
    _names: dict[Key, str] = field(default_factory=dict)

    def add(self, module: str, name: str) -> str:
        """Copy a definition and its dependencies; return its name in the file."""
        key = self._resolve(module, name)
        assert key is not None, f"{module} has no {name}"
        if isinstance(key, str):
            self._imports.add(key)
            return name
        self._roots[key] = None
        self._add(key)
        return self._names[key]

    def _add(self, key: Key) -> None:
        if key in self._names:
            return
        module, name = key
        text = self.replacements.get(key)
        if text is None:
            found = self._module(module)
            text = found.text(found.statements[name])
        same = [k for k, t in self._texts.items() if k[1] == name and t == text]
        self._texts[key] = text
        if same:  # such as `Pair = tuple[…]`
            self._names[key] = self._names[same[0]]
        else:
            taken = self.used | {*dir(builtins)}
            self._names[key] = unique_name(name, taken, "_", first=2)
            self.used.add(self._names[key])
        for needed in self._needs(key).values():
            if isinstance(needed, tuple):
                self._add(needed)

    def _needs(self, key: Key) -> dict[str, Key | str]:
        """Return the definitions and imports that a definition needs from its module."""
        found = {
            used: self._resolve(key[0], used) for used in _used_names(self._texts[key])
        }
        return {n: need for n, need in found.items() if need not in (None, key)}

    def _resolve(self, module: str, name: str) -> Key | str | None:
        """Return the definition or import of a name of a module; None for a built-in."""
        if (module, name) in self.replacements:
            return module, name
        if self.source_of(module) is None:  # of a replacement
            return None
        statement = self._module(module).statements.get(name)
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            self._module(module).check_complete(name)
        match statement:
            case None:
                return None
            case ast.ImportFrom(module=str(origin), names=names):
                (alias,) = (a for a in names if (a.asname or a.name) == name)
                if (origin, alias.name) in self.replacements or self.source_of(origin):
                    return self._resolve(origin, alias.name)
                return f"from {origin} import {_imported(alias)}"
            case ast.Import(names=names):
                (alias,) = (a for a in names if _bound(a) == name)
                return f"import {_imported(alias)}"
        return module, next(iter(_defined(statement)))

    def _module(self, name: str) -> Module:
        if name not in self._modules:
            source = self.source_of(name)
            assert source is not None, name
            self._modules[name] = Module(name, source)
        return self._modules[name]

    def definitions(self) -> tuple[list[str], list[str]]:
        """Return the imports, and the definitions in the order of their dependencies."""
        live = [*_ordered(self._roots, self._needed_definitions)]
        imports = self._imports | {
            need
            for key in live
            for need in self._needs(key).values()
            if isinstance(need, str)
        }
        texts = dict.fromkeys(
            map(self._renamed, live)
        )  # equal definitions are copied once
        return join_imports(imports), [*texts]

    def _needed_definitions(self, key: Key) -> list[Key]:
        return [need for need in self._needs(key).values() if isinstance(need, tuple)]

    def _renamed(self, key: Key) -> str:
        names = {key[1]: self._names[key]}
        for used, need in self._needs(key).items():
            if isinstance(need, tuple) and used not in _names_of(self._texts[need]):
                names[used] = self._names[need]  # imported under another name
            elif isinstance(need, tuple) and need[1] == used:
                names[used] = self._names[need]
        return rename(
            self._texts[key], {old: new for old, new in names.items() if old != new}
        )


def _names_of(text: str) -> list[str]:
    return [name for statement in ast.parse(text).body for name in _defined(statement)]


def _imported(alias: ast.alias) -> str:
    return f"{alias.name} as {alias.asname}" if alias.asname else alias.name


def _ordered(
    roots: Iterable[Key], needs: Callable[[Key], Iterable[Key]]
) -> Iterator[Key]:
    """Yield definitions in dependency order, except for functions that call each other."""
    done: set[Key] = set()

    def visit(key: Key) -> Iterator[Key]:
        if key not in done:
            done.add(key)
            for needed in needs(key):
                yield from visit(needed)
            yield key

    for key in roots:
        yield from visit(key)


def _is_copied(statement: ast.stmt) -> bool:
    """Return True if a statement only defines names, or does nothing."""
    match statement:
        case ast.FunctionDef() | ast.ClassDef() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Assign(targets=targets):
            return all(
                isinstance(each, ast.Name)
                for target in targets
                for each in (target.elts if isinstance(target, ast.Tuple) else [target])
            )
        case ast.AnnAssign(target=ast.Name()):
            return True
    return _is_string(statement)


def _is_of_type_checkers(statement: ast.stmt) -> bool:
    """Return True for `if TYPE_CHECKING:` and `if __name__ == "__main__":`."""
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id in ("TYPE_CHECKING", "__name__")
        for node in ast.walk(statement.test)
    )


def _all_names(statement: ast.stmt) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.stmt):
            found.update(_defined(node))
    return found


def _defined(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            for target in targets:
                yield from _target_names(target)
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from map(_bound, names)


def _target_names(target: ast.expr) -> Iterator[str]:
    for each in target.elts if isinstance(target, ast.Tuple) else [target]:
        if isinstance(each, ast.Name):
            yield each.id


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _decorator_lines(statement: ast.stmt) -> Iterable[int]:
    return [d.lineno for d in getattr(statement, "decorator_list", ())]


def _is_string(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _used_names(text: str) -> Iterable[str]:
    """Return the names that a definition uses of its module, in order."""
    return dict.fromkeys(name.id for name in global_references(ast.parse(text)))


def rename(text: str, names: dict[str, str]) -> str:
    """Return a definition with other names for itself and for the names that it uses."""
    if not names:
        return text
    tree = ast.parse(text)
    lines = text.encode().split(b"\n")
    places = [
        (node.lineno, node.col_offset, node.id)
        for node in global_references(tree)
        if node.id in names
    ]
    for statement in tree.body:
        match statement:
            case ast.FunctionDef(name=name, lineno=line) if name in names:
                places.append((line, len("def "), name))
            case ast.ClassDef(name=name, lineno=line) if name in names:
                places.append((line, len("class "), name))
    for line, column, old in sorted(places, reverse=True):
        row, size = lines[line - 1], len(old.encode())
        lines[line - 1] = row[:column] + names[old].encode() + row[column + size :]
    return b"\n".join(lines).decode()


def copies_of_placer(used: set[str]) -> Copies:
    """Return copies of definitions of placer, for a file that has these names."""
    return Copies(_source_of, used)


@cache
def _source_of(module: str) -> str | None:
    if not module.startswith("placer."):
        return None
    found = find_spec(module)
    assert found is not None, module
    assert found.origin is not None, module
    return Path(found.origin).read_text(encoding="utf-8")
