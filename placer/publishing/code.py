"""Writes the code of a model to a folder of publications, once.

`code.json` has the SHA-256 of each file of the model: the reader checks them, and that all
publications have the same code. The reader itself, `served.py`, does not count.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from placer.errors import CheckpointError
from placer.publishing.manifest import Publication
from placer.system.files.atomic import atomic_file

CODE: Final = "code.json"
UNCOUNTED: Final = ("README.md", "params.py", "served.py")
"""Files that are not part of the model: a newer version of placer may replace them."""


def code_of(files: Mapping[str, bytes]) -> bytes:
    """Return the content of code.json."""
    digests = {
        name: hashlib.sha256(files[name]).hexdigest()
        for name in sorted(files)
        if name not in UNCOUNTED
    }
    return json.dumps({"files": digests}, indent=1).encode() + b"\n"


def prepare_code(
    folder: Path, files: Mapping[str, bytes], publications: Iterable[Publication]
) -> str:
    """Write the code of a model to a folder, once; return the digest of the code.

    Args:
        folder: the folder of publications.
        files: the content of each file, by its path in the folder.
        publications: the publications of the folder.

    Raises:
        CheckpointError: if the folder has the code of another model, or a file of the user's
            with the name of one, or cannot be written.
    """
    code = code_of(files)
    digest = hashlib.sha256(code).hexdigest()
    if others := [each for each in publications if each.code != digest]:
        raise CheckpointError(
            f"'{folder}' has publications of another model: {_difference(folder, files)}"
            f" ({others[-1].folder} of step {others[-1].step})",
            hint="publish to another folder; a folder takes one model, with one vocabulary",
        )
    try:
        is_new = not (folder / CODE).exists()
        for name, content in {**files, CODE: code}.items():
            path = folder / name
            if path.is_file() and path.read_bytes() == content:
                continue
            if is_new and os.path.lexists(path):
                raise CheckpointError(
                    f"'{path}' would be replaced: '{folder}' is not a folder of"
                    " publications",
                    hint="publish to a new folder",
                )
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(path, 0o644) as file:
                file.write(content)
    except OSError as error:
        raise CheckpointError(
            f"'{folder / name}' cannot be written: {error.strerror}"
        ) from error
    return digest


def _difference(folder: Path, files: Mapping[str, bytes]) -> str:
    """Return the first file that differs, as text."""
    for name in sorted(files):
        if name not in UNCOUNTED:
            path = folder / name
            if not path.is_file() or path.read_bytes() != files[name]:
                return f"{name} differs"
    return "its code had other files"
