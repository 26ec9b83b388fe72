"""A lock for code that builds Python syntax trees, as numpy does to read a header.

Nodes may be threads of one process, and CPython 3.11 occasionally raises a SystemError
if two threads build syntax trees at the same time (python/cpython issue 106905).
"""

from threading import Lock

AST_LOCK = Lock()
