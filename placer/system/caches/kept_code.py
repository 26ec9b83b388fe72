"""Files of machine code, one for each function and the types of its arguments.

numba's own cache is not safe here. It has one index of numbered files for all functions
at one place in the source, such as kernels for rows of 4 and of 8 columns. Two processes
that compile two of these functions at the same time can both write file 1, and the index
can belong to the other file. One function then runs in place of the other and accesses
memory beyond its arrays.
"""

from __future__ import annotations

import pickle
from contextlib import AbstractContextManager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from numba.core import serialize

from placer.system.caches.turns import PATIENCE, alone

_pickle: Any = serialize  # `serialize` has no type hints.
_DIGEST: Final = 32
"""The bytes at the beginning of a file: the SHA-256 of the rest."""


class KeptCode:
    """The files of a function, in place of the index and the files of numba's cache.

    A key identifies everything that machine code depends on, except `stamp`.

    Args:
        folder: the folder of the files.
        name: the beginning of their names.
        stamp: the versions of numba and of the source.
    """

    def __init__(self, folder: Path, name: str, stamp: Any) -> None:
        self._folder, self._name, self._stamp = folder, name, stamp

    @classmethod
    def in_place_of(cls, files: Any) -> KeptCode:
        """Return an object that replaces numba's files in the same folder."""
        name = files._index_name.removesuffix(".nbi")
        return cls(Path(files._cache_path), name, (files._version, files._source_stamp))

    def alone(self, patience: float = PATIENCE) -> AbstractContextManager[None]:
        """Keep other processes from compiling functions of the folder during the context."""
        return alone(self._folder, patience)

    def load(self, key: Any) -> Any:
        """Return the code for a key; None if it is missing or damaged."""
        try:
            content = self._file(key).read_bytes()
        except OSError:
            return None
        data = content[_DIGEST:]
        if sha256(data).digest() != content[:_DIGEST]:
            return None
        whole, code = pickle.loads(data)
        return code if whole == (self._stamp, key) else None

    def save(self, key: Any, code: Any) -> None:
        """Store the code for a key in place of older code; ignore failures."""
        data = _pickle.dumps(((self._stamp, key), code))
        temporary = self._folder / f".{uuid4().hex}.nbc"
        with suppress(OSError):
            try:
                temporary.write_bytes(sha256(data).digest() + data)
                temporary.replace(self._file(key))
            except OSError:
                temporary.unlink(missing_ok=True)

    def _file(self, key: Any) -> Path:
        digest = sha256(repr((self._stamp, key)).encode()).hexdigest()[:16]
        return self._folder / f"{self._name}.{digest}.nbc"
