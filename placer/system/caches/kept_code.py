"""Files of machine code, one for each function and the types of its arguments.

numba's own cache has an index of numbered files for all functions of one place in the
source, such as those of tables with rows of 4 and of 8 columns. Two processes that compile
two of them at the same time can both write the file with the first number, and one of them
the index of the other: from then on one function ran in place of the other, beyond the
ends of its arrays.
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

_pickle: Any = serialize  # it has no type hints
_DIGEST: Final = 32
"""The bytes at the beginning of a file: the SHA-256 of the rest."""


class KeptCode:
    """The files of a function. It replaces the index and the files of numba's own cache.

    A key tells apart all that machine code depends on, but for `stamp`.

    Args:
        folder: the folder of the files.
        name: what their names begin with.
        stamp: the version of numba, and that of the source.
    """

    def __init__(self, folder: Path, name: str, stamp: Any) -> None:
        self._folder, self._name, self._stamp = folder, name, stamp

    @classmethod
    def in_place_of(cls, files: Any) -> KeptCode:
        """Return the files in the folder of numba's own ones."""
        name = files._index_name.removesuffix(".nbi")
        return cls(Path(files._cache_path), name, (files._version, files._source_stamp))

    def alone(self, patience: float = PATIENCE) -> AbstractContextManager[None]:
        """Keep other processes from compiling functions of the folder meanwhile."""
        return alone(self._folder, patience)

    def load(self, key: Any) -> Any:
        """Return what is kept for a key; None if that is nothing, or damaged."""
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
        """Keep code for a key, in place of what is there; nothing where that fails."""
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
