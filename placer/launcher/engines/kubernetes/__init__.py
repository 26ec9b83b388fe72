"""Kubernetes: a JobSet, or an Indexed Job for each kind of node.

`docs/kubernetes.md` says how to use it.
"""

from placer.launcher.engines.kubernetes.engine import OPTIONS, submit, watch, write

__all__ = ["OPTIONS", "submit", "watch", "write"]
