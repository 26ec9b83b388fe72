"""The threads of OpenBLAS, with which numpy multiplies matrices.

It starts them when it is loaded, one for each core but the first.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final

VARIABLE: Final = "OPENBLAS_NUM_THREADS"
"""The environment variable with the number of threads, as OpenBLAS reads it."""
_FUNCTIONS: Final = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)
"""The names in the builds of numpy's packages and of others."""


def set_blas_threads(count: int) -> None:
    """Let the OpenBLAS libraries that this process has loaded use so many threads."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[-1] for line in lines if "openblas" in line}
    for path in sorted(paths):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for name in _FUNCTIONS:
            if function := getattr(library, name, None):
                function(ctypes.c_int(count))
                break
