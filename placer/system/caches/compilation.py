"""The persistent cache of programs that XLA has compiled.

The cache is in `placer.system.caches.folder.user_cache` and not part of a build. Each
version of jaxlib and each kind of processor has a separate folder, because code for one
may not run on another.
"""

from __future__ import annotations

import platform
from hashlib import sha256
from pathlib import Path
from typing import Any

from placer.system.caches.folder import usable_folder, user_cache
from placer.system.caches.shared_programs import share_programs


def cache_folder() -> Path | None:
    """Return the folder of compiled programs, or None if it cannot be used."""
    from jaxlib.version import __version__

    base = user_cache()
    return usable_folder(base and base / f"xla-{__version__}-{processor()}")


def processor() -> str:
    """Return a digest of the processor's model and features."""
    return sha256(_describe_processor().encode()).hexdigest()[:12]


def _describe_processor() -> str:
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
    """Let JAX store compiled programs and reuse them. If several processes need the
    same program, only one compiles it. Does nothing without a cache folder, or if the
    user has configured one in JAX."""
    import jax

    config: Any = jax.config  # `config` has no type hints.
    folder = cache_folder()
    if folder is None or config.jax_compilation_cache_dir:
        return
    share_programs()
    config.update("jax_compilation_cache_dir", str(folder))
    # Many small programs take as long as a large one, and all nodes with the same
    # programs would wait.
    config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    config.update("jax_persistent_cache_min_entry_size_bytes", 0)
