"""Ray: a placement group, and an actor for each node.

`docs/ray.md` says how to use it.
"""

from placer.launcher.engines.ray.engine import OPTIONS, submit, watch, write

__all__ = ["OPTIONS", "submit", "watch", "write"]
