"""Leaves out members and parts of signatures that have no meaning to readers."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def is_hidden(name: str, member: object) -> bool:
    """Return whether a special member is not the user's to call.

    These are `__new__`, and the `__init__` that a class has from its base in C, such as a
    struct of msgspec or an exception.
    """
    return name == "__new__" or (name == "__init__" and not inspect.isfunction(member))


def readable_signature(signature: str) -> str:
    """Return a signature with `...` for defaults that a factory makes."""
    return re.sub(r" ?= ?<factory>", " = ...", signature).replace("~typing.", "")


def setup(app: Sphinx) -> dict[str, object]:
    """Change the members and the signatures that autodoc reads."""

    def skip(
        app: Sphinx, what: str, name: str, obj: object, skip: bool, options: object
    ) -> bool | None:
        return True if is_hidden(name, obj) else None

    def process(
        app: Sphinx,
        what: str,
        name: str,
        obj: object,
        options: object,
        signature: str | None,
        returned: str | None,
    ) -> tuple[str, str | None] | None:
        return None if signature is None else (readable_signature(signature), returned)

    app.connect("autodoc-skip-member", skip)
    app.connect("autodoc-process-signature", process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
