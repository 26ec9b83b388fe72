"""Observes the operations that change files of a folder, before each is done."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

CHANGING = ("mkdir", "open", "write", "fsync", "rename", "replace", "symlink", "unlink")


@contextmanager
def before_operations(
    folder: Path, call: Callable[[str, Path], None]
) -> Iterator[None]:
    """Call `call(name, path)` before each operation in a folder, such as `rename`.

    Operations and calls come one after another, from any thread; what a call raises,
    the operation raises. A file that is only read does not count.
    """
    lock = threading.RLock()

    def path_of(target: Any) -> Path:
        if isinstance(target, int):
            target = os.readlink(f"/proc/self/fd/{target}")
        return Path(os.fsdecode(target))

    def observed(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(target: Any, *rest: Any, **options: Any) -> Any:
            reads = name == "open" and not rest[0] & (os.O_CREAT | os.O_TMPFILE)
            # The target of `symlink` is the text of the link.
            path = path_of(rest[0] if name == "symlink" else target)
            if not path.is_relative_to(folder) or reads:
                return real(target, *rest, **options)
            with lock:
                call(name, path)
                return real(target, *rest, **options)

        return operation

    patches = [patch.object(os, n, observed(n, getattr(os, n))) for n in CHANGING]
    # It removes files by their names in an open folder.
    patches.append(patch.object(shutil, "rmtree", observed("rmtree", shutil.rmtree)))
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()
