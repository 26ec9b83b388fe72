"""The names that modules next to a spec cannot have."""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_IMPORTED = frozenset({"__main__", "jax", "jaxlib", "numpy", "placer"})


@cache
def reserved_modules() -> frozenset[str]:
    """Return the top-level modules of Python, placer and the packages that placer
    needs. A node process imports these names, so a user's module of the same name would
    not be found."""
    found = {*sys.stdlib_module_names, *_IMPORTED}
    pending, known = ["placer"], {"placer"}
    while pending:
        try:
            package = distribution(pending.pop())
        except PackageNotFoundError:
            continue  # A requirement of another platform.
        found |= _modules(package)
        for text in package.requires or ():
            needed = _NAME.match(text)
            if needed and "extra ==" not in text and needed[0] not in known:
                known.add(needed[0])
                pending.append(needed[0])
    return frozenset(found)


def _modules(package: Distribution) -> set[str]:
    listed = package.read_text("top_level.txt")
    if listed is not None:
        return {*listed.split()}
    tops = {file.parts[0] for file in package.files or ()}
    modules = {name.removesuffix(".py") for name in tops}
    return {name for name in modules if name.isidentifier() and name != "__pycache__"}
