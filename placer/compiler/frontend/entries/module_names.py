"""The names that modules next to a spec cannot have."""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution

from placer.system.distribution import own_distribution, top_level_modules

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_IMPORTED = frozenset({"__main__", "jax", "jaxlib", "numpy", "placer"})


@cache
def reserved_modules() -> frozenset[str]:
    """Return the top-level modules of Python, placer and the packages that placer
    needs. A node process imports these names, so a user's module of the same name would
    not be found."""
    found = {*sys.stdlib_module_names, *_IMPORTED}
    own = own_distribution()
    pending = [] if own is None else [own.name]
    known = {*pending}
    while pending:
        try:
            package = distribution(pending.pop())
        except PackageNotFoundError:
            continue  # A requirement of another platform.
        found |= top_level_modules(package)
        for text in package.requires or ():
            needed = _NAME.match(text)
            if needed and "extra ==" not in text and needed[0] not in known:
                known.add(needed[0])
                pending.append(needed[0])
    return frozenset(found)
