"""Kubernetes: a JobSet, or an Indexed Job for each kind of node.

See `docs/how-to/kubernetes.md` for its use.
"""

from placer.launcher.engines.kubernetes.engine import (
    OPTIONS,
    RESTARTS,
    submit,
    watch,
    write,
)

__all__ = ["OPTIONS", "RESTARTS", "submit", "watch", "write"]
