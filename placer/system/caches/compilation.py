"""The persistent cache of programs that XLA has compiled.

It is in `placer.system.caches.folder.user_cache`, apart from any build, with one folder for
each version of jaxlib and each kind of processor: code for one may not run on another.
"""

from __future__ import annotations

import platform
from hashlib import sha256
from pathlib import Path
from typing import Any

from placer.system.caches.folder import usable_folder, user_cache
from placer.system.caches.shared_programs import share_programs


def cache_folder() -> Path | None:
    """Return the folder of compiled programs, or None where there can be none."""
    from jaxlib.version import __version__

    base = user_cache()
    return usable_folder(base and base / f"xla-{__version__}-{processor()}")


def processor() -> str:
    """Return a digest of the model of the processor and its features."""
    return sha256(_describe_processor().encode()).hexdigest()[:12]


def _describe_processor() -> str:
    """Return what distinguishes kinds of processors: the model and its features."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    entries = (line.partition(":") for line in lines.splitlines())
    features = [
        v for k, _, v in entries if k.strip() in ("model name", "flags", "Features")
    ]
    return f"{platform.machine()} {features}"


def keep_compiled() -> None:
    """Let JAX store what it compiles, and look there before it compiles; of processes that
    need the same program, one compiles it.

    Does nothing where there is no cache folder, or where JAX has been configured with
    one already.
    """
    import jax

    config: Any = jax.config  # it has no type hints
    folder = cache_folder()
    if folder is None or config.jax_compilation_cache_dir:
        return
    share_programs()
    config.update("jax_compilation_cache_dir", str(folder))
    # Many small programs take as long as a large one, and equal nodes wait for each.
    config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    config.update("jax_persistent_cache_min_entry_size_bytes", 0)
