"""Ray: a placement group, and an actor for each node.

See `docs/how-to/ray.md` for its use.
"""

from placer.launcher.engines.ray.engine import (
    OPTIONS,
    RESTARTS,
    submit,
    watch,
    write,
)

__all__ = ["OPTIONS", "RESTARTS", "submit", "watch", "write"]
