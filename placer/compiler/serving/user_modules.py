"""Exports the user's modules, so that they work without placer.

A module is copied unchanged, unless it imports placer, such as for guards in a traced
function. Then only the functions that the model needs are copied, with guards that have
no effect.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Mapping
from sys import stdlib_module_names

from placer.compiler.graph.fresh_names import unique_name
from placer.compiler.serving.definitions import Copies, Module
from placer.compiler.serving.edits import Edit, Positions, apply
from placer.compiler.serving.imports import import_lines
from placer.errors import PlacerError

_GUARD = '''\
def {name}(*_):
    """Return a context that does nothing: an exported model has no places."""
    from contextlib import nullcontext

    return nullcontext()'''
"""It uses no name of the module, because the module may define any name."""
OWN_MODULES = ("model", "ops", "params", "prepare", "tables", "postprocess", "served")
"""The modules that an exported model itself has, or may have."""
_GUARDS = ("place_guard", "device_guard")


def copy_modules(
    functions: Iterable[str], exported: Mapping[str, str], read: Callable[[str], str]
) -> dict[str, str]:
    """Return the texts of the modules that functions need, by name.

    Args:
        functions: the used names of the modules, as MODULE:NAME.
        exported: the modules of the spec, each with its name next to the model. Modules
            that no function needs are left out.
        read: returns the text of a module.

    Raises:
        PlacerError: if a function needs more of placer than its guards.
    """
    modules = {*exported}
    pending: dict[str, dict[str, None]] = {}
    for function in functions:
        module, _, name = function.partition(":")
        pending.setdefault(module, {})[name] = None
    texts: dict[str, str] = {}
    done: dict[str, dict[str, None]] = {}
    while pending:
        module, names = pending.popitem()
        names = {**done.get(module, {}), **names}
        if module in texts and names.keys() == done[module].keys():
            continue
        done[module], source = names, read(module)
        texts[module] = source
        if _imports(source, "placer"):
            texts[module] = _without_placer(module, source, [*names])
        for needed, used in _uses(texts[module], modules).items():
            pending.setdefault(needed, {}).update(dict.fromkeys(used))
    return {
        exported[name]: _renamed(text, {each: exported[each] for each in texts})
        for name, text in texts.items()
    }


def packages_of(modules: Mapping[str, str]) -> set[str]:
    """Return the third-party packages that modules import."""
    imported = {
        module.partition(".")[0]
        for text in modules.values()
        for node in ast.walk(ast.parse(text))
        for module in _imported_modules(node)
    }
    return imported - stdlib_module_names - {*modules}


def exported_names(modules: Collection[str]) -> dict[str, str]:
    """Return a unique file name for each module in the folder of the model."""
    used = {*OWN_MODULES, *modules}
    return {
        name: unique_name(f"user_{name}", used, "_", first=2)
        if name in OWN_MODULES
        else name
        for name in modules
    }


def _renamed(text: str, exported: Mapping[str, str]) -> str:
    """Return a module that imports other modules by their exported names."""
    new = {name: other for name, other in exported.items() if name != other}
    at = Positions(text)
    edits: list[Edit] = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ImportFrom(module=str(module), level=0) if module in new:
                whole = at.text(node)
                edits.append(at.edit(node, whole.replace(module, new[module], 1)))
            case ast.Import(names=names):
                for alias in names:
                    if alias.name in new:
                        name = alias.asname or alias.name
                        edits.append(at.edit(alias, f"{new[alias.name]} as {name}"))
    return apply(text, edits) if edits else text


def _imports(source: str, package: str) -> bool:
    return any(
        name.partition(".")[0] == package
        for node in ast.walk(ast.parse(source))
        for name in _imported_modules(node)
    )


def _imported_modules(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), level=0):
            return [module]
    return []


def _uses(source: str, modules: Iterable[str]) -> dict[str, list[str]]:
    """Return the names that a module imports from others; all names for the module."""
    uses: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse(source)):
        for module in _imported_modules(node):
            if module in modules:
                aliases = node.names if isinstance(node, ast.ImportFrom) else []
                uses.setdefault(module, []).extend(alias.name for alias in aliases)
    return uses


def _without_placer(module: str, source: str, names: list[str]) -> str:
    guards = {("placer", name): _GUARD.format(name=name) for name in _GUARDS}
    statements = Module(module, source).statements
    imported = {
        name
        for name, statement in statements.items()
        if _imported_modules(statement) not in ([], ["placer"])
    }
    copies = Copies({module: source}.get, imported, guards)
    for name in names or statements:
        copies.add(module, name)
    imports, definitions = copies.definitions()
    for line in imports:
        if line.split()[1].partition(".")[0] == "placer":
            raise PlacerError(
                f"{module}.py cannot be exported: the model uses '{line}' of it",
                hint="exported functions may use only guards of placer, imported by"
                " name: from placer import place_guard",
            )
    text = "\n\n\n".join(definitions)
    tree = ast.parse(source)
    head = [f"# The definitions of {module}.py that the model uses, without places."]
    if any(_imported_modules(node) == ["__future__"] for node in tree.body):
        head += ["", "from __future__ import annotations"]
    return "\n".join([*head, "", *import_lines(imports), "", "", text]) + "\n"
