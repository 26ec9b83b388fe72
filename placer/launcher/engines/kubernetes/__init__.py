"""Kubernetes: a JobSet, or an Indexed Job for each kind of node.

See `docs/how-to/kubernetes.md` for its use.
"""

from placer.launcher.engines.kubernetes.engine import OPTIONS, submit, watch, write

__all__ = ["OPTIONS", "submit", "watch", "write"]
