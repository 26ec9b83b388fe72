"""XLA's compiled programs, kept from run to run.

They lie in `placer.memory.caches.user_cache`, apart from any build, one folder for each
version of jaxlib and kind of processor: code for one need not run on another.
"""

from __future__ import annotations

import platform
from hashlib import sha256
from pathlib import Path
from typing import Any

from placer.memory.caches import kept, user_cache


def cache_folder() -> Path | None:
    """The folder that compiled programs are kept in, or None where there is none."""
    from jaxlib.version import __version__

    base = user_cache()
    if base is None:
        return None
    kind = sha256(_processor().encode()).hexdigest()[:12]
    return kept(base / f"xla-{__version__}-{kind}")


def _processor() -> str:
    """What tells kinds of processors apart: the model, and what it can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    told = (line.partition(":") for line in lines.splitlines())
    kept = [v for k, _, v in told if k.strip() in ("model name", "flags", "Features")]
    return f"{platform.machine()} {kept}"


def keep_compiled() -> None:
    """Have JAX keep what it compiles, and look there first.

    Where nothing can be kept JAX compiles again; a folder that JAX was told of stays.
    """
    import jax

    config: Any = jax.config  # which has no types
    folder = cache_folder()
    if folder is None or config.jax_compilation_cache_dir:
        return
    config.update("jax_compilation_cache_dir", str(folder))
    config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    config.update("jax_persistent_cache_min_entry_size_bytes", 0)
