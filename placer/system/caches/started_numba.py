"""Makes numba load its own functions and types, when this module is imported.

numba loads them when it compiles a function, or reads one from the cache, for the first time.
This takes a quarter of a second. The fork server imports this module, so its forks share the
result.
"""

from __future__ import annotations

import numba

numba.njit("void()")(lambda: None)
