"""Sets the number of threads of OpenBLAS, which numpy uses to multiply matrices.

OpenBLAS starts its threads when it is loaded, one for each core except the first.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final

VARIABLE: Final = "OPENBLAS_NUM_THREADS"
"""The environment variable with the number of OpenBLAS threads."""
_FUNCTIONS: Final = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)
"""The names of the function in the builds of numpy's packages, and in other builds."""


def set_blas_threads(count: int) -> None:
    """Set the number of threads of all OpenBLAS libraries in this process."""
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
