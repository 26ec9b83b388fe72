"""One lock for whoever has Python build syntax trees, as numpy does for a header.

Nodes may be threads of one process, and CPython 3.11 raises a SystemError now and then
when two threads build trees at once (python/cpython issue 106905).
"""

from threading import Lock

AST_LOCK = Lock()
