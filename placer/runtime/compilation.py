"""XLA's compiled programs, kept from run to run.

They lie in the user's cache folder, apart from any build, one folder for each version
of jaxlib and kind of processor: code for one need not run on another.
"""

from __future__ import annotations

import os
import platform
from hashlib import sha256
from pathlib import Path
from typing import Any


def cache_folder() -> Path:
    """Where compiled programs are kept: `PLACER_CACHE`, else the user's cache folder."""
    from jaxlib.version import __version__

    given = os.environ.get("PLACER_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    base = Path(given) if given else Path(home) / "placer"
    kind = sha256(_processor().encode()).hexdigest()[:12]
    return base / f"xla-{__version__}-{kind}"


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

    A folder that cannot be written is left out: JAX then compiles again.
    """
    import jax

    folder = cache_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return
    if not os.access(folder, os.W_OK):
        return
    update: Any = jax.config.update  # which has no types
    update("jax_compilation_cache_dir", str(folder))
    update("jax_persistent_cache_min_compile_time_secs", 0.2)
    update("jax_persistent_cache_min_entry_size_bytes", 0)
